package evaluation

import (
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// orders are policies with one request in each of some rounds; stock's takes 100 ms.
func orders(ms map[string][]float64) Data {
	var d Data
	for _, p := range []string{Stock, Again, Libra, NoSafeguard, Freyr, "vpa"} {
		for round, t := range ms[p] {
			d.Runs = append(d.Runs, run(p, Mixed, round+1, t))
		}
	}
	with := dataOf(d.Runs...)
	with.Seed, with.Trace = 1, "another trace"
	return with
}

func TestAgreement(t *testing.T) {
	here := map[string][]float64{Stock: {100, 100}, Again: {102, 99}, Libra: {60, 62}, "vpa": {80, 82}, Freyr: {70, 70}}
	for name, c := range map[string]struct {
		there       map[string][]float64
		swapped     []Swap
		said, never string
	}{
		"the same order, of fewer policies": {
			map[string][]float64{Stock: {100}, Libra: {50}, "vpa": {90}}, nil, "same order: libra, vpa, stock", "slower there",
		},
		"two within the noise": {
			map[string][]float64{Stock: {100, 100}, Libra: {85, 70}, "vpa": {76, 75}},
			[]Swap{{Faster: Libra, Slower: "vpa", Gap: 0.20, OthersGap: 0.02, WithinNoise: true}},
			"is not known", "more than the noise",
		},
		"two beyond it": {
			map[string][]float64{Stock: {100}, Libra: {90}, "vpa": {40}},
			[]Swap{{Faster: Libra, Slower: "vpa", Gap: 0.20, OthersGap: 0.50}},
			"under libra big 2 times, under vpa big 2 times; in the other evaluation under libra big 1 times", "is not known",
		},
	} {
		t.Run(name, func(t *testing.T) {
			d, other := orders(here), orders(c.there)
			compared := Compare(d)
			a := Agree(d, compared, other)
			if !slices.EqualFunc(a.Swapped, c.swapped, func(x, y Swap) bool {
				return x.Faster == y.Faster && x.Slower == y.Slower && x.WithinNoise == y.WithinNoise &&
					approximately(x.Gap, y.Gap) && approximately(x.OthersGap, y.OthersGap)
			}) {
				t.Errorf("swapped: %+v, want %+v", a.Swapped, c.swapped)
			}
			compared.Agreement = &a
			text := strings.Join(d.agreement(compared).Text, "\n")
			if !strings.Contains(text, c.said) || strings.Contains(text, c.never) {
				t.Errorf("the report says:\n%s\nwant %q and never %q", text, c.said, c.never)
			}
			if got := ResultsOf(d, compared).Metrics["order_swaps"]; got != float64(len(c.swapped)) {
				t.Errorf("order_swaps is %v", got)
			}
		})
	}
}

func TestAnEvaluationAgreesWithItself(t *testing.T) {
	evaluations := rapid.Custom(func(t *rapid.T) Data {
		ms := map[string][]float64{Stock: {100, 100}}
		for _, p := range []string{Again, Libra, NoSafeguard, Freyr, "vpa"} {
			ms[p] = rapid.SliceOfN(rapid.SampledFrom([]float64{50, 60, 70, 80, 90, 110}), 0, 2).Draw(t, p)
		}
		return orders(ms)
	})
	rapid.Check(t, func(t *rapid.T) {
		one, other := evaluations.Draw(t, "one"), evaluations.Draw(t, "other")
		if a := Agree(one, Compare(one), one); len(a.Swapped) > 0 || !slices.Contains(a.Policies, Stock) {
			t.Fatalf("with itself: %+v", a)
		}
		for _, s := range Agree(one, Compare(one), other).Swapped {
			if s.Gap < 0 || s.OthersGap < 0 {
				t.Fatalf("a gap below zero: %+v", s)
			}
		}
	})
}
