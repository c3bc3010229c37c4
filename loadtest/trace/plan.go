package trace

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"
)

// Bounds of a plan's rate, in requests per minute: those of the paper's sets.
const (
	MinPerMinute = 10
	MaxPerMinute = 300
)

// Options says what Plan makes of a trace.
type Options struct {
	Seed uint64
	// PerMinute is the mean rate, MinPerMinute to MaxPerMinute.
	PerMinute float64
	// Length is the length of the plan. From and Minutes choose the part of the trace that is
	// compressed into it, in minutes since the trace's first. 0 minutes means all that follow.
	Length        time.Duration
	From, Minutes int
	// Functions are the functions to call: Mixed, Related, Unrelated, or some others.
	Functions []string
	// Sample is how many of the trace's functions take part, drawn at random from those called in that
	// part; 0 means all.
	Sample int
	// Skew says how the functions share the rate: in proportion to their calls in the trace to this
	// power. 1 is as in the trace, where one in a hundred can have four calls in five, and 0 is
	// equally.
	Skew float64
}

func (o Options) check(t Trace) error {
	last := t.Minutes - 1
	var errs []error
	add := func(bad bool, format string, args ...any) {
		if bad {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	add(!(o.PerMinute >= MinPerMinute && o.PerMinute <= MaxPerMinute), "%v requests per minute; it must be %d to %d", o.PerMinute, MinPerMinute, MaxPerMinute)
	add(o.Length < time.Second || o.Length > 24*time.Hour, "a length of %v; it must be 1s to 24h", o.Length)
	add(o.From < 0 || o.From > last, "the part begins at minute %d of the trace; it must be 0 to %d", o.From, last)
	add(o.Minutes < 0 || o.Minutes > t.Minutes-o.From, "a part of %d minutes from minute %d on; the trace has %d minutes", o.Minutes, o.From, t.Minutes)
	add(o.Sample < 0, "a sample of %d functions; it must be 0 (all) or more", o.Sample)
	add(!(o.Skew >= 0 && o.Skew <= 1), "a skew of %v; it must be 0 to 1", o.Skew)
	add(len(o.Functions) == 0, "no function to call; name at least one of %v", Mixed)
	for i, f := range o.Functions {
		add(!slices.Contains(Mixed, f), "function %q; it must be one of %v", f, Mixed)
		add(slices.Contains(o.Functions[:i], f), "function %q is named twice", f)
	}
	return errors.Join(errs...)
}

// Invocation is a planned request.
type Invocation struct {
	AtMS     int64
	Function string
	// Seed chooses among inputs that are alike.
	Seed uint32
	// Place is where the input is between the smallest (0) and the largest (1) of
	// its function, on a logarithmic scale.
	Place float64
	// DurationMS is what the call took in the trace.
	DurationMS float64
	// Of is the ID of the trace's function.
	Of string
}

// Plan makes invocations from a trace, in the order of their times.
//
//   - Mapping. The trace's functions, ordered by their invocations in the whole trace and then by ID,
//     are dealt to o.Functions back and forth: first to last, then last to first. So the busiest go to
//     different ones, whatever the rate and the part.
//   - Rate. Each function gets one of the round(PerMinute × Length) requests before any gets a second;
//     Skew divides the rest. A function's requests are taken from its calls in the trace at equal
//     distances, so that a burst stays a burst and a pause a pause.
//   - Time. A timer's calls in a minute are at equal distances, others at random. The whole is
//     compressed evenly.
//   - Input. A call's duration is drawn from its function's percentiles. Its place is where that
//     duration lies between the 5th and the 95th percentile of those drawn for the same target, on a
//     logarithmic scale: a call that took long gets a large input.
//
// The error names everything that is wrong with o or, if the part has fewer requests than asked, how
// many it can give.
func Plan(t Trace, o Options) ([]Invocation, error) {
	if err := o.check(t); err != nil {
		return nil, err
	}
	if o.Minutes == 0 {
		o.Minutes = t.Minutes - o.From
	}
	targets := deal(sample(t, o), t, o)
	calls := make([]int, len(targets))
	available := 0
	for i, target := range targets {
		calls[i] = target.calls
		available += target.calls
	}
	want := int(math.Round(o.PerMinute * o.Length.Minutes()))
	if want == 0 {
		return nil, fmt.Errorf("%v requests per minute for %v are less than one request; use a greater length or a higher rate", o.PerMinute, o.Length)
	}
	if want > available {
		return nil, fmt.Errorf("minutes %d to %d of the trace have %d invocations, but %v requests per minute for %v need %d; use more minutes or functions of the trace, or a lower rate",
			o.From, o.From+o.Minutes-1, available, o.PerMinute, o.Length, want)
	}
	var plan []Invocation
	for i, n := range apportion(calls, o.Skew, want) {
		plan = append(plan, targets[i].plan(n, o)...)
	}
	slices.SortStableFunc(plan, func(a, b Invocation) int { return cmp.Compare(a.AtMS, b.AtMS) })
	return plan, nil
}

// sample draws the functions that take part.
func sample(t Trace, o Options) []Function {
	var called []Function
	for _, f := range t.Functions {
		if f.total(o.From, o.From+o.Minutes) > 0 {
			called = append(called, f)
		}
	}
	if o.Sample == 0 || o.Sample >= len(called) {
		return called
	}
	slices.SortFunc(called, func(a, b Function) int { return cmp.Compare(a.ID, b.ID) })
	rng := randomFor(o.Seed, "sample")
	rng.Shuffle(len(called), func(i, j int) { called[i], called[j] = called[j], called[i] })
	return called[:o.Sample]
}

// target is one of our functions, with the trace's functions that are mapped to it.
type target struct {
	name      string
	functions []Function
	calls     int // in the part of the trace
}

func deal(functions []Function, t Trace, o Options) []target {
	targets := make([]target, len(o.Functions))
	for i, name := range o.Functions {
		targets[i].name = name
	}
	totals := map[string]int{}
	for _, f := range functions {
		totals[f.ID] = f.total(0, t.Minutes)
	}
	functions = slices.SortedFunc(slices.Values(functions), func(a, b Function) int {
		return cmp.Or(cmp.Compare(totals[b.ID], totals[a.ID]), cmp.Compare(a.ID, b.ID))
	})
	for rank, f := range functions {
		round, i := rank/len(targets), rank%len(targets)
		if round%2 == 1 {
			i = len(targets) - 1 - i
		}
		targets[i].functions = append(targets[i].functions, f)
		targets[i].calls += f.total(o.From, o.From+o.Minutes)
	}
	return targets
}

// apportion divides want requests in proportion to the calls to the power skew, giving none more than
// its calls (Adams' method: each gets one before any gets a second, and the one called more often
// comes first).
func apportion(calls []int, skew float64, want int) []int {
	shares := make([]int, len(calls))
	for range want {
		next, most := -1, -1.0
		for i, c := range calls {
			if shares[i] == c {
				continue
			}
			claim := math.Pow(float64(c), skew) / float64(shares[i])
			if claim > most || claim == most && c > calls[next] {
				next, most = i, claim
			}
		}
		shares[next]++
	}
	return shares
}

// plan picks n of the target's calls.
func (tg target) plan(n int, o Options) []Invocation {
	// Each target has its own random numbers, so that its plan stays the same with other targets, as
	// long as it has the same functions of the trace.
	if n == 0 {
		return nil
	}
	rng := randomFor(o.Seed, tg.name)
	var plan []Invocation
	before, taken, start := 0, 0, rng.IntN(tg.calls)
	for m := o.From; m < o.From+o.Minutes; m++ {
		calls := 0
		for _, f := range tg.functions {
			calls += int(f.PerMinute[m])
		}
		// The k-th request is the call number (k × all calls + start) / n.
		here := 0
		for taken+here < n && ((taken+here)*tg.calls+start)/n < before+calls {
			here++
		}
		for _, call := range distinct(rng, here, calls) {
			f, nth := tg.functionOf(call, m)
			at := rng.Float64()
			if f.Trigger == TriggerTimer {
				at = (float64(nth) + phase(f)) / float64(f.PerMinute[m])
			}
			ms := o.Length.Milliseconds()
			plan = append(plan, Invocation{
				AtMS:       min(int64((float64(m-o.From)+at)/float64(o.Minutes)*float64(ms)), ms-1),
				Function:   tg.name,
				Seed:       rng.Uint32(),
				DurationMS: f.Durations.At(rng.Float64()),
				Of:         f.ID,
			})
		}
		before, taken = before+calls, taken+here
	}
	place(plan)
	return plan
}

// functionOf returns the function that makes a target's call in a minute, and the call's number among
// that function's own.
func (tg target) functionOf(call, minute int) (Function, int) {
	for _, f := range tg.functions {
		if call < int(f.PerMinute[minute]) {
			return f, call
		}
		call -= int(f.PerMinute[minute])
	}
	panic(fmt.Sprintf("%s has no call %d more in minute %d", tg.name, call, minute))
}

// phase returns where in its period a timer calls, 0 to 1. It never changes.
func phase(f Function) float64 { return randomFor(0, f.ID).Float64() }

// distinct draws n of the numbers below limit, in increasing order.
func distinct(rng *rand.Rand, n, limit int) []int {
	drawn := map[int]bool{}
	for i := limit - n; i < limit; i++ {
		// Floyd's method: each subset is equally likely.
		if x := rng.IntN(i + 1); !drawn[x] {
			drawn[x] = true
		} else {
			drawn[i] = true
		}
	}
	numbers := make([]int, 0, n)
	for x := range drawn {
		numbers = append(numbers, x)
	}
	slices.Sort(numbers)
	return numbers
}

// place gives each invocation of one target its place.
func place(plan []Invocation) {
	if len(plan) == 0 {
		return
	}
	logs := make([]float64, len(plan))
	for i, inv := range plan {
		logs[i] = math.Log1p(inv.DurationMS)
	}
	q := quantilesOf(slices.Clone(logs))
	low, high := q[1], q[5]
	for i := range plan {
		at := 0.5
		if high > low {
			at = min(max((logs[i]-low)/(high-low), 0), 1)
		}
		plan[i].Place = at
	}
}
