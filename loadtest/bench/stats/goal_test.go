package stats

import (
	"math"
	"testing"

	"pgregory.net/rapid"
)

func TestARatioHoldsByItsEstimateIfItsIntervalSaysEnough(t *testing.T) {
	none := math.NaN()
	same := Interval{1, 0.99, 1.01}
	most, least := Goal{Bound: 1.1}, Goal{Bound: 0.9, AtLeast: true}
	for name, c := range map[string]struct {
		goal         Goal
		ratio, again Interval
		tolerance    float64
		want         Verdict
		why          string
	}{
		"below":                      {most, Interval{1.05, 1.02, 1.08}, same, Tolerance, Holds, ""},
		"above":                      {most, Interval{1.15, 1.12, 1.18}, same, Tolerance, DoesNotHold, ""},
		"the estimate decides":       {most, Interval{1.09, 1.06, 1.13}, same, Tolerance, Holds, ""},
		"not the friendly end":       {most, Interval{1.12, 1.09, 1.15}, same, Tolerance, DoesNotHold, ""},
		"wide, with a friendly end":  {most, Interval{1.22, 1.0, 1.4}, same, ToleranceP99, NotKnown, "the interval is wider than ±10 %"},
		"wide, and well below":       {most, Interval{0.5, 0.4, 0.6}, same, ToleranceP99, NotKnown, "the interval is wider than ±10 %, and all of it within the goal"},
		"wide, and well above":       {most, Interval{1.5, 1.2, 1.9}, same, ToleranceP99, NotKnown, "the interval is wider than ±10 %, and all of it beyond the goal"},
		"narrow enough for a P99":    {most, Interval{1.05, 0.97, 1.15}, same, ToleranceP99, Holds, ""},
		"too wide for anything else": {most, Interval{1.05, 0.97, 1.15}, same, Tolerance, NotKnown, "the interval is wider than ±5 %"},
		"enough":                     {least, Interval{0.95, 0.92, 0.98}, same, Tolerance, Holds, ""},
		"too little":                 {least, Interval{0.89, 0.87, 0.91}, same, Tolerance, DoesNotHold, ""},
		"stock differs":              {most, Interval{1, 1, 1}, Interval{1.08, 1.07, 1.09}, Tolerance, NotKnown, "stock again is 1.08 of stock, more than 5 % away"},
		"stock was measured once":    {most, Interval{1, 1, 1}, Interval{none, none, none}, Tolerance, NotKnown, "stock was not measured again"},
		"one block":                  {most, Interval{1, none, none}, same, Tolerance, NotKnown, "the interval is wider than ±5 %"},
		"nothing":                    {most, Interval{none, none, none}, same, Tolerance, NotKnown, "not measured"},
		"over nothing":               {most, Interval{math.Inf(1), none, none}, same, Tolerance, NotKnown, "not measured"},
	} {
		if got, why := c.goal.Ratio(c.ratio, c.again, c.tolerance); got != c.want || why != c.why {
			t.Errorf("%s: %s, %q; want %s, %q", name, got, why, c.want, c.why)
		}
	}
}

func TestAnAbsoluteFigureHoldsByAllOfItsInterval(t *testing.T) {
	none := math.NaN()
	most, least := Goal{Bound: 20}, Goal{Bound: 20_000, AtLeast: true}
	for name, c := range map[string]struct {
		goal Goal
		in   Interval
		want Verdict
	}{
		"all below":           {most, Interval{12, 8, 19}, Holds},
		"at the bound":        {most, Exactly(20), Holds},
		"all above":           {most, Interval{30, 21, 50}, DoesNotHold},
		"rather below":        {most, Interval{12, 8, 21}, NotKnown},
		"rather above":        {most, Interval{22, 19, 30}, NotKnown},
		"all of it enough":    {least, Interval{25_000, 20_001, 30_000}, Holds},
		"rather enough":       {least, Interval{25_000, 19_000, 30_000}, NotKnown},
		"all of it too few":   {least, Interval{15_000, 14_000, 16_000}, DoesNotHold},
		"measured only once":  {most, Interval{12, none, none}, NotKnown},
		"not measured":        {most, Interval{none, none, none}, NotKnown},
		"not measured, least": {least, Interval{none, none, none}, NotKnown},
	} {
		if got, why := c.goal.Absolute(c.in); got != c.want || (why == "") != (got != NotKnown) {
			t.Errorf("%s: %s, %q; want %s", name, got, why, c.want)
		}
	}
}

// A goal holds if the estimate reaches it, and for an absolute figure every value of the interval.
func TestNothingHoldsByAFriendlyEnd(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		of := rapid.Float64Range(0.01, 100)
		g := Goal{of.Draw(t, "bound"), rapid.Bool().Draw(t, "at least")}
		in := Interval{Low: of.Draw(t, "low")}
		in.High = rapid.Float64Range(in.Low, 200).Draw(t, "high")
		in.Estimate = rapid.Float64Range(in.Low, in.High).Draw(t, "estimate")
		within := rapid.Float64Range(in.Low, in.High).Draw(t, "within")
		tolerance := rapid.SampledFrom([]float64{Tolerance, ToleranceP99}).Draw(t, "tolerance")
		switch v, _ := g.Absolute(in); {
		case v == Holds && !g.reached(within), v == DoesNotHold && g.reached(within):
			t.Errorf("%v of %+v %s, in which is %v", g, in, v, within)
		}
		switch v, _ := g.Ratio(in, Exactly(1), tolerance); {
		case v != NotKnown && (v == Holds) != g.reached(in.Estimate):
			t.Errorf("%v of ratio %+v %s", g, in, v)
		case v != NotKnown && in.High-in.Low > 2*tolerance*in.Estimate:
			t.Errorf("%v of ratio %+v %s, wider than ±%v", g, in, v, tolerance)
		}
	})
}
