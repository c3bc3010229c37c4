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

// split is of a time in two parts: over the first there is no more than a bound says, and over the rest no more than
// follows from that bound and the one of the next length.
type split struct {
	first, next int
	rough       int     // a bound of the whole time
	falls       bool    // what there is; or else it rises
	ofFirst     float64 // which share of the time the first part is
	// Over the rest there is no more than the next one's bound by timesNext, less that of the first, and added.
	timesNext, less, added float64
}

// undivided is of a time of which only the most that there ever is is known. It has no rest to bound the first part by.
var undivided = split{falls: true, ofFirst: 1}

// splitAt has the time up to the length of one bound for the first part, and the rest is as from there to the next.
func splitAt(lasts time.Duration, first, rough int) split {
	at, next := float64(boundLength[first]), float64(boundLength[first+1])
	p := split{first: first, next: first + 1, rough: rough, ofFirst: at / float64(lasts), timesNext: next / (next - at), less: at / (next - at)}
	// There may be less than the first's bound, by two that it is rounded.
	p.added = 2 * p.less
	return p
}

// ofFalling is of what there is less and less of: after the last bound there is no more than just before.
func ofFalling(lasts time.Duration) split {
	i := boundBefore(lasts)
	if i == 0 {
		return undivided
	}
	p := splitAt(lasts, i-1, i)
	p.falls = true
	return p
}

// ofRising is of what there is more and more of: until the end there is no more than from there to the next bound.
func ofRising(lasts time.Duration) split {
	i := boundBefore(lasts)
	if i == 0 || i == boundLengths-1 {
		return undivided
	}
	return splitAt(lasts, i, i+1)
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
