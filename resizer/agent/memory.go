package agent

import (
	"context"
)

const (
	// A container that uses crowdedPart of its memory limit is asked more for, twice what it was
	// owed or had, before the kernel kills it: a raise takes about 50 ms, and up to a second
	// when the kubelet has just handled the pod. It gets back to less when it uses under easyPart
	// of that.
	crowdedPart = 0.7
	easyPart    = 0.6
	// needMost is how many times its allocation a container may need at most.
	needMost = 8

	// A donor keeps marginBytes and a tenth above the most that its function was seen to use.
	marginBytes = 32 << 20
	marginPart  = 10
)

// pinned is what is kept of memory for who used so many bytes.
func pinned(used int64) int64 { return used + max(marginBytes, used/marginPart) }

// crowds says that use has come near a limit, both in bytes. 0 is no limit.
func crowds(used, limit int64) bool {
	return limit > 0 && float64(used) >= crowdedPart*float64(limit)
}

// needOf is the least that the memory limit is to be of a container that is owed and uses so
// many bytes and needed so many before; 0 when what it is owed will do.
func needOf(used, owed, before int64) int64 {
	need := owed
	for need < needMost*owed && (crowds(used, need) || need < before && float64(used) >= easyPart*float64(need)) {
		need *= 2
	}
	if need == owed {
		return 0
	}
	return need
}

// memoryUse is what is known of a container's memory, in bytes.
type memoryUse struct {
	used, limit int64 // as sampled last; a limit of 0 is none
	// need is what the controller was told that the limit has to be at least; 0 when nothing.
	need int64
	// refused says that the node had no more for it at the last beat.
	refused bool
}

// above is by how much of a limit that is, or is to be, passes what the container is owed.
func (m memoryUse) above(owed int64) int64 { return max(0, max(m.limit, m.need)-owed) }

// readMemory takes in what was sampled of all containers' memory, and what they need by it,
// as far as the node has it.
func (r *reflex) readMemory(ctx context.Context, node nodeMemory) {
	var above, unused int64
	var near []*entry // which need more than they have
	for _, e := range r.entries {
		m, owed := &e.memory, e.info.allocation.MemoryBytes
		c := r.sampled.get(e.pod)
		if c == nil || owed == 0 || !e.takesPart() {
			*m = memoryUse{}
			continue
		}
		var most int64
		m.used, m.limit, most = c.memory()
		r.most[e.info.function] = max(r.most[e.info.function], most)
		m.refused = false
		if need := r.needed(e); need > max(m.limit, m.need) {
			near = append(near, e)
		} else {
			m.need = need
		}
		above += m.above(owed)
		unused += max(0, max(m.limit, m.need)-max(m.used, owed))
	}
	r.aboveMemory = above
	room := min(node.total/memoryPart-above, node.available-node.total/reservePart-unused)
	for _, e := range near {
		m := &e.memory
		has := max(m.limit, m.need)
		need := min(r.needed(e), has+max(0, room&^(1<<20-1)))
		result := rescueAsked
		if m.refused = need <= has; m.refused {
			result = rescueNoRoom
		}
		room -= need - has
		r.metrics.rescues.Add(ctx, 1, ofFunction(e.info.function), ofRescue[result])
		if times, ok := r.repeats.tell(e.pod, "rescue", r.clock.Now()); ok {
			r.log.Info("a container has come near its memory limit", "pod", e.pod, "function", e.info.function, "used", m.used, "limit", m.limit,
				"asked", need, "result", result, "times", times)
		}
		m.need = need
	}
}

// needed is the least that a container's limit is to be by what was sampled last; 0 when what it
// is owed will do, and when it may have no more.
func (r *reflex) needed(e *entry) int64 {
	if r.stopping || !e.info.borrows {
		return 0
	}
	return needOf(e.memory.used, e.info.allocation.MemoryBytes, e.memory.need)
}

// nearLimit says that a container needs more than it has and than was asked for.
func (r *reflex) nearLimit() bool {
	for _, e := range r.entries {
		c := r.sampled.get(e.pod)
		if c == nil || e.memory.refused || !e.takesPart() || e.info.allocation.MemoryBytes == 0 {
			continue
		}
		m := &e.memory
		m.used, m.limit, _ = c.memory()
		if r.needed(e) > max(m.limit, m.need) {
			return true
		}
	}
	return false
}

// needs are what the pods' memory limits have to be at least.
func (r *reflex) needs() map[string]int64 {
	needs := map[string]int64{}
	for _, e := range r.entries {
		if need := e.memory.need; need > e.info.allocation.MemoryBytes {
			needs[e.pod] = need
		}
	}
	return needs
}

// borrowedMemory is what containers use above what they are owed, and pins what of the limits
// above it no loan is for, both in bytes.
func (r *reflex) borrowedMemory() (used, pins int64) {
	for _, e := range r.entries {
		m, owed := e.memory, e.info.allocation.MemoryBytes
		if owed == 0 || m.limit == 0 {
			continue
		}
		used += max(0, m.used-owed)
		pins += max(0, m.above(owed)-r.state.Pods[e.pod].Borrowed.MemoryBytes)
	}
	return used, pins
}

// floor is what the pod keeps of its memory, in bytes: nobody borrows of what its function was
// ever seen to use.
func (r *reflex) floor(e *entry) int64 { return min(mostBytes, pinned(r.most[e.info.function])) }

// What became of asking for more.
const (
	rescueAsked  = "asked"
	rescueNoRoom = "no-room" // the node has none to spare
)
