package placement

import (
	"math"
	"math/bits"
	"time"

	"libra.dev/libra/pkg/pool"
)

// moment is in nanoseconds of the picture's clock, which begins when the picture is made. It is
// a third of the size of a time.Time, and compares in one instruction.
type moment int64

const never = moment(math.MaxInt64)

// profile is a volume over time: each step's level until its moment, which is never for the last.
type profile struct {
	bounds [bounded]int64
	steps  [pool.MostSteps + 1]step
}

// What there is on average over a time is bounded by how long that is: at place k for less than shortest
// times two to the power of k and no less than half of that, and at the last for all that is longer. A
// bound holds for times that begin within boundedFor of when the profile was heard of.
const (
	bounded    = 10
	shortest   = 50 * time.Millisecond
	boundedFor = 2 * time.Second
)

// boundOf is the place of the bound for a time.
func boundOf(lasts time.Duration) int {
	return min(bits.Len64(uint64(max(lasts, 0)/shortest)), bounded-1)
}

// A step has both in one place: who reads the moment reads the level next.
type step struct {
	until moment
	level int64
}

// nothingLent is of what there is nothing of.
var nothingLent = profile{steps: [pool.MostSteps + 1]step{{until: never}}}

func cpuOf(s pool.Step) int64    { return s.Volume.CPUMilli }
func memoryOf(s pool.Step) int64 { return s.Volume.MemoryBytes }

// profileOf takes one resource's volumes out of steps, whose times are those of the pool, as heard at a
// moment.
func profileOf(heard moment, steps []pool.Step, of func(pool.Step) int64, at func(time.Time) moment) (p profile) {
	last, most, rises, falls := 0, int64(0), false, false
	for i, s := range steps {
		level := of(s)
		switch {
		case i == 0:
		case level == p.steps[last].level:
			continue
		case last == pool.MostSteps:
			level = min(level, p.steps[last].level) // of what changes more often, the least is there
		default:
			rises, falls = rises || level > p.steps[last].level, falls || level < p.steps[last].level
			p.steps[last].until = at(s.From)
			last++
		}
		p.steps[last].level = level
		most = max(most, level)
	}
	p.steps[last].until = never
	for k := range p.bounds {
		p.bounds[k] = most
		switch long := shortest << k; {
		case k > 0 && falls && !rises: // it has the most at first, and over the shortest of these times
			p.bounds[k] = p.average(heard, long/2)
		case k < bounded-1 && rises && !falls: // and here at last, and over the longest
			p.bounds[k] = p.average(heard+moment(boundedFor), long)
		}
	}
	return p
}

// average is what there is over a time on average, or a little more.
func (p *profile) average(from moment, lasts time.Duration) int64 {
	const most = 1 << 50 // more than there is of anything
	return int64(math.Ceil(p.covered(most, 0, from, lasts)*most)) + 1
}

// covered is which share of want, over a time, is there beside what is debited: the integral of the least of
// want and what is left, over want and the time. With no time it is that of the moment.
func (p *profile) covered(want, debited int64, from moment, lasts time.Duration) float64 {
	if want <= 0 {
		return 1
	}
	i := 0
	for p.steps[i].until <= from {
		i++
	}
	end := from + moment(lasts)
	if p.steps[i].until >= end {
		return share(p.steps[i].level, debited, want)
	}
	var sum float64
	for at := from; at < end; i++ {
		until := min(p.steps[i].until, end)
		sum += float64(leftOf(p.steps[i].level, debited, want)) * float64(until-at)
		at = until
	}
	return min(1, sum/(float64(want)*float64(lasts)))
}

func share(level, debited, want int64) float64 {
	return float64(leftOf(level, debited, want)) / float64(want)
}

// leftOf is how much of want there is.
func leftOf(level, debited, want int64) int64 { return max(0, min(level-debited, want)) }
