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
//
// With a debit d there is F(want+d) - F(d), where F(x) is how much of x there is. F is concave and F(0) is 0:
// so that is no more than want/(want+d) of F(want+d).
func (c *column) most(slot int32, of *between, want, own int64) float64 {
	one := c.bounds[of.one][slot].Load()
	if one < 0 {
		return -1
	}
	if want <= 0 {
		return 1
	}
	// The built-in min of floating-point numbers asks for more than what is needed here.
	level := of.ofOne*float64(one) + of.ofOther*float64(c.bounds[of.other][slot].Load()) + of.more
	if most := float64(c.bounds[of.most][slot].Load()); level > most {
		level = most
	}
	level *= float64(int64(1) << c.shift)
	debited := c.debited[slot].Load() + own
	if debited <= 0 {
		if level >= float64(want) {
			return 1
		}
		return level / float64(want)
	}
	left := int64(c.bounds[0][slot].Load())<<c.shift - debited
	switch {
	case left <= 0:
		return 0
	case float64(left)*float64(want+debited) <= level*float64(want):
		return float64(min(left, want)) / float64(want)
	case level >= float64(want+debited):
		return 1
	default:
		return level / float64(want+debited)
	}
}
