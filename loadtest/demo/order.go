package main

import (
	"cmp"
	"math/rand/v2"
	"slices"

	"libra.dev/libra/loadtest/demo/evaluation"
)

// from is the rest of a phase that has been set up: the blocks from a number on.
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

// first is the number of the first block: those of earlier draws have those before it.
func (ph phase) first() int {
	n := ph.most()
	for _, c := range ph.combinations {
		for _, t := range c.arms {
			n = min(n, t.done+1)
		}
	}
	return n
}

// most is the number of the last block.
func (ph phase) most() int {
	n := 0
	for _, c := range ph.combinations {
		for _, t := range c.arms {
			n = max(n, t.blocks)
		}
	}
	return n
}

// inOrder are the combinations that have blocks of a number, in random order, those with
// bystanders after the others, as these come and go.
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

// shuffled are the arms that have a block of a number, in random order, but that those for
// which Libra's parts are set alike follow one another: to set them takes longer than a gap.
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
