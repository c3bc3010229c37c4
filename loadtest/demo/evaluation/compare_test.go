package evaluation

import (
	"math"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

var none = math.NaN()

func TestRatiosAreMediansOverTheRounds(t *testing.T) {
	for name, c := range map[string]struct {
		runs []Run
		want map[string]float64
	}{
		"one round": {
			[]Run{run(Stock, Mixed, 1, 100, 200, 400), run(Libra, Mixed, 1, 100, 150, 100)},
			map[string]float64{"p50_ratio_libra_mixed": 0.5, "p99_ratio_libra_mixed": 0.375, "p99_ratio_libra_mixed_min": 0.375, "runs": 1},
		},
		"each round against its own stock": {
			[]Run{
				run(Stock, Mixed, 1, 100), run(Libra, Mixed, 1, 50),
				run(Libra, Mixed, 2, 80), run(Stock, Mixed, 2, 100),
				run(Stock, Mixed, 3, 1000), run(Libra, Mixed, 3, 900),
			},
			map[string]float64{"p99_ratio_libra_mixed": 0.8, "p99_ratio_libra_mixed_min": 0.5, "p99_ratio_libra_mixed_max": 0.9, "runs": 3},
		},
		"two rounds: the mean of both": {
			[]Run{run(Stock, Mixed, 1, 100), run(Stock, Mixed, 2, 100), run(Libra, Mixed, 1, 50), run(Libra, Mixed, 2, 100)},
			map[string]float64{"p99_ratio_libra_mixed": 0.75},
		},
		"stock again": {
			[]Run{run(Stock, Mixed, 1, 100), run(Again, Mixed, 1, 101)},
			map[string]float64{"p99_ratio_again_mixed": 1.01, "p99_ratio_libra_mixed": none, "p99_ratio_stock_mixed": none},
		},
		"a round without stock does not count": {
			[]Run{run(Stock, Mixed, 1, 100), run(Libra, Mixed, 1, 50), run(Libra, Mixed, 2, 900)},
			map[string]float64{"p99_ratio_libra_mixed": 0.5, "runs": 2},
		},
		"no stock": {
			[]Run{run(Libra, Mixed, 1, 100)},
			map[string]float64{"p99_ratio_libra_mixed": none, "completion_ratio_libra_mixed": none, "slowdown_p99_libra_mixed": none},
		},
		"workloads apart": {
			[]Run{run(Stock, Related, 1, 100), run(Libra, Related, 1, 50), run(Stock, Mixed, 1, 100), run(Libra, Mixed, 1, 200)},
			map[string]float64{"p99_ratio_libra_related": 0.5, "p99_ratio_libra_mixed": 2, "p99_ratio_libra_unrelated": none},
		},
		"from the first request to the last answer": {
			[]Run{run(Stock, Mixed, 1, 5000, 100, 1000), run(Libra, Mixed, 1, 100, 100, 500)},
			map[string]float64{"completion_ratio_libra_mixed": 0.5},
		},
	} {
		t.Run(name, func(t *testing.T) { check(t, dataOf(c.runs...), c.want) })
	}
}

func TestRequestsThatWereNotAnsweredHaveNoResponseTime(t *testing.T) {
	failing := run(Libra, Mixed, 1, 50, 60_000)
	failing.Results[1].Error = "status 503"
	d := dataOf(run(Stock, Mixed, 1, 100, 100), failing)
	check(t, d, map[string]float64{"p99_ratio_libra_mixed": 0.5, "completion_ratio_libra_mixed": 0.05 / 1.1, "failed_requests": 1})
}

func TestEveryKindOfFailureCounts(t *testing.T) {
	for name, spoil := range map[string]func(d *Data){
		"an error":                      func(d *Data) { d.Runs[1].Results[0].Error = "status 503" },
		"one of stock":                  func(d *Data) { d.Runs[0].Results[1].Error = "status 503" },
		"a missing result":              func(d *Data) { d.Runs[1].Results = d.Runs[1].Results[:2] },
		"the first one missing":         func(d *Data) { d.Runs[0].Results = d.Runs[0].Results[1:] },
		"another answer than in stock":  func(d *Data) { d.Runs[1].Results[2].Answer = "something else" },
		"another answer in stock later": func(d *Data) { d.Runs[2].Results[2].Answer = "something else" },
	} {
		d := dataOf(run(Stock, Mixed, 1, 1, 2, 3), run(Libra, Mixed, 1, 1, 2, 3), run(Stock, Mixed, 2, 1, 2, 3))
		check(t, d, map[string]float64{"failed_requests": 0})
		spoil(&d)
		if c := Compare(d); len(c.Failures) != 1 || ResultsOf(d, c).Metrics["failed_requests"] != 1 {
			t.Errorf("%s: failures %v", name, c.Failures)
		}
	}
}

func TestARunWithoutAnyResultFailedAltogether(t *testing.T) {
	d := dataOf(Run{Policy: Libra, Workload: Mixed, Round: 1, Planned: 3})
	check(t, d, map[string]float64{"failed_requests": 3})
}

func TestTheSameInputOfAnotherWorkloadMayHaveAnotherAnswer(t *testing.T) {
	other := run(Stock, Related, 1, 100)
	other.Results[0].Answer = "of another input"
	check(t, dataOf(run(Stock, Mixed, 1, 100), other), map[string]float64{"failed_requests": 0})
}

func TestLateRequests(t *testing.T) {
	late := run(Libra, Mixed, 1, 100, 100)
	late.Results[0].LateMS, late.Results[1].LateMS = 50, 50.5
	check(t, dataOf(run(Stock, Mixed, 1, 100, 100), late), map[string]float64{"late_requests": 1})
}

func TestTheTableHasEveryPolicyAndFunction(t *testing.T) {
	libra := run(Libra, Mixed, 1, 100, 300)
	libra.Results[1].Function = "small"
	stock := run(Stock, Mixed, 1, 200, 300)
	stock.Results[1].Function = "small"
	var got []string
	for _, r := range Compare(dataOf(libra, stock)).Latencies {
		got = append(got, strings.Join([]string{r.Policy, r.Function}, " "))
		if r.Policy == Libra && r.Function == "big" && r.Ratio.P99 != 0.5 {
			t.Errorf("ratio of big: %v", r.Ratio)
		}
	}
	slices.Sort(got)
	want := []string{"libra ", "libra big", "libra small", "stock ", "stock big", "stock small"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestAPolicyThatTakesTheSameMultipleAlways(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		factor := rapid.Float64Range(0.1, 10).Draw(t, "factor")
		var runs []Run
		for round := range rapid.IntRange(1, 4).Draw(t, "rounds") {
			ms := rapid.SliceOfN(rapid.Float64Range(1, 10_000), 5, 5).Draw(t, "ms")
			multiplied := make([]float64, len(ms))
			for i, v := range ms {
				multiplied[i] = v * factor
			}
			// All have lent.
			runs = append(runs, run(Stock, Mixed, round+1, ms...), lending(run(Libra, Mixed, round+1, multiplied...), 0, 1, 2, 3, 4))
		}
		d := dataOf(runs...)
		metrics := ResultsOf(d, Compare(d)).Metrics
		for name, want := range map[string]float64{
			"p50_ratio_libra_mixed": factor, "p99_ratio_libra_mixed": factor,
			"p99_ratio_libra_mixed_min": factor, "p99_ratio_libra_mixed_max": factor,
			"slowdown_p99_libra_mixed": factor - 1, "worst_slowdown_libra_mixed": factor - 1, "speedup_p50_libra_mixed": 1 - factor,
		} {
			if !approximately(metrics[name], want) {
				t.Fatalf("%s: got %v, want %v", name, metrics[name], want)
			}
		}
	})
}
