package evaluation

import "testing"

func TestSlowdownIsOfThePairsThatLent(t *testing.T) {
	stock := []Run{run(Stock, Mixed, 1, 100, 100, 100), run(Stock, Mixed, 2, 110, 100, 100), run(Stock, Mixed, 3, 120, 100, 100)}
	for name, c := range map[string]struct {
		runs []Run
		want map[string]float64
	}{
		"medians of the runs": {
			[]Run{lending(run(Libra, Mixed, 1, 110, 300, 10), 0), lending(run(Libra, Mixed, 2, 900, 300, 10), 0), lending(run(Libra, Mixed, 3, 121, 300, 10), 0)},
			map[string]float64{"slowdown_p99_libra_mixed": 0.1, "worst_slowdown_libra_mixed": 0.1},
		},
		"lent in one of the runs": {
			[]Run{lending(run(Libra, Mixed, 1, 110, 200, 10)), lending(run(Libra, Mixed, 2, 110, 200, 10), 1), lending(run(Libra, Mixed, 3, 110, 200, 10))},
			map[string]float64{"worst_slowdown_libra_mixed": 1},
		},
		"nothing lent": {
			[]Run{lending(run(Libra, Mixed, 1, 110, 200, 10)), run(Again, Mixed, 1, 110, 200, 10)},
			map[string]float64{"worst_slowdown_libra_mixed": none, "slowdown_p99_again_mixed": none},
		},
		"stock again, and who keeps no record: those of Libra": {
			[]Run{lending(run(Libra, Mixed, 1, 110, 100, 110), 2), run(Again, Mixed, 1, 300, 300, 105), run("vpa", Mixed, 1, 900, 900, 50)},
			map[string]float64{"slowdown_p99_libra_mixed": 0.1, "slowdown_p99_again_mixed": 0.05, "worst_slowdown_vpa_mixed": -0.5},
		},
		"who keeps a record: its own": {
			[]Run{lending(run(Libra, Mixed, 1, 110, 100, 110), 2), lending(run(Freyr, Mixed, 1, 110, 150, 100), 1)},
			map[string]float64{"slowdown_p99_freyr_mixed": 0.5},
		},
	} {
		t.Run(name, func(t *testing.T) { check(t, dataOf(append(stock, c.runs...)...), c.want) })
	}
}

func TestAnInputThatRepeatsIsOnePair(t *testing.T) {
	stock, libra := run(Stock, Mixed, 1, 100, 200, 300), lending(run(Libra, Mixed, 1, 400, 500, 800), 2)
	for i := range 3 {
		stock.Results[i].Input, libra.Results[i].Input = 5, 5
		stock.Results[i].Answer, libra.Results[i].Answer = "same", "same"
	}
	d := dataOf(stock, libra)
	check(t, d, map[string]float64{"worst_slowdown_libra_mixed": 1.5, "failed_requests": 0})
	if pairs := Compare(d).of(Libra, Mixed).Pairs; len(pairs) != 1 {
		t.Errorf("pairs %v", pairs)
	}
}

func TestSpeedupIsThePapers(t *testing.T) {
	d := dataOf(run(Stock, Mixed, 1, 100, 100, 100), run(Libra, Mixed, 1, 50, 100, 300))
	check(t, d, map[string]float64{"speedup_p50_libra_mixed": 0, "speedup_p99_libra_mixed": 0.5})
}
