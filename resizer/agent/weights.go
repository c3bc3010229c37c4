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
	// creditTime is how much of its allocation a pod may use, beyond what it is due for the
	// time that it was in flight, and is still owed.
	creditTime = 100 * time.Millisecond

	// eighths are the parts of the kubelet's weight that a pod in flight keeps, in eighths:
	// while it is owed, and while it uses more than its own.
	owedEighths, borrowedEighths, allEighths = 4, 1, 8

	// owedUrgency and levelUrgency are by how much more a pod gets of what floors leave for
	// being owed, and for each level that it is below the last.
	owedUrgency, levelUrgency = 4, 4

	// mostRanked is the most milli CPU of an allocation that counts, so that no product
	// below leaves 64 bits with as many pods as a node can have.
	mostRanked = 1_000_000
)

// levelTimes are what of CPU time is left of a request, at most, on each level but the last.
var levelTimes = [...]time.Duration{25 * time.Millisecond, 100 * time.Millisecond, 400 * time.Millisecond}

const lastLevel = len(levelTimes)

// level is how soon work will be done that has so much CPU time left: 0 is the soonest.
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
	// never is what is left of work of which nobody knows when it ends.
	never = time.Duration(math.MaxInt64)
	// untoldLeft is about what is left of what is over soon, when it is not known better.
	untoldLeft = 10 * time.Millisecond
)

// left is how much CPU time it takes until the work is done. Of what runs for longer than
// was predicted nothing is known, but that it is long; of what was never predicted, that it
// is as long as it has been. What is over soon has others beside it of which nobody tells, and
// seems to have used what they have, so that it is given longer.
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

// group are pods whose weights are exchanged for one another: they compete below one
// parent, and are of one namespace.
type group struct{ parent, namespace string }

// contender is a pod in flight.
type contender struct {
	group
	pod        string // namespace/name
	kubelet    int64  // the weight that the kubelet gave it
	allocation int64  // milli CPU that it is owed
	ran        time.Duration
	works      []work // at least one
}

// owed says that the pod has used less than what it is due.
func (c contender) owed() bool {
	var used time.Duration
	for _, w := range c.works {
		used += w.used
	}
	return float64(used)*1000 < float64(c.allocation)*float64(c.ran+creditTime)
}

// level is how soon the pod will have something done, by the CPU time that each request costs
// it until then: all of its requests share what it gets, so that until the n-th is done those
// that are longer have had as much. That is counted for as many of the shortest as makes it
// the least: a pod that is full of short requests goes before one with a single longer one,
// and one that has a short request among many long ones does not go before one that is done
// with its only request sooner. On the simulated node of TestWeightsOnAFullNode, with the
// queue's order, the mean slow-down is 0.59 of what it is by the kubelet's weights and the P99
// of response times 0.96; 0.64 and 0.93 by the least that is left alone, and 0.58 and 0.99 by
// that times the requests in the pod.
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

// urgency divides among pods what their floors leave.
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

// weightRange is what the kernel takes.
type weightRange struct{ least, most int64 }

// floorEighths is the least that a pod may have, in eighths of the kernel's unit.
func (c contender) floorEighths(owed bool, least int64) int64 {
	eighths := int64(borrowedEighths)
	if owed {
		eighths = owedEighths
	}
	return max(eighths*c.kubelet, allEighths*least)
}

// weigh returns the weights of pods in flight, in their order. In each group they add up
// to at most what the kubelet gave its pods, so that nobody else has less than without
// Libra: each pod keeps its floor, and the rest is divided by urgency.
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

// weighGroup divides exactly, in whole numbers: a pod's share is
// floor + spare · urgency / urgencies, all in eighths of the kernel's unit. What rounding
// leaves goes to who lost most by it.
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
