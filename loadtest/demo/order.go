package main

import (
	"cmp"
	"math/rand/v2"
	"slices"

	"libra.dev/libra/loadtest/demo/evaluation"
)

// from returns the rest of a phase that is set up: the blocks from number on.
func (ph phase) from(number int) phase {
	rest := phase{name: ph.name, draw: ph.draw}
	for _, c := range ph.combinations {
		var turns []turn
		for _, t := range c.arms {
			if t.blocks >= number {
				t.done = number - 1
				turns = append(turns, t)
			}
		}
		if c.arms = turns; len(turns) > 0 {
			rest.combinations = append(rest.combinations, c)
		}
	}
	return rest
}

// first returns the number of the first block: earlier draws have the lower numbers.
func (ph phase) first() int {
	n := ph.most()
	for _, c := range ph.combinations {
		for _, t := range c.arms {
			n = min(n, t.done+1)
		}
	}
	return n
}

// most returns the number of the last block.
func (ph phase) most() int {
	n := 0
	for _, c := range ph.combinations {
		for _, t := range c.arms {
			n = max(n, t.blocks)
		}
	}
	return n
}

// inOrder returns the combinations that have blocks with this number, in random order, but
// those with bystanders last, because bystanders are started and stopped for them.
func (ph phase) inOrder(rng *rand.Rand, number int) []combination {
	there := ph.from(number).combinations
	rng.Shuffle(len(there), func(i, j int) { there[i], there[j] = there[j], there[i] })
	slices.SortStableFunc(there, func(a, b combination) int {
		return before(a.part == evaluation.PartBystanders, b.part == evaluation.PartBystanders)
	})
	return there
}

func before(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}

// shuffled returns the arms that have a block with this number, in random order, except
// that arms with the same settings of Libra's parts follow one another: changing the
// settings takes longer than a gap.
func shuffled(rng *rand.Rand, c combination, number int) []arm {
	var found []arm
	for _, t := range c.arms {
		if number <= t.blocks {
			found = append(found, armNamed(t.arm))
		}
	}
	rng.Shuffle(len(found), func(i, j int) { found[i], found[j] = found[j], found[i] })
	first := map[parts]int{}
	for i, a := range found {
		if _, ok := first[a.parts]; !ok {
			first[a.parts] = i
		}
	}
	slices.SortStableFunc(found, func(a, b arm) int { return cmp.Compare(first[a.parts], first[b.parts]) })
	return found
}
