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

	// An invocation without a prediction borrows at most so many times its limit, by what it turns
	// out to use.
	unpredictedMost int64 = 3

	// A donor keeps so much memory that its predicted peak is at most so many percent of it: no safeguard
	// gives it back.
	memoryPercent int64 = 80
)

// allocation is what a revision's user container is owed. A resource without a
// limit is 0 and is not managed.
type allocation struct {
	limit, request api.Resources
}

// allocationOf reads the user's allocation out of the revision's container, never
// out of a pod, whose limits change under resizes.
func allocationOf(c *corev1.Container) allocation {
	a := allocation{limit: api.FromList(c.Resources.Limits), request: api.FromList(c.Resources.Requests)}
	// A limit that no node reaches is none: the pool does not take it, nor the Ends that would go along.
	if a.limit.CPUMilli > pool.MostVolume {
		a.limit.CPUMilli = 0
	}
	if a.limit.MemoryBytes > pool.MostVolume {
		a.limit.MemoryBytes = 0
	}
	// As the API server does for the pod: without a request, the limit is requested.
	if _, ok := c.Resources.Requests[corev1.ResourceCPU]; !ok {
		a.request.CPUMilli = a.limit.CPUMilli
	}
	if _, ok := c.Resources.Requests[corev1.ResourceMemory]; !ok {
		a.request.MemoryBytes = a.limit.MemoryBytes
	}
	return a
}

// volumes are what an invocation can lend (surplus) and would borrow (want). Of each
// resource at most one is not zero.
type volumes struct {
	surplus, want api.Resources
}

// classify keeps the container's request and at least what the terms say. No CPU is lent to an invocation that
// would end before minLoan without a loan, and nothing by one that will have ended by then, for
// it would not pay; memory is lent to one that cannot do without. Of one that may have others in
// its pod the surplus counts all the same: without it the pod could not lend what the others
// leave. One whose input is larger than all that were learned from may borrow, and lends nothing.
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

// idleCPU is how much CPU, in milli, a pod can spare while nothing is in flight in it: what the
// smallest prediction would leave of its limit.
func idleCPU(a allocation, keep api.Resources) int64 {
	return max(0, a.limit.CPUMilli-max(keep.CPUMilli, a.request.CPUMilli, cpuStepMilli))
}

// withoutLoan is for how long an invocation would be in flight at least if it borrowed no CPU: what it
// is predicted to use takes so long at its limit. A loan is worth what it takes off that.
func withoutLoan(a allocation, p predict.Prediction) time.Duration {
	if p.Demand.CPUMilli <= a.limit.CPUMilli || a.limit.CPUMilli <= 0 {
		return p.Duration
	}
	return max(p.Duration, p.CPUTime*1000/time.Duration(a.limit.CPUMilli))
}

// lasts is for how long an invocation is in flight at least. The predicted duration is a low
// quantile, so that nobody is promised time that a donor does not have, and where it does not
// follow the size it is that of small inputs. One that needs more CPU than its own may do so
// for much longer: it does not end before it has used its CPU time.
func lasts(a allocation, p predict.Prediction) time.Duration {
	if p.Demand.CPUMilli <= a.limit.CPUMilli || a.limit.CPUMilli <= 0 {
		return p.Duration
	}
	return max(p.Duration, p.CPUTime*1000/time.Duration(p.Demand.CPUMilli))
}

// needOf is what an invocation needs of its pod's allocation beside others, without what
// the pod keeps anyway. What it does not say of a resource is 0.
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

// need is the smallest multiple of step of which demand is at most so many percent.
func need(demand, step, percent int64) int64 {
	return ceilDiv(demand*100, percent*step) * step
}

func ceilDiv(a, b int64) int64 { return (a + b - 1) / b }
