package placement

import (
	"math"
	"math/bits"
	"time"
)

// The average of what there is over a time is bounded for some lengths of time. Bound 0 is for any length, and so the
// most that there ever is; bound i is for shortest times the square root of two to the power of i-1.
const (
	boundLengths = 24
	shortest     = 50 * time.Millisecond

	// boundedFor is how long bounds of idle CPU hold, which rises over time.
	boundedFor = 250 * time.Millisecond
)

var boundLength = func() (lengths [boundLengths]time.Duration) {
	for i := 1; i < boundLengths; i++ {
		lengths[i] = time.Duration(float64(shortest) * math.Pow(2, float64(i-1)/2))
	}
	return lengths
}()

// boundBefore returns the number of the bound for the greatest length that is at most lasts, or 0.
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

// split divides a time in two parts. A bound holds for the first part; what holds for the rest follows from that bound
// and the one for the next length.
type split struct {
	first, next int
	rough       int     // a bound for the whole time
	falls       bool    // whether the level falls; if not, it rises
	ofFirst     float64 // the first part's share of the time
	// For the rest, the bound is timesNext times the next bound, minus less times the first, plus added.
	timesNext, less, added float64
}

// undivided is for a time for which only an overall bound is known. It has no rest that could bound the first part.
var undivided = split{falls: true, ofFirst: 1}

// splitAt ends the first part at the length of one bound, and bounds the rest like the time from there to the next
// length.
func splitAt(lasts time.Duration, first, rough int) split {
	at, next := float64(boundLength[first]), float64(boundLength[first+1])
	p := split{first: first, next: first + 1, rough: rough, ofFirst: at / float64(lasts), timesNext: next / (next - at), less: at / (next - at)}
	// The first's bound is subtracted, and rounding may have raised it by two.
	p.added = 2 * p.less
	return p
}

// ofFalling returns the split for a level that falls: after a bound's length there is no more than just before it.
func ofFalling(lasts time.Duration) split {
	i := boundBefore(lasts)
	if i == 0 {
		return undivided
	}
	p := splitAt(lasts, i-1, i)
	p.falls = true
	return p
}

// ofRising returns the split for a level that rises: to the end of the time there is no more than to the next bound's
// length.
func ofRising(lasts time.Duration) split {
	i := boundBefore(lasts)
	if i == 0 || i == boundLengths-1 {
		return undivided
	}
	return splitAt(lasts, i, i+1)
}

// falling returns the bounds for times that begin at a moment or later.
func (p *profile) falling(from moment) (levels [boundLengths]int64) {
	if p.rises {
		return p.anyway(from)
	}
	return p.averages(from)
}

// rising returns the bounds for times that begin within boundedFor of a moment.
func (p *profile) rising(from moment) (levels [boundLengths]int64) {
	if p.falls {
		return p.anyway(from)
	}
	return p.averages(from + moment(boundedFor))
}

// anyway returns bounds that hold whether the level rises or falls.
func (p *profile) anyway(from moment) (levels [boundLengths]int64) {
	most := p.mostFrom(from)
	for i := range levels {
		levels[i] = most
	}
	return levels
}

// averages returns the averages over the lengths from a moment on, or a little more.
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

// mostFrom returns the most that there is from a moment on.
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
