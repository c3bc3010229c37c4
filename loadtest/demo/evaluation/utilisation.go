package evaluation

import (
	"cmp"
	"math"
	"slices"
	"time"

	"libra.dev/libra/pkg/api"
)

// Utilisation is what was used of what could be, each from 0 to 1 and more.
type Utilisation struct{ CPU, Memory float64 }

// Moment is the utilisation in one second of a run.
type Moment struct {
	Second int // since the first request was sent
	Utilisation
}

// Timeline is how the utilisation went while a policy's first round lasted.
type Timeline struct {
	Policy  string
	Moments []Moment
}

func (u Utilisation) over(base Utilisation) Utilisation {
	return Utilisation{CPU: u.CPU / base.CPU, Memory: u.Memory / base.Memory}
}

func medianUtilisation(us []Utilisation) Utilisation {
	return Utilisation{
		CPU:    medianOf(us, func(u Utilisation) float64 { return u.CPU }),
		Memory: medianOf(us, func(u Utilisation) float64 { return u.Memory }),
	}
}

// mean is NaN of no moments.
func mean(moments []Moment) Utilisation {
	var sum Utilisation
	for _, m := range moments {
		sum.CPU += m.CPU
		sum.Memory += m.Memory
	}
	n := float64(len(moments))
	return Utilisation{CPU: sum.CPU / n, Memory: sum.Memory / n}
}

// interval is from one moment to another, in nanoseconds since the epoch.
type interval struct{ from, to int64 }

// union joins what overlaps or touches, and sorts.
func union(intervals []interval) []interval {
	sorted := slices.SortedFunc(slices.Values(intervals), func(a, b interval) int { return cmp.Compare(a.from, b.from) })
	var joined []interval
	for _, i := range sorted {
		if last := len(joined) - 1; last >= 0 && i.from <= joined[last].to {
			joined[last].to = max(joined[last].to, i.to)
		} else {
			joined = append(joined, i)
		}
	}
	return joined
}

// within is how many seconds of a union are in the interval.
func (i interval) within(union []interval) float64 {
	var sum int64
	for _, u := range union {
		sum += max(0, min(i.to, u.to)-max(i.from, u.from))
	}
	return time.Duration(sum).Seconds()
}

// requests is when the function had a request in flight.
func (r Run) requests(function string) []interval {
	var intervals []interval
	for _, result := range r.Results {
		if result.Function == function {
			from, to := result.Span()
			intervals = append(intervals, interval{from, to})
		}
	}
	return union(intervals)
}

// usages are the samples of a function.
func (r Run) usages(function string) (at []int64, usages []Usage) {
	for _, s := range r.Samples {
		if u, ok := s.Functions[function]; ok {
			at, usages = append(at, s.At.UnixNano()), append(usages, u)
		}
	}
	return at, usages
}

// usedSince is what was used since an earlier sample, in core-seconds. The counter of a
// container that was started in between began at zero.
func (u Usage) usedSince(earlier Usage) float64 {
	if u.CPU < earlier.CPU {
		return u.CPU.Seconds()
	}
	return (u.CPU - earlier.CPU).Seconds()
}

// inFlight is the CPU-seconds used in the run, over those of the functions' user
// allocations while they had a request in flight; and the byte-seconds used while they
// had one, over those of the allocations. What is reassigned so counts as used of what
// the owners configured. A function without two samples does not count.
func (r Run) inFlight(functions []Function) Utilisation {
	var used, limit struct{ cpu, memory float64 }
	for _, f := range functions {
		at, usages := r.usages(f.Name)
		requests := r.requests(f.Name)
		if len(usages) < 2 || len(requests) == 0 {
			continue
		}
		for i, u := range usages {
			// A sample holds until the next, the first from the start, the last to the end.
			held := interval{at[i], math.MaxInt64}
			if i == 0 {
				held.from = math.MinInt64
			} else {
				used.cpu += u.usedSince(usages[i-1])
			}
			if i+1 < len(at) {
				held.to = at[i+1]
			}
			used.memory += float64(u.Memory) * held.within(requests)
		}
		seconds := interval{math.MinInt64, math.MaxInt64}.within(requests)
		limit.cpu += float64(f.Limit.CPUMilli) / 1000 * seconds
		limit.memory += float64(f.Limit.MemoryBytes) * seconds
	}
	return Utilisation{CPU: used.cpu / limit.cpu, Memory: used.memory / limit.memory}
}

// overTime is, for each second from the first request sent to the last answer, what all
// functions' containers used of the sum of their limits in force: equation 2 of section
// 8.1 of the paper. Where no limit is in force, the user allocation stands for it.
func (r Run) overTime(functions []Function) []Moment {
	var all []interval
	for _, f := range functions {
		all = append(all, r.requests(f.Name)...)
	}
	if all = union(all); len(all) == 0 {
		return nil
	}
	start, end := all[0].from, all[len(all)-1].to
	const second = int64(time.Second)
	type sums struct{ cpu, cpuLimit, memory, memoryLimit float64 }
	bins := make([]sums, (end-start+second-1)/second)
	for _, f := range functions {
		at, usages := r.usages(f.Name)
		for i := 1; i < len(usages); i++ {
			before := usages[i-1]
			rate := usages[i].usedSince(before) / time.Duration(at[i]-at[i-1]).Seconds()
			limit := before.limit(f)
			span := []interval{{max(at[i-1], start), min(at[i], end)}}
			if span[0].to <= span[0].from {
				continue
			}
			for b := (span[0].from - start) / second; b < int64(len(bins)) && start+b*second < span[0].to; b++ {
				seconds := interval{start + b*second, start + (b+1)*second}.within(span)
				bins[b].cpu += rate * seconds
				bins[b].cpuLimit += float64(limit.CPUMilli) / 1000 * seconds
				bins[b].memory += float64(before.Memory) * seconds
				bins[b].memoryLimit += float64(limit.MemoryBytes) * seconds
			}
		}
	}
	var moments []Moment
	for i, b := range bins {
		if b.cpuLimit > 0 && b.memoryLimit > 0 {
			moments = append(moments, Moment{i, Utilisation{CPU: b.cpu / b.cpuLimit, Memory: b.memory / b.memoryLimit}})
		}
	}
	return moments
}

// limit is the one in force, or the user allocation where there is none.
func (u Usage) limit(f Function) api.Resources {
	limit := u.Limit
	if limit.CPUMilli == 0 {
		limit.CPUMilli = f.Limit.CPUMilli
	}
	if limit.MemoryBytes == 0 {
		limit.MemoryBytes = f.Limit.MemoryBytes
	}
	return limit
}

// timelines are those of the first round of the mixed workload, or of what there is.
func (d Data) timelines() []Timeline {
	var lines []Timeline
	workload := d.main()
	for _, p := range d.policies(workload) {
		runs := d.runs(p, workload)
		first := slices.MinFunc(runs, func(a, b Run) int { return cmp.Compare(a.Round, b.Round) })
		if moments := first.overTime(d.Functions); len(moments) > 0 {
			lines = append(lines, Timeline{p, moments})
		}
	}
	return lines
}

// main is the workload that the figures with room for one are of: the mixed one, or the
// first that was run.
func (d Data) main() string {
	if workloads := d.workloads(); len(workloads) > 0 {
		return workloads[0]
	}
	return Mixed
}
