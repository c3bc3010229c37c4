package agent

import (
	"cmp"
	"math"
	"math/bits"
	"slices"
	"time"

	"libra.dev/libra/pkg/pool"
)

const (
	// creditTime is how much of its allocation a pod may use, beyond what it is due for its time
	// in flight, and still be owed.
	creditTime = 100 * time.Millisecond

	// owedEighths and borrowedEighths are how many eighths of the kubelet's weight a pod in
	// flight keeps: while it is owed and not strict, and while it uses more than its own.
	owedEighths, borrowedEighths, allEighths = 4, 1, 8

	// owedUrgency and levelUrgency are the factors by which a pod gets more of what floors leave:
	// for being owed, and for each level below the last.
	owedUrgency, levelUrgency = 4, 4

	// mostRanked is the most milli CPU of an allocation that counts, so that no product below
	// overflows 64 bits with as many pods as a node can have.
	mostRanked = 1_000_000
)

// levelTimes bound the CPU time that is left of a request on each level but the last.
var levelTimes = [...]time.Duration{25 * time.Millisecond, 100 * time.Millisecond, 400 * time.Millisecond}

const lastLevel = len(levelTimes)

// level returns how soon work will be done that has so much CPU time left: 0 is the soonest.
func level(left time.Duration) int {
	for i, most := range levelTimes {
		if left < most {
			return i
		}
	}
	return lastLevel
}

// work is what is known of one request, or of a pod whose requests are not seen.
type work struct {
	used      time.Duration // CPU time so far
	predicted time.Duration // CPU time in all; 0 when there is no prediction
}

const (
	// never is what is left of work whose end nobody knows.
	never = time.Duration(math.MaxInt64)
	// untoldLeft is roughly what is left of quick work, when nothing better is known.
	untoldLeft = 10 * time.Millisecond
)

// left returns how much CPU time the work still takes. Work that has outlived its prediction
// is only known to be long, and work without a prediction is taken to need as much as it has
// used. Quick work may share its pod with others of which nobody tells, and then seems to have
// used what they have, so it is given longer.
func (w work) left() time.Duration {
	switch {
	case w.predicted == 0:
		return w.used
	case w.used < w.predicted:
		return w.predicted - w.used
	case w.predicted < pool.QuickCPU && w.used < levelTimes[lastLevel-1]:
		return untoldLeft
	default:
		return never
	}
}

// group is a set of pods that exchange weights: they compete below one parent and are in one
// namespace.
type group struct{ parent, namespace string }

// contender is a pod in flight.
type contender struct {
	group
	pod        string // namespace/name
	kubelet    int64  // the weight that the kubelet gave it
	allocation int64  // milli CPU that it is owed
	strict     bool   // keeps all of its weight while it is owed
	ran        time.Duration
	works      []work // at least one
}

// owed says whether the pod has used less than it is due.
func (c contender) owed() bool {
	var used time.Duration
	for _, w := range c.works {
		used += w.used
	}
	return float64(used)*1000 < float64(c.allocation)*float64(c.ran+creditTime)
}

// level returns how soon the pod will have something done, by the CPU time that each request
// costs it until then. All its requests share what it gets, so by the time the n-th is done,
// longer ones have had as much. The cost is counted for as many of the shortest as makes it
// the least: a pod that is full of short requests goes before one with a single longer one,
// and a pod with a short request among many long ones does not go before one whose only
// request is done sooner. On the simulated node of TestWeightsOnAFullNode, with the queue's
// order, the mean slow-down is 0.49 of that by the kubelet's weights, and the P99 of response
// times 0.98. They are 0.48 and 0.96 by the least that is left alone. But on the requests of
// TestWeightsOnRecordedRequests at 90 % these are 0.78 and 1.11, and 0.84 and 1.08.
func (c contender) level() int {
	lefts := make([]time.Duration, len(c.works))
	for i, w := range c.works {
		lefts[i] = w.left()
	}
	slices.Sort(lefts)
	least, work, before := never, time.Duration(0), time.Duration(0)
	for done, left := range lefts {
		if left == never {
			break
		}
		work += (left - before) * time.Duration(len(lefts)-done)
		before = left
		least = min(least, work/time.Duration(done+1))
	}
	return level(least)
}

// urgency returns the pod's proportion of what floors leave.
func (c contender) urgency(owed bool) int64 {
	u := min(c.allocation, mostRanked)
	if owed {
		u *= owedUrgency
	}
	for range lastLevel - c.level() {
		u *= levelUrgency
	}
	return u
}

// weightRange has the least and the most that the kernel takes.
type weightRange struct{ least, most int64 }

// floorEighths returns the least weight that a pod may have, in eighths of the kernel's unit.
func (c contender) floorEighths(owed bool, least int64) int64 {
	eighths := int64(borrowedEighths)
	switch {
	case owed && c.strict:
		eighths = allEighths
	case owed:
		eighths = owedEighths
	}
	return max(eighths*c.kubelet, allEighths*least)
}

// weigh returns the weights of pods in flight, in their order. In each group they add up to at
// most what the kubelet gave the pods, so that nobody else has less than without Libra: each
// pod keeps its floor, and urgency divides the rest.
func weigh(pods []contender, limits weightRange) []int64 {
	weights := make([]int64, len(pods))
	byGroup := map[group][]int{}
	for i, p := range pods {
		byGroup[p.group] = append(byGroup[p.group], i)
	}
	for _, members := range byGroup {
		weighGroup(pods, members, weights, limits)
	}
	return weights
}

// weighGroup divides exactly, in whole numbers: a pod's share is floor + spare · urgency /
// urgencies, all in eighths of the kernel's unit. The pods that lost most by rounding get what
// it leaves.
func weighGroup(pods []contender, members []int, weights []int64, limits weightRange) {
	type part struct {
		pod            int
		floor, urgency int64
		lost           uint64
	}
	parts := make([]part, len(members))
	var sum, spare int64
	var urgencies uint64
	for n, i := range members {
		p := pods[i]
		owed := p.owed()
		parts[n] = part{pod: i, floor: p.floorEighths(owed, limits.least), urgency: p.urgency(owed)}
		sum += p.kubelet
		spare += allEighths*p.kubelet - parts[n].floor
		urgencies += uint64(parts[n].urgency)
	}
	if urgencies == 0 {
		for _, i := range members {
			weights[i] = pods[i].kubelet
		}
		return
	}
	left := sum
	for n := range parts {
		p := &parts[n]
		// (floor·urgencies + spare·urgency) / (8·urgencies)
		high, low := bits.Mul64(uint64(p.floor), urgencies)
		h, l := bits.Mul64(uint64(spare), uint64(p.urgency))
		var carry uint64
		low, carry = bits.Add64(low, l, 0)
		high += h + carry
		whole, rest := bits.Div64(high, low, allEighths*urgencies)
		weights[p.pod], p.lost = int64(whole), rest
		left -= int64(whole)
	}
	slices.SortFunc(parts, func(a, b part) int {
		return cmp.Or(cmp.Compare(b.lost, a.lost), cmp.Compare(pods[a.pod].pod, pods[b.pod].pod))
	})
	for _, p := range parts {
		if left > 0 && p.lost > 0 {
			weights[p.pod]++
			left--
		}
		weights[p.pod] = min(weights[p.pod], limits.most)
	}
}
