package placement

import (
	"math"
	"math/bits"
	"time"
)

// What there is on average over a time is bounded at some lengths of it: bound 0 is of any, and so the most that
// there ever is; bound i of shortest times the square root of two to the power of i-1.
const (
	boundLengths = 24
	shortest     = 50 * time.Millisecond

	// boundedFor is how long bounds of idle CPU hold, of which there is more and more.
	boundedFor = 250 * time.Millisecond
)

var boundLength = func() (lengths [boundLengths]time.Duration) {
	for i := 1; i < boundLengths; i++ {
		lengths[i] = time.Duration(float64(shortest) * math.Pow(2, float64(i-1)/2))
	}
	return lengths
}()

// boundBefore is that of the greatest length that is no more than this, or 0.
func boundBefore(lasts time.Duration) int {
	if lasts < shortest {
		return 0
	}
	i := min(2*bits.Len64(uint64(lasts/shortest))-1, boundLengths-1)
	if i+1 < boundLengths && lasts >= boundLength[i+1] {
		i++
	}
	return i
}

// between is how the bound of a length follows from those beside it: as so much of one and of another, and no
// more than a third.
type between struct {
	one, other, most     int
	rough                int // a bound by itself
	ofOne, ofOther, more float64
}

// ofFalling is of what there is less and less of. What there is over a time, times its length, rises more and
// more slowly with that: so it is no more than if it went on as between the last two before.
func ofFalling(lasts time.Duration) between {
	i := boundBefore(lasts)
	if i == 0 {
		return between{ofOne: 1}
	}
	at, last := float64(boundLength[i]), float64(boundLength[i-1])
	part := at / float64(lasts)
	on := (1 - part) / (at - last)
	less := on * last
	// The other may be less than its bound, by two that it is rounded.
	return between{one: i, other: i - 1, most: i, rough: i, ofOne: part + on*at, ofOther: -less, more: 2 * less}
}

// ofRising is of what there is more and more of, where it is no more than if it went straight from one to the next.
func ofRising(lasts time.Duration) between {
	i := boundBefore(lasts)
	if i == 0 || i == boundLengths-1 {
		return between{ofOne: 1}
	}
	at, next := float64(boundLength[i]), float64(boundLength[i+1])
	way := (float64(lasts) - at) / (next - at)
	return between{one: i, other: i + 1, rough: i + 1, ofOne: (1 - way) * at / float64(lasts), ofOther: way * next / float64(lasts)}
}

// falling are the bounds of times that begin at a moment or later.
func (p *profile) falling(from moment) (levels [boundLengths]int64) {
	if p.rises {
		return p.anyway(from)
	}
	return p.averages(from)
}

// rising are those of times that begin within boundedFor of a moment.
func (p *profile) rising(from moment) (levels [boundLengths]int64) {
	if p.falls {
		return p.anyway(from)
	}
	return p.averages(from + moment(boundedFor))
}

// anyway is no less than what there is, whatever that is like.
func (p *profile) anyway(from moment) (levels [boundLengths]int64) {
	most := p.mostFrom(from)
	for i := range levels {
		levels[i] = most
	}
	return levels
}

// averages are what there is over the lengths, from a moment on, or a little more.
func (p *profile) averages(from moment) (levels [boundLengths]int64) {
	most := p.mostFrom(from)
	levels[0] = most
	step, at, sum := 0, from, 0.0
	for i := 1; i < boundLengths; i++ {
		for end := from + moment(boundLength[i]); at < end; {
			for p.steps[step].until <= at {
				step++
			}
			until := min(p.steps[step].until, end)
			sum += float64(p.steps[step].level) * float64(until-at)
			at = until
		}
		levels[i] = min(most, int64(sum/float64(boundLength[i]))+1)
	}
	return levels
}

// mostFrom is the most that there is from a moment on.
func (p *profile) mostFrom(from moment) (most int64) {
	for i := range p.steps {
		if p.steps[i].until > from {
			most = max(most, p.steps[i].level)
		}
		if p.steps[i].until == never {
			break
		}
	}
	return most
}
