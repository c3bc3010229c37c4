package placement

import (
	"math"
	"time"

	"libra.dev/libra/pkg/pool"
)

// moment is in nanoseconds of the picture's clock, which begins when the picture is made. It is a third of
// the size of a time.Time, and compares in one instruction.
type moment int64

const never = moment(math.MaxInt64)

// profile is a volume over time: each step's level lasts until its moment, which is never for the last step.
type profile struct {
	steps [pool.MostSteps + 1]step
	// Whether the level ever rises, and whether it ever falls.
	rises, falls bool
}

// A step keeps both in one place: a reader of the moment reads the level next.
type step struct {
	until moment
	level int64
}

// nothingLent is the profile of a resource of which there is nothing.
var nothingLent = profile{steps: [pool.MostSteps + 1]step{{until: never}}}

func cpuOf(s pool.Step) int64    { return s.Volume.CPUMilli }
func memoryOf(s pool.Step) int64 { return s.Volume.MemoryBytes }

// profileOf takes the volumes of one resource out of steps, whose times are by the pool's clock.
func profileOf(steps []pool.Step, of func(pool.Step) int64, at func(time.Time) moment) (p profile) {
	last := 0
	for i, s := range steps {
		level := of(s)
		switch {
		case i == 0:
		case level == p.steps[last].level:
			continue
		case last == pool.MostSteps:
			// When the level changes more often, the lowest of the last levels counts.
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

// covered returns the share of want that is there over a time, after debited is subtracted: the integral of
// the lesser of want and what is left, over want times the time. If the time is 0, it is the share at that
// moment.
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

// leftOf returns how much of want there is.
func leftOf(level, debited, want int64) int64 { return max(0, min(level-debited, want)) }
