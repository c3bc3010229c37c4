package stats

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"libra.dev/libra/loadtest/demo/report"
)

func ones(n int) []int { return slices.Repeat([]int{1}, n) }

// Counting a block twice equals having its values twice.
func TestPercentileIsThatOfTheRepeatedValues(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		blocks := rapid.SliceOfN(rapid.SliceOfN(rapid.Float64Range(0, 10), 0, 20), 1, 6).Draw(t, "blocks")
		counts := rapid.SliceOfN(rapid.IntRange(0, 3), len(blocks), len(blocks)).Draw(t, "counts")
		percent := rapid.SampledFrom([]float64{0, 1, 50, 95, 99, 100}).Draw(t, "percent")
		var all []float64
		for i, values := range blocks {
			all = append(all, slices.Repeat(values, counts[i])...)
		}
		got, want := Pool(blocks).Percentile(counts, percent), report.Percentile(all, percent)
		if got != want && !(math.IsNaN(got) && math.IsNaN(want)) {
			t.Errorf("P%v of %v, %v times: %v, want %v", percent, blocks, counts, got, want)
		}
	})
}

func TestBootstrap(t *testing.T) {
	random := rand.New(rand.NewPCG(7, 7))
	blocks := make([][]float64, 20)
	for i := range blocks {
		for range 200 {
			blocks[i] = append(blocks[i], 10+random.NormFloat64())
		}
	}
	p := Pool(blocks)
	median := func(counts []int) float64 { return p.Percentile(counts, 50) }
	in := Bootstrap(len(blocks), 1, median)
	if in.Estimate != p.Percentile(ones(len(blocks)), 50) {
		t.Errorf("the estimate %v is not that of the blocks as they are", in.Estimate)
	}
	if in.Low >= in.Estimate || in.High <= in.Estimate || in.High-in.Low > 0.2 {
		t.Errorf("interval %+v around 10 of 4,000 values with deviation 1", in)
	}
	if again := Bootstrap(len(blocks), 1, median); again != in {
		t.Errorf("with the same seed %+v, and then %+v", in, again)
	}
	if other := Bootstrap(len(blocks), 2, median); other == in {
		t.Errorf("another seed drew the same: %+v", in)
	}
}

// An interval over equal blocks has no width.
func TestBootstrapOfEqualBlocks(t *testing.T) {
	p := Pool(slices.Repeat([][]float64{{1, 2, 3}}, 5))
	got := Bootstrap(5, 1, func(counts []int) float64 { return p.Percentile(counts, 99) })
	if want := (Interval{3, 3, 3}); got != want {
		t.Errorf("Bootstrap() = %+v, want %+v", got, want)
	}
}

func TestMean(t *testing.T) {
	if m := Mean([]float64{1, 2, 3, 4, 100}); m.Estimate != 22 || m.Low >= 22 || m.High <= 22 {
		t.Errorf("mean %+v, want 22 in an interval", m)
	}
	if m := Mean([]float64{2, 2, 2}); m != Exactly(2) {
		t.Errorf("mean of what does not differ %+v", m)
	}
	if m := Mean([]float64{1, 2}); m.Estimate != 1.5 || !math.IsNaN(m.Low) || !math.IsNaN(m.High) {
		t.Errorf("mean of two values %+v, want no interval", m)
	}
}

// However few the values, the interval of their mean misses in one case of twenty.
func TestMeanHoldsWhatIsKnown(t *testing.T) {
	const often = 4000
	random := rand.New(rand.NewPCG(7, 7))
	for _, n := range []int{3, 4, 12, 31, 50} {
		missed := 0
		for range often {
			values := make([]float64, n)
			for i := range values {
				values[i] = 5 + random.NormFloat64()
			}
			if m := Mean(values); m.Low > 5 || m.High < 5 {
				missed++
			}
		}
		if share := float64(missed) / often; share < 0.04 || share > 0.06 {
			t.Errorf("of %d values, a share of %v misses the mean", n, share)
		}
	}
}

// One block is always drawn, and cannot differ from itself.
func TestOneBlockHasNoInterval(t *testing.T) {
	got := Percentile([]float64{1, 2, 3}, 50, 3, 1)
	if got.Estimate != 2 || !math.IsNaN(got.Low) || !math.IsNaN(got.High) {
		t.Errorf("got %+v", got)
	}
	if got := Percentile(nil, 50, 3, 1); !math.IsNaN(got.Estimate) {
		t.Errorf("of nothing: %+v", got)
	}
}

// A slow stretch is drawn, or not drawn, as a whole.
func TestPercentileDrawsSuccessiveValuesTogether(t *testing.T) {
	values := slices.Repeat([]float64{1}, 200)
	for i := range 20 {
		values[100+i] = 9
	}
	one, twenty := Percentile(values, 95, 1, 1), Percentile(values, 95, 20, 1)
	if want := Exactly(9); one != want {
		t.Errorf("one by one: %+v, want %+v", one, want)
	}
	if want := (Interval{9, 1, 9}); twenty != want {
		t.Errorf("twenty at once: %+v, want %+v", twenty, want)
	}
}

func TestOrders(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		blocks := rapid.IntRange(0, 30).Draw(t, "blocks")
		arms := rapid.IntRange(1, 4).Draw(t, "arms")
		seed := rapid.Uint64().Draw(t, "seed")
		orders := Orders(blocks, arms, seed)
		if len(orders) != blocks {
			t.Fatalf("%d orders of %d blocks", len(orders), blocks)
		}
		places := make([][]int, arms) // by arm and place
		for i := range places {
			places[i] = make([]int, arms)
		}
		for _, order := range orders {
			if diff := cmp.Diff(ones(arms), countsOf(order, arms)); diff != "" {
				t.Fatalf("order %v does not have each arm once", order)
			}
			for place, arm := range order {
				places[arm][place]++
			}
		}
		cycle := len(permutations(arms))
		for arm := range places {
			if blocks%cycle == 0 && slices.Max(places[arm]) != slices.Min(places[arm]) {
				t.Errorf("arm %d was in its places %v times in %d whole cycles", arm, places[arm], blocks/cycle)
			}
		}
		if diff := cmp.Diff(orders, Orders(blocks, arms, seed)); diff != "" {
			t.Errorf("the same seed gave other orders: %s", diff)
		}
	})
}

func countsOf(order []int, arms int) []int {
	counts := make([]int, arms)
	for _, arm := range order {
		counts[arm]++
	}
	return counts
}
