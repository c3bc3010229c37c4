package placement

import (
	"math"
	"slices"
	"sync/atomic"
)

// board has what there is at most of many nodes, and what is debited of that, side by side: who compares them
// reads one stretch of memory after the other.
type board struct {
	chunks atomic.Pointer[[]*chunk]
	// compared says that bounds were looked at since they were last set.
	compared atomic.Bool

	// They are guarded by the picture's mu. Slots count from 1.
	used int32
	free []int32
	anew bool // whether the bounds are to be set
}

// A chunk is of so many slots, so that a domain with few pods takes little.
const chunkSlots = 32

type chunk struct{ cpu, memory column }

// column is of one resource.
type column struct {
	debited [chunkSlots]atomic.Int64
	// bounds are in units of two to the power of shift.
	bounds [boundLengths][chunkSlots]atomic.Int32
	shift  int
}

// account is one slot of a column.
type account struct {
	*column
	slot int32
}

// take returns a slot of which nothing is known.
func (b *board) take() int32 {
	if n := len(b.free); n > 0 {
		slot := b.free[n-1]
		b.free = b.free[:n-1]
		return slot
	}
	if b.used%chunkSlots == 0 {
		var chunks []*chunk
		if old := b.chunks.Load(); old != nil {
			chunks = slices.Clone(*old)
		}
		chunks = append(chunks, &chunk{memory: column{shift: 20}})
		b.chunks.Store(&chunks)
	}
	b.used++
	cpu, memory := b.accounts(b.used)
	cpu.forget()
	memory.forget()
	return b.used
}

// release gives a slot back that nobody has any more.
func (b *board) release(slot int32) {
	cpu, memory := b.accounts(slot)
	for _, a := range []account{cpu, memory} {
		a.forget()
		a.debited[a.slot].Store(0)
	}
	b.free = append(b.free, slot)
}

func (b *board) accounts(slot int32) (cpu, memory account) {
	c, at := columns(*b.chunks.Load(), slot)
	return account{&c.cpu, at}, account{&c.memory, at}
}

// columns are those that a slot is in.
func columns(chunks []*chunk, slot int32) (c *chunk, at int32) {
	return chunks[uint32(slot-1)/chunkSlots], (slot - 1) % chunkSlots
}

// forget says that nothing is known.
func (a account) forget() {
	for i := range a.bounds {
		a.bounds[i][a.slot].Store(-1)
	}
}

// set takes in the bound of each length. While it does, some may be those of before.
func (a account) set(levels [boundLengths]int64) {
	for i, level := range levels {
		a.bounds[i][a.slot].Store(int32(min((level+1<<a.shift-1)>>a.shift, math.MaxInt32)))
	}
}

// most is no less than which share of want there is, over a time, beside own; less than 0 where nothing is
// known.
func (c *column) most(slot int32, of *split, want, own int64) float64 {
	bound := c.bounds[of.first][slot].Load()
	if bound < 0 {
		return -1
	}
	if want <= 0 {
		return 1
	}
	unit := float64(int64(1) << c.shift)
	first := float64(bound)
	rest := (of.timesNext*float64(c.bounds[of.next][slot].Load()) - of.less*first + of.added) * unit
	first *= unit
	debited := float64(max(0, c.debited[slot].Load()+own))
	// More than all of this is not wanted.
	all := float64(want) + debited
	highest := capped(float64(c.bounds[0][slot].Load())*unit, all)
	inFirst, inRest := highest, highest
	if of.falls {
		inRest = capped(first, highest)
	} else {
		inFirst = capped(rest, highest)
	}
	return (of.ofFirst*left(first, inFirst, debited) + (1-of.ofFirst)*left(rest, inRest, debited)) / float64(want)
}

// left is no less than what there is on average beside what is debited, where without it there would be no more than
// this on average, and nowhere more than the highest: what is left of a level bends upwards, so it is no more than
// on the straight line from nothing to what is left of the highest.
func left(average, highest, debited float64) float64 {
	switch average = capped(average, highest); {
	case debited <= 0:
		return average
	case debited >= highest:
		return 0
	default:
		return average * (highest - debited) / highest
	}
}

// capped does without what the built-in min does for NaN and for the sign of 0.
func capped(level, most float64) float64 {
	if level > most {
		return most
	}
	return level
}
