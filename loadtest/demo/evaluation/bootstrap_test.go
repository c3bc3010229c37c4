package evaluation

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestTheSameMeasuredTwiceIsExactlyOne(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := synthetic{
			seed: rapid.Uint64().Draw(t, "seed"), blocks: rapid.IntRange(2, 3).Draw(t, "blocks"), requests: rapid.IntRange(20, 60).Draw(t, "requests"),
			arms: map[string]float64{Stock: 1, Again: 1},
		}.data(busy)
		c := compared(t, d)
		for _, f := range []figure{p50Short, p95Computing, p99Computing, meanSlowdown, worstP99} {
			if r := c.ratio(busy, Again, Stock, f); r.value != 1 || r.low != 1 || r.high != 1 {
				t.Fatalf("%s of the same again is %v", f.name, r)
			}
		}
	})
}

func TestTheOrderOfBlocksDoesNotMatter(t *testing.T) {
	d := everything(synthetic{seed: 3, blocks: 2, requests: 40, arms: allArms(), noise: 0.3})
	want := compared(t, d).results().Metrics
	mixed := d
	mixed.Blocks = slices.Clone(d.Blocks)
	rand.New(rand.NewPCG(1, 2)).Shuffle(len(mixed.Blocks), func(i, j int) {
		mixed.Blocks[i], mixed.Blocks[j] = mixed.Blocks[j], mixed.Blocks[i]
	})
	got := compared(t, mixed).results().Metrics
	for name, v := range want {
		if g := got[name]; g != v && (g == g || v == v) {
			t.Errorf("%s is %v, and %v with the blocks in another order", name, v, g)
		}
	}
}

// A 95 % interval misses in one case of twenty: of many evaluations with a known ratio,
// about as many miss it, also if all of a block is faster or slower than another.
func TestIntervalsHoldTheRatioThatIsKnown(t *testing.T) {
	const evaluations, ratio = 60, 0.8
	arms := map[string]float64{Stock: 1, Libra: ratio}
	same := synthetic{blocks: 4, requests: 300, arms: arms, noise: 0.5}
	differing := synthetic{blocks: 8, requests: 100, arms: arms, noise: 0.1, blockNoise: 0.2}
	for _, c := range []struct {
		of     synthetic
		figure figure
	}{{same, meanSlowdown}, {same, p50Short}, {same, p95Computing}, {same, p99Computing}, {differing, meanSlowdown}} {
		f, outside := c.figure, 0
		for seed := range uint64(evaluations) {
			c.of.seed = seed
			d := c.of.data(busy)
			r := compared(t, d).ratio(busy, Libra, Stock, f)
			if r.low > r.value || r.high < r.value || r.high-r.low > 0.4 {
				t.Fatalf("%s, seed %d: %v", f.name, seed, r)
			}
			if ratio < r.low || ratio > r.high {
				outside++
			}
		}
		if outside > evaluations/5 {
			t.Errorf("%s, with blocks that differ by ±%v: %d of %d intervals are beside the ratio", f.name, c.of.blockNoise, outside, evaluations)
		}
	}
}

func TestOneSliceHasNoInterval(t *testing.T) {
	d := synthetic{seed: 1, blocks: 1, requests: 20, arms: map[string]float64{Stock: 1, Libra: 0.5}}.data(busy, combination{PartBystanders, 40, 10})
	for i := range d.Blocks {
		d.Blocks[i].Length = 4 * time.Second
	}
	c := compared(t, d)
	if r := c.ratio(busy, Libra, Stock, p99Computing); !r.measured() || r.low == r.low || r.known(1) {
		t.Errorf("of one slice: %v", r)
	}
	if r := c.ratio(combination{PartBystanders, 40, 10}, Libra, Stock, bystanderCPU); !r.measured() || r.low == r.low {
		t.Errorf("of one block: %v", r)
	}
}

// A figure with one value for each block has an interval from three blocks on.
func TestTotalsAreComparedByBlock(t *testing.T) {
	for _, c := range []struct {
		totals, base []float64
		want         interval
	}{
		{[]float64{2, 4}, []float64{1, 2}, interval{value: 2, low: none, high: none}},
		{[]float64{2, 4, 2}, []float64{1, 2, 1}, interval{value: 2, low: 2, high: 2}},
		{[]float64{1, 2, 3, none}, []float64{2, 2, 2, 9}, interval{value: 1, low: 0.29, high: 3.46}}, // e to the power of ±4.303/2/√3
		{[]float64{0, 0, 0}, []float64{1, 2, 1}, interval{value: 0, low: none, high: none}},
		{[]float64{1, 2, 3}, []float64{0, 0, 0}, unmeasured},
	} {
		got := ratioOfTotals(c.totals, c.base)
		for _, v := range [][2]float64{{got.value, c.want.value}, {got.low, c.want.low}, {got.high, c.want.high}} {
			if math.Abs(v[0]-v[1]) > 0.005 || math.IsNaN(v[0]) != math.IsNaN(v[1]) {
				t.Errorf("%v over %v is %v, want %v", c.totals, c.base, got, c.want)
			}
		}
	}
}

func TestResamplesDrawAsManySlicesAsThereAre(t *testing.T) {
	d := newDraws(7, 3, 4)
	if len(d) != 1+2*resamples {
		t.Fatalf("%d draws", len(d))
	}
	for i, times := range d {
		sum := 0
		for _, n := range times {
			if sum += int(n); i == 0 && n != 1 {
				t.Errorf("what was measured has a slice %d times", n)
			}
		}
		if sum != 12 {
			t.Errorf("draw %d has %d slices", i, sum)
		}
		if i > resamples && (!alike(times[:4]) || !alike(times[4:8]) || !alike(times[8:])) {
			t.Errorf("draw %d has not all of a block: %v", i, times)
		}
	}
}

func alike(times []uint16) bool { return slices.Min(times) == slices.Max(times) }
