package evaluation

import (
	"math"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"libra.dev/libra/loadtest/demo/report"
)

func compared(t interface{ Fatal(...any) }, d Data) *comparison {
	c, err := compare(d)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

var busy = combination{PartRequests, 90, 10}

// bruteForce computes a figure as its definition says.
func bruteForce(d Data, arm string, numbers []int, f func(r Request, alone Alone, waits bool) (float64, bool), percentile float64) float64 {
	var values []float64
	for _, b := range d.Blocks {
		if b.Arm != arm || !slices.Contains(numbers, b.Number) {
			continue
		}
		for _, r := range b.Requests {
			for _, a := range d.Alone {
				if a.Function == r.Function && a.Input == r.Input {
					if v, ok := f(r, a, r.Function == "wait"); ok {
						values = append(values, v)
					}
				}
			}
		}
	}
	if percentile > 0 {
		return report.Percentile(values, percentile)
	}
	sum := 0.0
	for _, v := range values {
		sum += v
	}
	return sum / float64(len(values))
}

func TestFiguresAreWhatTheirDefinitionsSay(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := synthetic{
			seed: rapid.Uint64().Draw(t, "seed"), blocks: rapid.IntRange(1, 3).Draw(t, "blocks"), requests: rapid.IntRange(30, 90).Draw(t, "requests"),
			arms: map[string]float64{Stock: 1, Libra: 0.7}, noise: 0.5,
		}.data(busy)
		c := compared(t, d)
		numbers := c.numbers(busy, Libra)
		for _, want := range []struct {
			figure figure
			of     func(r Request, alone Alone, waits bool) (float64, bool)
		}{
			{p95Computing, func(r Request, _ Alone, waits bool) (float64, bool) { return r.Milliseconds, !waits }},
			{p99Computing, func(r Request, _ Alone, waits bool) (float64, bool) { return r.Milliseconds, !waits }},
			{p50Short, func(r Request, a Alone, waits bool) (float64, bool) {
				return r.Milliseconds / a.Milliseconds, !waits && a.CPUMilliseconds <= 100
			}},
			{p99SlowdownComputing, func(r Request, a Alone, waits bool) (float64, bool) { return r.Milliseconds / a.Milliseconds, !waits }},
			{meanSlowdown, func(r Request, a Alone, _ bool) (float64, bool) { return r.Milliseconds / a.Milliseconds, true }},
			{goodput, func(r Request, a Alone, _ bool) (float64, bool) {
				if r.Milliseconds > 5*a.Milliseconds {
					return 0, true
				}
				return 1, true
			}},
		} {
			got, want, name := c.value(busy, Libra, want.figure).value, bruteForce(d, Libra, numbers, want.of, want.figure.percentile), want.figure.name
			if math.Abs(got-want) > 1e-9*want {
				t.Fatalf("%s is %v; by its definition, %v", name, got, want)
			}
		}
		// The worst function, and the pairs that are slower.
		worst, function := 0.0, ""
		for _, name := range syntheticFunctions {
			of := func(r Request, _ Alone, _ bool) (float64, bool) { return r.Milliseconds, r.Function == name }
			if v := bruteForce(d, Libra, numbers, of, 99) / bruteForce(d, Stock, numbers, of, 99); v > worst {
				worst, function = v, name
			}
		}
		if got := c.ratio(busy, Libra, Stock, worstP99); math.Abs(got.value-worst) > 1e-9 || got.function != function {
			t.Fatalf("the worst function is %s with %v; want %s with %v", got.function, got.value, function, worst)
		}
		slower := 0
		for _, b := range d.Blocks {
			for _, other := range d.Blocks {
				if b.Arm == Libra && other.Arm == Stock && b.Number == other.Number {
					for n := range b.Requests {
						if b.Requests[n].Milliseconds > 1.1*other.Requests[n].Milliseconds {
							slower++
						}
					}
				}
			}
		}
		if got, of := c.harmed(busy, Libra); got != slower || of != len(numbers)*len(d.Blocks[0].Requests) {
			t.Fatalf("%d of %d are slower; want %d", got, of, slower)
		}
	})
}

func TestAFailureCountsAsTheLongest(t *testing.T) {
	d := synthetic{seed: 1, blocks: 2, requests: 100, arms: map[string]float64{Stock: 1, Libra: 0.5}}.data(busy)
	longest := 0.0
	for i, b := range d.Blocks {
		for n, r := range b.Requests {
			longest = max(longest, r.Milliseconds)
			// A request that failed at once must not look fast.
			if b.Arm == Libra && n%10 == 0 {
				d.Blocks[i].Requests[n].Milliseconds, d.Blocks[i].Requests[n].Error = 1, "status 503"
			}
		}
	}
	c := compared(t, d)
	if got := c.value(busy, Libra, p95Computing).value; got != longest {
		t.Errorf("P95 with every tenth request failed is %v; want the longest of all, %v", got, longest)
	}
	answers, _ := c.answers(busy, Libra, c.numbers(busy, Libra), false)
	for _, a := range answers {
		if alone := c.alone[input{a.Function, a.Input}].Milliseconds; a.failed && math.Abs(a.slowdown-longest/alone) > 1e-9 {
			t.Errorf("a failed request that takes %v ms alone has the slow-down %v, want %v", alone, a.slowdown, longest/alone)
		}
	}
	if a, ok := c.maker(busy, Libra, p95Computing); !ok || a.took != longest {
		t.Errorf("P95 is made by %+v", a)
	}
	if got := c.value(busy, Libra, goodput).value; got > 0.9 {
		t.Errorf("goodput is %v with every tenth request failed", got)
	}
	if harmed, _ := c.harmed(busy, Libra); harmed != 20 {
		t.Errorf("%d requests are harmed; want the 20 that failed", harmed)
	}
	if got := c.results().Metrics["failed_requests"]; got != 20 {
		t.Errorf("failed_requests is %v, want 20", got)
	}
}

func TestWhatCannotBeComparedIsRefused(t *testing.T) {
	for name, spoil := range map[string]func(*Data){
		"another input":  func(d *Data) { d.Blocks[1].Requests[3].Input++ },
		"a lost request": func(d *Data) { d.Blocks[1].Requests = d.Blocks[1].Requests[:5] },
		"a block twice":  func(d *Data) { d.Blocks = append(d.Blocks, d.Blocks[0]) },
		"no length":      func(d *Data) { d.Blocks[0].Length = 0 },
	} {
		d := synthetic{seed: 1, blocks: 1, requests: 20, arms: map[string]float64{Stock: 1, Libra: 1}}.data(busy)
		spoil(&d)
		if err := WriteReport(t.TempDir(), t.Output(), "", d); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestArmsAreComparedOverTheBlocksThatBothHave(t *testing.T) {
	d := synthetic{seed: 1, blocks: 4, requests: 50, arms: map[string]float64{Stock: 1, Libra: 0.5}}.data(busy)
	// Stock lacks blocks 1 and 2, in which Libra is very slow.
	d.Blocks = slices.DeleteFunc(d.Blocks, func(b Block) bool { return b.Arm == Stock && b.Number <= 2 })
	for _, b := range d.Blocks {
		for n := range b.Requests {
			if b.Number <= 2 {
				b.Requests[n].Milliseconds *= 100
			}
		}
	}
	if got := compared(t, d).ratio(busy, Libra, Stock, p99Computing); math.Abs(got.value-0.5) > 1e-9 {
		t.Errorf("the ratio is %v, want 0.5", got)
	}
}

func TestPartialSlicesAreSlicesToo(t *testing.T) {
	d := synthetic{seed: 1, blocks: 2, requests: 30, arms: map[string]float64{Stock: 1}}.data(busy)
	for i := range d.Blocks {
		d.Blocks[i].Length = 18 * time.Second // four slices, the last one shorter; some requests are due after it
	}
	answers, units := compared(t, d).answers(busy, Stock, []int{1, 2}, false)
	if units != 8 || len(answers) != 60 {
		t.Errorf("%d slices, %d requests; want 8 and 60", units, len(answers))
	}
	for _, a := range answers {
		if a.slice < 0 || a.slice >= units {
			t.Errorf("request %d is in slice %d of %d", a.N, a.slice, units)
		}
	}
}

// Two parts may have the same load and number of pods, but must stay apart.
func TestPartsOfOneLoadAreApart(t *testing.T) {
	bystanders := combination{PartBystanders, busy.load, busy.pods}
	d := synthetic{seed: 1, blocks: 2, requests: 40, arms: map[string]float64{Stock: 1}}.data(busy, bystanders)
	for _, b := range d.Blocks {
		if b.Part == PartBystanders {
			for n := range b.Requests {
				b.Requests[n].Milliseconds *= 10
			}
		}
	}
	c := compared(t, d)
	if one, other := c.value(busy, Stock, p99Computing).value, c.value(bystanders, Stock, p99Computing).value; math.Abs(other/one-10) > 1e-9 {
		t.Errorf("P99 is %v in one part and %v in the other, which is ten times as slow", one, other)
	}
}
