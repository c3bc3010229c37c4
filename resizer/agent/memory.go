package agent

import (
	"cmp"
	"context"
	"slices"
	"time"

	"go.opentelemetry.io/otel/metric"

	"libra.dev/libra/resizer/backoff"
)

const (
	// When a container uses crowdedPart of its memory limit, the agent asks for twice what it was owed
	// or had, before the kernel kills it: a raise takes a patch and the kubelet's handling of it, and
	// up to a second when the kubelet has just handled the pod. The container goes back to a lower
	// limit when it uses under easyPart of that lower limit.
	crowdedPart = 0.7
	easyPart    = 0.6
	// unmetPatience is how long a raise may take to come. After that, no more than what there was is
	// asked for during unmetPause, nor is the container slowed down for more. The pause doubles each time
	// until a raise comes, up to unmetPauseMost.
	unmetPatience  = 10 * time.Second
	unmetPause     = 10 * time.Second
	unmetPauseMost = 5 * time.Minute
	// needMost is how many times its allocation a container may need at most. Needs are multiples of
	// needStep bytes, because the kernel rounds limits down to pages.
	needMost = 8
	needStep = 1 << 20

	// recentWindow is how long a container's memory use is taken together, so that a use that ends before a
	// heartbeat is told with that heartbeat, and with the next one if the agent sends two at once.
	recentWindow = beatEvery

	// A donor keeps a tenth, or marginBytes if that is more, above the most that its function was seen
	// to use.
	marginBytes = 32 << 20
	marginPart  = 10
)

// pinned returns how many bytes of memory are kept when so many were used.
func pinned(used int64) int64 { return used + max(marginBytes, used/marginPart) }

// crowds says whether use has come near a limit, both in bytes. A limit of 0 is none.
func crowds(used, limit int64) bool {
	return limit > 0 && float64(used) >= crowdedPart*float64(limit)
}

// needOf returns the least memory limit, in bytes, for a container, given what it used, is owed and
// needed before; 0 when what it is owed is enough.
func needOf(used, owed, before int64) int64 {
	need := owed
	for need < needMost*owed && (crowds(used, need) || stepped(need) < before && float64(used) >= easyPart*float64(need)) {
		need *= 2
	}
	if need == owed {
		return 0
	}
	return stepped(need)
}

// stepped rounds a need up to a multiple of needStep.
func stepped(bytes int64) int64 { return (bytes + needStep - 1) / needStep * needStep }

// recentPeak is the most memory, in bytes, that a container used in the present recentWindow and in the one before.
type recentPeak struct {
	present, before int64
	since           time.Time // when the present one began
}

func (p *recentPeak) add(at time.Time, used int64) {
	if at.Sub(p.since) >= recentWindow {
		p.present, p.before, p.since = 0, p.present, at
	}
	p.present = max(p.present, used)
}

// sampledMemory is what a container's samples tell of its memory, in bytes.
type sampledMemory struct {
	used, limit int64 // by the last sample; a limit of 0 is none
	recent      int64 // the most that it used in the last one to two recentWindows
	most        int64 // the most that it was ever seen to use
}

// memoryUse is what is known of a container's memory, in bytes.
type memoryUse struct {
	sampledMemory
	// need is the least limit that the controller was told of; 0 when it was told of none.
	need int64
	// above is how far the limit is, or is to be, above what the container is owed.
	above int64
	// unmetSince is since when the limit has been less than need; zero while it is not.
	unmetSince time.Time
	// noRoomUntil is until when nothing more is asked for, because the node had no more to spare.
	noRoomUntil time.Time
	pause       pause
}

// pause is after a raise that did not come: until its end, no more is asked for than there was then.
type pause struct {
	until time.Time
	was   int64
	delay backoff.Delay
}

func (p *pause) begin(was int64, now time.Time) {
	p.delay.Min, p.delay.Max = unmetPause, unmetPauseMost
	p.was, p.until = was, now.Add(p.delay.Next())
}

// forbids says whether so much must not be asked for.
func (p *pause) forbids(bytes int64, now time.Time) bool { return now.Before(p.until) && bytes > p.was }

// look takes in the container's samples. A limit that was raised shows that raises come, but during a pause
// only if it was raised above what there was.
func (m *memoryUse) look(c *container, now time.Time) {
	before := m.limit
	m.sampledMemory = c.memory()
	if before != 0 && m.limit > before && (m.pause.forbids(m.limit, now) || !now.Before(m.pause.until)) {
		m.pause.until = time.Time{}
		m.pause.delay.Reset()
	}
}

// askable returns the most that may be asked for now. During a pause, a limit that was lowered may be raised
// again to what there was.
func (m *memoryUse) askable(now time.Time) int64 {
	switch {
	case now.Before(m.noRoomUntil):
		return m.has()
	case now.Before(m.pause.until):
		return max(m.has(), m.pause.was)
	}
	return mostBytes
}

// has returns the limit that there is or is to be.
func (m *memoryUse) has() int64 { return max(m.limit, m.need) }

// keeps returns the limit that there will be, in bytes. The kubelet may be about to lower the limit
// to the spec's, and goes by what was in use a while ago.
func (m *memoryUse) keeps(spec int64) int64 {
	if spec > 0 && spec < m.limit {
		return max(spec, m.need)
	}
	return m.has()
}

// unmet says whether what was asked for has been out of force for too long. If so, it gives it up
// for a while: a quota may have no room for it, and others could use what the node has. It goes on
// asking for what the spec already has, since the kubelet is only late with that. A limit that the
// kubelet is about to lower to the spec's is no raise.
func (m *memoryUse) unmet(spec int64, now time.Time) bool {
	given := m.limit
	if spec > 0 {
		given = min(given, spec)
	}
	switch {
	case m.limit == 0 || m.need <= given:
		m.unmetSince = time.Time{}
	case m.pause.forbids(m.need, now): // given up already, and still in the spec
	case m.unmetSince.IsZero():
		m.unmetSince = now
	case now.Sub(m.unmetSince) >= unmetPatience:
		m.unmetSince = time.Time{}
		m.pause.begin(given, now)
		if m.need > spec {
			m.need = 0
		}
		return true
	}
	return false
}

// crowdedContainer is a container that needs more memory than it has.
type crowdedContainer struct {
	*entry
	container *container
	need      int64
}

// readMemory takes in what was last sampled of all containers' memory and sets what they need, as
// far as the node has it.
func (r *reflex) readMemory(ctx context.Context, node nodeMemory) {
	now, introduced := r.clock.Now(), r.pods.introduced()
	var above, unused int64
	var near []crowdedContainer
	for _, e := range r.entries {
		m, owed := &e.memory, e.info.memoryOwed
		c := r.sampled.get(e.pod)
		if c == nil {
			*m = memoryUse{}
			continue
		}
		r.setQuiet(e, c, node)
		if owed == 0 || !e.eligible() {
			*m = memoryUse{}
			c.covered.Store(mostBytes) // the sampler need not report it
			c.sinking.Store(false)
			c.rescuable.Store(false)
			continue
		}
		m.look(c, now)
		r.most[e.info.function] = max(r.most[e.info.function], m.most)
		if r.lost || !introduced {
			m.unmetSince = time.Time{} // nobody hears what is asked for
		} else if m.unmet(e.info.limits.MemoryBytes, now) {
			r.tellRescue(ctx, e, r.needed(e), rescueUnmet)
		}
		switch need := min(r.needed(e), m.askable(now)); {
		case m.limit == 0:
			m.need = max(m.need, e.info.limits.MemoryBytes) // not sampled yet: it keeps what it has
		case need <= m.has():
			m.need = need
		default:
			near = append(near, crowdedContainer{e, c, need})
		}
		has := max(m.has(), owed+r.balance(e).Borrowed.MemoryBytes)
		m.above = max(0, has-owed)
		above += m.above
		unused += max(0, has-max(m.used, owed))
		r.watchMemory(e, c)
	}
	r.aboveMemory = above
	// Use is known, but a prediction may be wrong: the fullest containers come first.
	slices.SortStableFunc(near, func(a, b crowdedContainer) int {
		return cmp.Compare(b.memory.inUse(), a.memory.inUse())
	})
	room := min(node.total/memoryPart-above, node.available-node.total/reservePart-unused)
	for _, n := range near {
		m, has := &n.memory, n.memory.has()
		need := n.need
		if need-has > room && crowds(m.recent, m.limit) {
			need = has + max(0, room)/needStep*needStep
		}
		if need > has && need-has <= room {
			room -= need - has
			if m.need = need; m.unmetSince.IsZero() {
				m.unmetSince = now
			}
			r.tellRescue(ctx, n.entry, need, rescueAsked)
		} else {
			m.need, m.noRoomUntil = has, now.Add(beatEvery)
			r.tellRescue(ctx, n.entry, n.need, rescueNoRoom)
		}
		r.watchMemory(n.entry, n.container)
	}
}

// watchMemory tells the container's sampler up to which limit it need not report use, and whether
// there is more memory for the container.
func (r *reflex) watchMemory(e *entry, c *container) {
	covers, spec := r.covers(e), e.info.limits.MemoryBytes
	c.owedMemory.Store(e.info.memoryOwed)
	c.covered.Store(covers)
	c.sinking.Store(covers < e.memory.limit)
	c.rescuable.Store(covers < mostBytes && !r.lost)
	if c.spec.Swap(spec) != spec {
		// The sampler sets guards: setting one takes the kernel the longer, the larger the container's
		// caches are, and the safeguard cannot wait for it.
		c.lookAgain.Store(true)
		r.sampled.stir()
	}
}

// inUse returns the share of the limit that was in use lately.
func (m *memoryUse) inUse() float64 { return float64(m.recent) / float64(max(1, m.limit)) }

func (r *reflex) tellRescue(ctx context.Context, e *entry, need int64, result string) {
	r.metrics.rescues.Add(ctx, 1, metric.WithAttributes(functionKey.String(e.info.function), resultKey.String(result)))
	if times, ok := r.repeats.tell(e.pod, "rescue "+result, r.clock.Now()); ok {
		r.log.Info("a container needs more memory than it was given", "pod", e.pod, "function", e.info.function,
			"used", e.memory.used, "limit", e.memory.limit, "need", need, "result", result, "times", times)
	}
}

// covers returns the limit up to which the reflex need not be told that use comes near it. A
// container that may borrow nothing may keep what it has. A limit below what it is owed is another
// manager's, in force or to come: Libra neither raises it nor waits for it. While a raise is on its way, the
// container is to be slowed down near the limit in force.
func (r *reflex) covers(e *entry) int64 {
	m, keeps := &e.memory, e.memory.keeps(e.info.limits.MemoryBytes)
	another := e.info.foreign && keeps < e.info.memoryOwed
	now := r.clock.Now()
	comes := m.limit < keeps && !m.pause.forbids(keeps, now)
	if another || keeps >= m.askable(now) && !comes || keeps >= m.limit && (!e.mayBorrow() || m.has() >= needMost*e.info.memoryOwed) {
		return mostBytes
	}
	return keeps
}

// needed returns the least that a container's limit must be, by what it used lately and by what is
// predicted for the invocations in it; 0 when what it is owed is enough. The last sample would not
// do: each of the requests that come as often as heartbeats may have ended when a heartbeat is sent.
// A container that may not have more, because of its mode or because another manager changed its
// pod, needs what it uses of what it has.
func (r *reflex) needed(e *entry) int64 {
	m, owed := &e.memory, e.info.memoryOwed
	need := needOf(m.recent, owed, m.need)
	if r.stopping || !e.mayBorrow() {
		return min(need, m.limit)
	}
	if b := r.balance(e); b.Short > 0 {
		// No donor lends that much, but the node may have it.
		need = max(need, min(stepped(owed+b.Borrowed.MemoryBytes+b.Short), stepped(needMost*owed)))
	}
	return need
}

// isShort says whether a container needs more than it has and more than was asked for.
func (r *reflex) isShort(e *entry) bool {
	m, c := &e.memory, r.sampled.get(e.pod)
	if c == nil || !e.eligible() || e.info.memoryOwed == 0 {
		return false
	}
	now := r.clock.Now()
	m.look(c, now)
	return m.limit > 0 && min(r.needed(e), m.askable(now)) > m.keeps(e.info.limits.MemoryBytes)
}

// needs returns the least memory limit, in bytes, of each pod that needs more than it is owed.
func (r *reflex) needs() map[string]int64 {
	needs := map[string]int64{}
	for _, e := range r.entries {
		if need := e.memory.need; need > e.info.memoryOwed {
			needs[e.pod] = min(need, mostBytes)
		}
	}
	return needs
}

// borrowedMemory returns what containers use above what they are owed, and pins: how far limits are
// above that for no loan. Both are in bytes.
func (r *reflex) borrowedMemory() (used, pins int64) {
	for _, e := range r.entries {
		m, owed := e.memory, e.info.memoryOwed
		if owed == 0 || m.limit == 0 {
			continue
		}
		used += max(0, m.used-owed)
		pins += max(0, m.has()-owed-r.state.Pods[e.pod].Borrowed.MemoryBytes)
	}
	return used, pins
}

// floor returns what the pod keeps of its memory, in bytes: nobody borrows what its function was
// ever seen to use.
func (r *reflex) floor(e *entry) int64 { return min(mostBytes, pinned(r.most[e.info.function])) }

// Results of asking for more memory.
const (
	rescueAsked  = "asked"
	rescueNoRoom = "no-room" // the node has none to spare
	rescueUnmet  = "unmet"   // asked for, but not given
)
