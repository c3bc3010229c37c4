package placement

import (
	"math"
	"slices"
	"sync/atomic"
)

// board holds upper bounds on what many nodes have, and what is debited from that, side by side: a reader that
// compares nodes goes through memory in order.
type board struct {
	chunks atomic.Pointer[[]*chunk]
	// compared says that the bounds have been read since they were last set.
	compared atomic.Bool

	// The picture's mu guards these. Slots count from 1.
	used int32
	free []int32
	anew bool // whether to set the bounds again
}

// chunkSlots is how many slots a chunk has: few, so that a domain with few pods takes little memory.
const chunkSlots = 32

type chunk struct{ cpu, memory column }

// column holds the bounds and debits of one resource.
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

// take returns a slot about which nothing is known.
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

// release frees a slot that nobody holds any more.
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

// columns returns the chunk that has a slot, and where the slot is in it.
func columns(chunks []*chunk, slot int32) (c *chunk, at int32) {
	return chunks[uint32(slot-1)/chunkSlots], (slot - 1) % chunkSlots
}

// forget marks the account as one about which nothing is known.
func (a account) forget() {
	for i := range a.bounds {
		a.bounds[i][a.slot].Store(-1)
	}
}

// set stores the bound of each length. Readers may see a mix of old and new bounds meanwhile.
func (a account) set(levels [boundLengths]int64) {
	for i, level := range levels {
		a.bounds[i][a.slot].Store(int32(min((level+1<<a.shift-1)>>a.shift, math.MaxInt32)))
	}
}

// most returns an upper bound on the share of want that is there over the time of the split, after the debits and
// own are subtracted. It is negative if nothing is known.
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
	// Nobody wants more than all of this.
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

// left returns an upper bound on the average of what is left after debited is subtracted. Without the debits there
// would be at most average on average, and never more than highest. The rest is a convex function of the level, so
// it lies at most on the straight line from nothing to what is left of the highest.
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

// capped skips what the built-in min does for NaN and for the sign of 0.
func capped(level, most float64) float64 {
	if level > most {
		return most
	}
	return level
}
