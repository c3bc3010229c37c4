package evaluation

import (
	"math"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// The speed-up is that of equation 1: its denominator is the time of the same request in
// stock.
func TestSpeedupsByTheirDefinition(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := synthetic{
			seed: rapid.Uint64().Draw(t, "seed"), blocks: rapid.IntRange(1, 3).Draw(t, "blocks"), requests: rapid.IntRange(1, 60).Draw(t, "requests"),
			arms: map[string]float64{Stock: 1, Libra: rapid.Float64Range(0.2, 3).Draw(t, "libra")}, noise: 0.5,
		}.data(busy)
		sum, n, worst := 0.0, 0, math.Inf(1)
		for _, b := range d.Blocks {
			for _, other := range d.Blocks {
				if b.Arm != Libra || other.Arm != Stock || b.Number != other.Number {
					continue
				}
				for i := range b.Requests {
					v := 1 - b.Requests[i].Milliseconds/other.Requests[i].Milliseconds
					sum, n, worst = sum+v, n+1, min(worst, v)
				}
			}
		}
		mean, least := compared(t, d).speedup(busy, Libra)
		if math.Abs(mean.value-sum/float64(n)) > 1e-9 || math.Abs(least-worst) > 1e-9 {
			t.Fatalf("speed-up %v, worst %v; by its definition %v and %v", mean.value, least, sum/float64(n), worst)
		}
		if mean.value < least || mean.value >= 1 {
			t.Fatalf("a speed-up of %v, where the worst is %v and nothing takes no time", mean.value, least)
		}
	})
}

func TestLoansAreWhatWasAddedToCounters(t *testing.T) {
	before := Loans{Volume{1, 10}, Volume{2, 20}, Volume{3, 30}, 4}
	after := Loans{Volume{1.5, 11}, Volume{2, 22}, Volume{1, 5}, 9}
	want := Loans{Volume{0.5, 1}, Volume{0, 2}, Volume{1, 5}, 5}
	if got := after.Since(before); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// A report of ablations alone begins with them, because no goal can be judged.
func TestAblationsAloneAreReportedAsSuch(t *testing.T) {
	arms := map[string]float64{Stock: 1, Libra: 0.5, "libra_fifo": 0.6}
	w := write(t, synthetic{seed: 1, blocks: 2, requests: 60, noise: 0.1, arms: arms}.data(
		combination{PartAblations, 90, 10}, combination{PartBystanders, 90, 10}))
	for _, text := range []string{w.markdown, w.text} {
		if !strings.Contains(text, "What each part of Libra is worth") || strings.Contains(text, "Libra's goals") {
			t.Errorf("the report of ablations is %s", text)
		}
	}
	if strings.Count(w.text, "The libra_fifo") != 2 {
		t.Errorf("the ablation is not told once a part: %s", w.text)
	}
	if got := w.metrics["ablation_mean_slowdown_libra_fifo_90_10"]; math.Abs(got-1.2) > 0.1 {
		t.Errorf("without its order Libra is %v of itself, want 1.2", got)
	}
}
