package placement

import (
	"math"
	"time"

	"libra.dev/libra/pkg/pool"
)

// moment is in nanoseconds of the picture's clock, which begins when the picture is made. It is
// a third of the size of a time.Time, and compares in one instruction.
type moment int64

const never = moment(math.MaxInt64)

// profile is a volume over time: each step's level until its moment, which is never for the last.
type profile struct {
	steps [pool.MostSteps + 1]step
	// Whether there is more at some moment than before, and less.
	rises, falls bool
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

// profileOf takes one resource's volumes out of steps, whose times are those of the pool.
func profileOf(steps []pool.Step, of func(pool.Step) int64, at func(time.Time) moment) (p profile) {
	last := 0
	for i, s := range steps {
		level := of(s)
		switch {
		case i == 0:
		case level == p.steps[last].level:
			continue
		case last == pool.MostSteps:
			// Of what changes more often, the least is there.
			level = min(level, p.steps[last].level)
			p.falls = p.falls || level < p.steps[last].level
		default:
			p.rises, p.falls = p.rises || level > p.steps[last].level, p.falls || level < p.steps[last].level
			p.steps[last].until = at(s.From)
			last++
		}
		p.steps[last].level = level
	}
	p.steps[last].until = never
	return p
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
