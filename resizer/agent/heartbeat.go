package agent

import (
	"context"
	"slices"
	"time"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/pool"
)

// beatEvery is how often the agent sends a heartbeat when nothing changes.
const beatEvery = time.Second

// mostBytes is the largest volume that the pool accepts.
const mostBytes = int64(1) << 40

// beat tells the pool what the node can lend, and which pods take part. onTime says that
// a second has passed, over which idle CPU is measured.
func (r *reflex) beat(ctx context.Context, onTime bool) {
	if onTime {
		r.beatAt = r.clock.Now().Add(beatEvery)
	}
	lendable := r.lendable(ctx, onTime)
	r.metrics.lendableCPU.Record(ctx, lendable.CPUMilli)
	r.metrics.lendableMem.Record(ctx, lendable.MemoryBytes)
	if r.state.Epoch == "" || r.lost {
		return // there is no epoch to say it of
	}
	if !r.pods.introduced() {
		r.beatDue = false // set again as soon as the pods are known
		return
	}
	hb := pool.Heartbeat{
		Agent: r.agent, Epoch: r.state.Epoch, Whole: true, Lendable: lendable, Capacity: r.capacity, Idle: r.idle, Pods: map[string]int64{},
	}
	for _, e := range r.entries {
		if e.unopened() && !e.ended || e.info.cgroup != nil && !e.whole && !e.differs {
			hb.Whole = false
		}
		if e.takesPart() {
			hb.Pods[e.pod] = r.floor(e)
		}
	}
	hb.Needs = r.needs()
	hb.Rested, hb.RestedAt = r.rested()
	latest(r.link.beats, hb)
	r.beatDue = false
}

// rested returns the pods that may have invocations unknown to the pool but use no CPU now, and a time
// of the pool's clock since which none of them has. Such an invocation may wait for something, and
// meanwhile needs nothing of what its pod is owed.
func (r *reflex) rested() (pods []string, since time.Time) {
	unseen := slices.Clone(r.state.Unseen)
	if !r.state.Open {
		// The heartbeat that opens a node makes every pod that takes part unseen.
		for _, e := range r.entries {
			if e.takesPart() {
				unseen = append(unseen, e.pod)
			}
		}
	}
	now := r.clock.Now()
	own := now
	for _, pod := range unseen {
		e, c := r.get(pod), r.sampled.get(pod)
		if e == nil || c == nil || c.id != e.info.container {
			continue
		}
		if at, ok := c.usesNothing(now); ok {
			pods, own = append(pods, pod), earlier(own, at)
		}
	}
	// The state was made before it was learned, so this is early rather than late.
	return pods, r.state.Now.Add(own.Sub(r.learnedAt))
}

// lendable is the most that may be on loan: what borrowers already use of it, and what the
// node has idle, less a reserve. It is zero when that is not known.
func (r *reflex) lendable(ctx context.Context, onTime bool) api.Resources {
	if onTime {
		usedMilli := r.borrowedCPU()
		times, err := readCPUTimes(r.settings.ProcRoot)
		if err != nil {
			r.unknownIdle(ctx, err)
			return api.Resources{}
		}
		r.capacity.CPUMilli, r.idle.CPUMilli = useOfCPU(r.cpuTimes, times)
		r.lendCPU = lendableCPU(usedMilli, r.capacity.CPUMilli, r.idle.CPUMilli)
		r.cpuTimes = times
	}
	node, err := readNodeMemory(r.settings.ProcRoot)
	if err != nil {
		r.unknownIdle(ctx, err)
		return api.Resources{}
	}
	r.capacity.MemoryBytes, r.idle.MemoryBytes = node.total, node.available
	r.readMemory(ctx, node)
	used, pins := r.borrowedMemory()
	r.metrics.pins.Record(ctx, pins)
	return api.Resources{CPUMilli: r.lendCPU, MemoryBytes: lendableMemory(used, node, pins)}
}

func (r *reflex) unknownIdle(ctx context.Context, err error) {
	r.lendCPU, r.cpuTimes = 0, cpuTimes{}
	r.capacity, r.idle = api.Resources{}, api.Resources{}
	r.metrics.sampleErrors.Add(ctx, 1)
	r.log.Error(err, "lending nothing, because what the node has idle is unknown")
}

// lendableCPU is in milli CPU; 0 while the node's CPU is not known.
func lendableCPU(usedMilli, capacityMilli, idleMilli int64) int64 {
	if capacityMilli == 0 {
		return 0
	}
	return max(0, usedMilli+idleMilli-capacityMilli/reservePart)
}

// useOfCPU is how much CPU the node has and how much of it was idle, in milli CPU; 0 until there
// is a time to measure over.
func useOfCPU(before, after cpuTimes) (capacityMilli, idleMilli int64) {
	if before.total == 0 {
		return 0, 0
	}
	return after.cpus * 1000, after.idleMilli(before)
}

// lendableMemory is in bytes.
func lendableMemory(used int64, node nodeMemory, pins int64) int64 {
	return max(0, min(mostBytes, node.total/memoryPart-pins, used+node.available-node.total/reservePart-pins))
}

// borrowedCPU is what borrowers used above their user allocations since the last call, in
// milli CPU.
func (r *reflex) borrowedCPU() int64 {
	var used int64
	for _, e := range r.entries {
		if !e.read {
			continue
		}
		passed := e.readAt.Sub(e.beatAt)
		if e.managed() && e.owed != 0 && !e.beatAt.IsZero() && passed > 0 {
			used += max(0, milli(float64(e.reading.CPU-e.beatCPU), passed)-e.owed)
		}
		e.beatAt, e.beatCPU = e.readAt, e.reading.CPU
	}
	return used
}
