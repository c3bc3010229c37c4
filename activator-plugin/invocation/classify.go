package invocation

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"libra.dev/libra/activator-plugin/predict"
	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/pool"
)

const (
	cpuStepMilli    int64 = 100
	memoryStepBytes int64 = 64 << 20

	// An invocation without a prediction borrows by what it turns out to use, up to this many times its limit.
	unpredictedMost int64 = 3

	// A donor keeps enough memory that its predicted peak is at most this percentage of it: no safeguard gives
	// memory back.
	memoryPercent int64 = 80
)

// allocation is what a revision's user container is owed. A resource without a
// limit is 0 and is not managed.
type allocation struct {
	limit, request api.Resources
}

// allocationOf reads the user allocation from the revision's container, never from a pod, whose limits change
// with resizes.
func allocationOf(c *corev1.Container) allocation {
	a := allocation{limit: api.FromList(c.Resources.Limits), request: api.FromList(c.Resources.Requests)}
	// A limit that no node reaches counts as none: the pool would refuse it, and the Ends that go along.
	if a.limit.CPUMilli > pool.MostVolume {
		a.limit.CPUMilli = 0
	}
	if a.limit.MemoryBytes > pool.MostVolume {
		a.limit.MemoryBytes = 0
	}
	// As in the API server's defaults for the pod, a missing request is the limit.
	if _, ok := c.Resources.Requests[corev1.ResourceCPU]; !ok {
		a.request.CPUMilli = a.limit.CPUMilli
	}
	if _, ok := c.Resources.Requests[corev1.ResourceMemory]; !ok {
		a.request.MemoryBytes = a.limit.MemoryBytes
	}
	return a
}

// volumes are what an invocation can lend (surplus) and would borrow (want). For each resource, at most one is
// not zero.
type volumes struct {
	surplus, want api.Resources
}

// inFullPod returns what one of as many invocations as there may be in a pod leaves, when all need what it needs.
func (v volumes) inFullPod(a allocation, concurrency int) volumes {
	others := int64(max(concurrency, 1) - 1)
	v.surplus.CPUMilli = max(0, v.surplus.CPUMilli-a.limit.CPUMilli*others/(others+1))
	v.surplus.MemoryBytes = max(0, v.surplus.MemoryBytes-a.limit.MemoryBytes/(others+1)*others)
	return v
}

func (v volumes) minus(w volumes) volumes {
	return volumes{v.surplus.Sub(w.surplus), v.want.Sub(w.want)}
}

// classify returns what an invocation can lend and would borrow. The invocation keeps the container's request,
// and at least what the terms say. Short loans do not pay: it borrows no CPU if it would end before minLoan
// without a loan, and lends nothing if it may have ended by then. It still borrows memory, which it cannot do
// without. If it may have others in its pod, its surplus counts all the same: without it the pod could not
// lend what the others leave. An invocation whose input is larger than all that were learned from may borrow,
// but lends nothing.
func classify(a allocation, set terms, p predict.Prediction, concurrency int) (v volumes) {
	keep := set.keep.Max(a.request)
	v.surplus.CPUMilli, v.want.CPUMilli = share(a.limit.CPUMilli, keep.CPUMilli, p.Demand.CPUMilli, cpuStepMilli, set.safeguardPercent)
	v.surplus.MemoryBytes, v.want.MemoryBytes = share(a.limit.MemoryBytes, keep.MemoryBytes, p.Demand.MemoryBytes, memoryStepBytes, memoryPercent)
	if p.Beyond {
		v.surplus = api.Resources{}
	}
	if withoutLoan(a, p) < set.minLoan {
		v.want.CPUMilli = 0
	}
	if lasts(a, p) < set.minLoan && concurrency <= 1 {
		v.surplus = api.Resources{}
	}
	return v
}

// idleCPU returns the milli CPU that a pod can spare while nothing is in flight in it: what the smallest
// prediction would leave of its limit.
func idleCPU(a allocation, keep api.Resources) int64 {
	return max(0, a.limit.CPUMilli-max(keep.CPUMilli, a.request.CPUMilli, cpuStepMilli))
}

// withoutLoan returns how long, at least, an invocation would be in flight if it borrowed no CPU: as long as
// its predicted CPU time takes at its limit. A loan is worth what it takes off that.
func withoutLoan(a allocation, p predict.Prediction) time.Duration {
	if p.Demand.CPUMilli <= a.limit.CPUMilli || a.limit.CPUMilli <= 0 {
		return p.Duration
	}
	return max(p.Duration, p.CPUTime*1000/time.Duration(a.limit.CPUMilli))
}

// lasts returns how long, at least, an invocation is in flight. The predicted duration is a low quantile, so
// that no borrower is promised time that a donor does not have. Where it does not follow the size, it is that
// of small inputs. An invocation that needs more CPU than its own may last much longer: it does not end before
// it has used its CPU time.
func lasts(a allocation, p predict.Prediction) time.Duration {
	if p.Demand.CPUMilli <= a.limit.CPUMilli || a.limit.CPUMilli <= 0 {
		return p.Duration
	}
	return max(p.Duration, p.CPUTime*1000/time.Duration(p.Demand.CPUMilli))
}

// needOf returns what an invocation needs of its pod's allocation beside others, without what the pod keeps
// anyway. 0 means that the need is not known.
func needOf(a allocation, set terms, p predict.Prediction) api.Resources {
	if p.Beyond {
		return api.Resources{}
	}
	of := func(limit, demand, step, percent int64) int64 {
		if demand <= 0 {
			return 0
		}
		return min(need(demand, step, percent), limit)
	}
	return api.Resources{
		CPUMilli:    of(a.limit.CPUMilli, p.Demand.CPUMilli, cpuStepMilli, set.safeguardPercent),
		MemoryBytes: of(a.limit.MemoryBytes, p.Demand.MemoryBytes, memoryStepBytes, memoryPercent),
	}
}

// share is classify for one resource. A demand of 0 is no prediction.
func share(limit, keep, demand, step, percent int64) (surplus, want int64) {
	switch {
	case limit <= 0 || demand <= 0:
		return 0, 0
	case demand > limit:
		return 0, demand - limit
	default:
		return max(0, limit-max(keep, need(demand, step, percent))), 0
	}
}

// need returns the smallest multiple of step of which demand is at most the given percentage.
func need(demand, step, percent int64) int64 {
	return ceilDiv(demand*100, percent*step) * step
}

func ceilDiv(a, b int64) int64 { return (a + b - 1) / b }
