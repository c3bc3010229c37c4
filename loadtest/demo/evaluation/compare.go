package evaluation

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
)

// combination is a load and a number of pods, of some part of the evaluation.
type combination struct {
	part       string
	load, pods int
}

func (k combination) String() string {
	said := fmt.Sprintf("%d %% load", k.load)
	switch {
	case k.part == PartPlacement && k.load == 0:
		return "all loads"
	case k.part == PartPlacement:
		return said + fmt.Sprintf(", %d pods a function", k.pods)
	case k.pods == 0:
		return said
	case k.pods == 1:
		return said + ", 1 pod"
	}
	return said + fmt.Sprintf(", %d pods", k.pods)
}

// input is an input of a function.
type input struct {
	function string
	number   int
}

// comparison is Data, arranged for lookups, and the results computed from it.
type comparison struct {
	Data
	blocks map[combination]map[string][]Block // by arm, in the order of their numbers
	alone  map[input]Alone
	waits  map[string]bool
	// longest is what failed requests count as, by combination.
	longest map[combination]longest
	// joined, known and drawn cache results: many tables ask for the same ones.
	joined map[string]joined
	known  map[string][]float64
	drawn  map[string]draws
}

// longest has the longest response times of all arms of a combination.
type longest struct{ took, service float64 }

// compare arranges the measurements, and returns an error if they cannot be compared.
func compare(d Data) (*comparison, error) {
	c := &comparison{
		Data: d, blocks: map[combination]map[string][]Block{}, alone: map[input]Alone{}, waits: map[string]bool{},
		longest: map[combination]longest{}, joined: map[string]joined{}, known: map[string][]float64{}, drawn: map[string]draws{},
	}
	for _, a := range d.Alone {
		c.alone[input{a.Function, a.Input}] = a
	}
	for _, f := range d.Functions {
		c.waits[f.Name] = f.Waits
	}
	for _, b := range d.Blocks {
		k := combination{b.Part, b.Load, b.Pods}
		if c.blocks[k] == nil {
			c.blocks[k] = map[string][]Block{}
		}
		c.blocks[k][b.Arm] = append(c.blocks[k][b.Arm], b)
		c.longest[k] = c.longest[k].with(b)
	}
	for _, k := range c.combinations() {
		if err := c.check(k); err != nil {
			return nil, fmt.Errorf("%s, %s: %w", k.part, k, err)
		}
	}
	return c, nil
}

// check sorts the blocks of a combination, and returns an error if they cannot be compared.
func (c *comparison) check(k combination) error {
	type schedule struct {
		number int
		base   string
	}
	schedules := map[schedule]Block{}
	for _, arm := range c.armsOf(k) {
		blocks := c.blocks[k][arm]
		slices.SortFunc(blocks, func(a, b Block) int { return cmp.Compare(a.Number, b.Number) })
		for i, b := range blocks {
			if b.Length <= 0 {
				return fmt.Errorf("block %d of the arm %s is %v long; want more than 0", b.Number, arm, b.Length)
			}
			if i > 0 && blocks[i-1].Number == b.Number {
				return fmt.Errorf("the arm %s has two blocks with the number %d", arm, b.Number)
			}
			of := schedule{number: b.Number}
			if k.part == PartPlacement { // the CPU that the platform leaves was measured for each source of loans
				of.base = c.base(arm)
			}
			other, ok := schedules[of]
			if !ok {
				schedules[of] = b
				continue
			}
			if !slices.EqualFunc(b.Requests, other.Requests, sameRequest) {
				return fmt.Errorf("in block %d, the arms %s and %s did not have the same requests", b.Number, arm, other.Arm)
			}
			if b.Bystander != nil && other.Bystander != nil && !slices.EqualFunc(b.Bystander.Requests, other.Bystander.Requests, sameRequest) {
				return fmt.Errorf("in block %d, the bystanders of the arms %s and %s did not have the same requests", b.Number, arm, other.Arm)
			}
		}
	}
	return nil
}

func sameRequest(a, b Request) bool {
	return a.N == b.N && a.Function == b.Function && a.Set == b.Set && a.Input == b.Input
}

// with returns the greater of l and a block's values.
func (l longest) with(b Block) longest {
	for _, r := range b.Requests {
		l.took = max(l.took, r.Milliseconds)
	}
	if b.Bystander != nil {
		for _, r := range b.Bystander.Requests {
			l.service = max(l.service, r.Milliseconds)
		}
	}
	return l
}

var partsInOrder = []string{PartRequests, PartBystanders, PartCost, PartMemory, PartAblations, PartDemo, PartPlacement}

// combinations returns all combinations that were measured, in the order of the report.
func (c *comparison) combinations() []combination {
	return slices.SortedFunc(maps.Keys(c.blocks), func(a, b combination) int {
		return cmp.Or(cmp.Compare(slices.Index(partsInOrder, a.part), slices.Index(partsInOrder, b.part)),
			cmp.Compare(a.part, b.part), cmp.Compare(a.pods, b.pods), cmp.Compare(a.load, b.load))
	})
}

// of returns the combinations of a part.
func (c *comparison) of(part string) []combination {
	return slices.DeleteFunc(c.combinations(), func(k combination) bool { return k.part != part })
}

// armsOf returns the arms of a combination, in the order of the report.
func (c *comparison) armsOf(k combination) []string {
	place := func(name string) int {
		if i := slices.IndexFunc(c.Arms, func(a Arm) bool { return a.Name == name }); i >= 0 {
			return i
		}
		return len(c.Arms)
	}
	return slices.SortedFunc(maps.Keys(c.blocks[k]), func(a, b string) int {
		return cmp.Or(cmp.Compare(place(a), place(b)), cmp.Compare(a, b))
	})
}

// has reports whether an arm was measured in a combination.
func (c *comparison) has(k combination, arm string) bool { return len(c.blocks[k][arm]) > 0 }

// title returns an arm's name in the report.
func (c *comparison) title(arm string) string {
	for _, a := range c.Arms {
		if a.Name == arm && a.Title != "" {
			return a.Title
		}
	}
	return arm
}

// functions returns the names of the functions that were called in a combination, without
// their sets.
func (c *comparison) functions(k combination) []string {
	names := map[string]bool{}
	for _, blocks := range c.blocks[k] {
		for _, b := range blocks {
			for _, r := range b.Requests {
				names[r.Function] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(names))
}

// numbers returns the numbers of an arm's blocks, and common those that two arms have.
func (c *comparison) numbers(k combination, arm string) []int {
	var numbers []int
	for _, b := range c.blocks[k][arm] {
		numbers = append(numbers, b.Number)
	}
	return numbers
}

func (c *comparison) common(k combination, arm, base string) []int {
	theirs := c.numbers(k, base)
	return slices.DeleteFunc(c.numbers(k, arm), func(n int) bool { return !slices.Contains(theirs, n) })
}

// selected returns an arm's blocks with these numbers, in order.
func (c *comparison) selected(k combination, arm string, numbers []int) []Block {
	var blocks []Block
	for _, b := range c.blocks[k][arm] {
		if slices.Contains(numbers, b.Number) {
			blocks = append(blocks, b)
		}
	}
	return blocks
}

var none = math.NaN()
