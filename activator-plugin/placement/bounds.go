package placement

import (
	"math"
	"math/bits"
	"sync/atomic"
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
	// The other may be less than its bound.
	return between{one: i, other: i - 1, most: i, ofOne: part + on*at, ofOther: -less * (1 - roundedBy), more: less}
}

// ofRising is of what there is more and more of, where it is no more than if it went straight from one to the next.
func ofRising(lasts time.Duration) between {
	i := boundBefore(lasts)
	if i == 0 || i == boundLengths-1 {
		return between{ofOne: 1}
	}
	at, next := float64(boundLength[i]), float64(boundLength[i+1])
	way := (float64(lasts) - at) / (next - at)
	return between{one: i, other: i + 1, ofOne: (1 - way) * at / float64(lasts), ofOther: way * next / float64(lasts)}
}

// bounds are those of one node. They are in one line of cache, so that who compares many nodes fetches no more
// of those that cannot be the best. While they are set, some may be those of before.
type bounds struct {
	words [boundLengths / 4]atomic.Uint64
}

// A bound has 16 bits: of the level the 11 that are highest, rounded up, and by how many they are to be
// shifted.
const (
	levelBits    = 11
	mostShift    = 30
	unknownBound = math.MaxUint16
	roundedBy    = 1.0 / (1 << (levelBits - 1)) // at most
)

// forget says that nothing is known.
func (b *bounds) forget() {
	for i := range b.words {
		b.words[i].Store(math.MaxUint64)
	}
}

// set takes in the level of each length.
func (b *bounds) set(levels [boundLengths]int64) {
	for i := range b.words {
		var word uint64
		for j := range 4 {
			word |= uint64(roundedUp(levels[4*i+j])) << (16 * j)
		}
		b.words[i].Store(word)
	}
}

// of is the bound of a number, and less than 0 while nothing is known.
func (b *bounds) of(i int) int64 {
	v := uint16(b.words[i/4].Load() >> (16 * (i % 4)))
	if v == unknownBound {
		return -1
	}
	return int64(v&(1<<levelBits-1)) << (v >> levelBits)
}

func roundedUp(level int64) uint16 {
	level = max(level, 0)
	shift := max(0, bits.Len64(uint64(level))-levelBits)
	if shift > mostShift {
		return mostShift<<levelBits | (1<<levelBits - 1) // more than there is of anything
	}
	level = (level + 1<<shift - 1) >> shift
	if level == 1<<levelBits {
		level, shift = level/2, shift+1
	}
	return uint16(shift)<<levelBits | uint16(level)
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
