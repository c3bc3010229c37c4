package trace

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"unicode/utf8"

	"libra.dev/libra/loadtest/demo/schedule"
	"libra.dev/libra/loadtest/functions/inputs"
)

// SizeClass is a third of the range of a function's input sizes, on a logarithmic
// scale.
type SizeClass string

// The size classes. Any is for functions whose demand follows the content of
// their inputs.
const (
	Small  SizeClass = "small"
	Medium SizeClass = "medium"
	Large  SizeClass = "large"
	Any    SizeClass = "any"
)

func classOf(place float64) SizeClass {
	switch {
	case place < 1.0/3:
		return Small
	case place < 2.0/3:
		return Medium
	}
	return Large
}

// Entry is one request of a schedule, as k6 replays it: the demo's request, and
// the fields by which the results are told apart.
type Entry struct {
	schedule.Request
	SizeClass SizeClass `json:"size_class"`
	// Input is the number of the input. Entries with the same function and number
	// send the same input.
	Input int `json:"input"`
}

// Draw makes the input with a number, which always gives the same input.
type Draw func(function string, number int) (inputs.Input, error)

// maxInline is the largest body, in bytes, that is written into the schedule,
// because k6 parses an entry before it sends it.
const maxInline = 64 << 10

// Fill gives each invocation one of perFunction inputs of its function: where
// demand follows the size, one of the three nearest to its place; otherwise any.
// The invocation's seed chooses.
//
// Fill appends bodies that are neither short text nor cut from the corpus to the
// corpus. It returns the entries, and the longer corpus that their offsets refer
// to.
func Fill(plan []Invocation, perFunction int, draw Draw, corpus []byte) ([]Entry, []byte, error) {
	if perFunction < 1 {
		return nil, nil, fmt.Errorf("the number of inputs per function is %d; it must be 1 or more", perFunction)
	}
	c := catalogue{
		draw: draw, perFunction: perFunction, corpus: slices.Clip(corpus),
		drawn: map[key]inputs.Input{}, bySize: map[string][]key{}, requests: map[key]schedule.Request{},
	}
	entries := make([]Entry, len(plan))
	for n, inv := range plan {
		e, err := c.choose(inv)
		if err != nil {
			return nil, nil, fmt.Errorf("request %d: %w", n, err)
		}
		e.N, e.AtMS, e.Function = n, inv.AtMS, inv.Function
		entries[n] = e
	}
	return entries, c.corpus, nil
}

// key names an input.
type key struct {
	function string
	number   int
}

// catalogue has the inputs drawn so far.
type catalogue struct {
	draw        Draw
	perFunction int
	corpus      []byte
	drawn       map[key]inputs.Input
	// bySize has a function's inputs from the smallest to the largest.
	bySize map[string][]key
	// requests has the requests that send the chosen inputs.
	requests map[key]schedule.Request
}

func (c *catalogue) choose(inv Invocation) (Entry, error) {
	k, class := key{inv.Function, int(inv.Seed) % c.perFunction}, Any
	if slices.Contains(Related, inv.Function) {
		var err error
		if k, class, err = c.nearest(inv); err != nil {
			return Entry{}, err
		}
	}
	r, err := c.request(k)
	return Entry{Request: r, SizeClass: class, Input: k.number}, err
}

// nearest chooses an input by its size.
func (c *catalogue) nearest(inv Invocation) (key, SizeClass, error) {
	sorted, err := c.sorted(inv.Function)
	if err != nil {
		return key{}, "", err
	}
	size := func(i int) float64 { return float64(len(c.drawn[sorted[i]].Body)) }
	smallest, spread := size(0), math.Log(size(len(sorted)-1)/size(0))
	near, _ := slices.BinarySearchFunc(sorted, smallest*math.Exp(spread*inv.Place), func(k key, size float64) int {
		return cmp.Compare(float64(len(c.drawn[k].Body)), size)
	})
	i := min(max(near+int(inv.Seed%3)-1, 0), len(sorted)-1)
	class := Medium
	if spread > 0 {
		class = classOf(math.Log(size(i)/smallest) / spread)
	}
	return sorted[i], class, nil
}

func (c *catalogue) sorted(function string) ([]key, error) {
	if keys, ok := c.bySize[function]; ok {
		return keys, nil
	}
	var keys []key
	for n := range c.perFunction {
		k := key{function, n}
		in, err := c.input(k)
		if err != nil {
			return nil, err
		}
		if len(in.Body) == 0 {
			return nil, fmt.Errorf("input %d of %s is empty; the demand of this function follows the size, so no input may be empty", n, function)
		}
		keys = append(keys, k)
	}
	slices.SortStableFunc(keys, func(a, b key) int { return cmp.Compare(len(c.drawn[a].Body), len(c.drawn[b].Body)) })
	c.bySize[function] = keys
	return keys, nil
}

func (c *catalogue) input(k key) (inputs.Input, error) {
	if in, ok := c.drawn[k]; ok {
		return in, nil
	}
	in, err := c.draw(k.function, k.number)
	if err == nil {
		c.drawn[k] = in
	}
	return in, err
}

func (c *catalogue) request(k key) (schedule.Request, error) {
	if r, ok := c.requests[k]; ok {
		return r, nil
	}
	in, err := c.input(k)
	if err != nil {
		return schedule.Request{}, err
	}
	r := schedule.Request{Size: len(in.Body), Expect: in.Expect}
	switch {
	case in.Cut:
		r.Offset = in.Offset
	case len(in.Body) <= maxInline && utf8.Valid(in.Body):
		r.Body = string(in.Body)
	default:
		r.Offset = len(c.corpus)
		c.corpus = append(c.corpus, in.Body...)
	}
	c.requests[k] = r
	return r, nil
}
