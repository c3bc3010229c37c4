package main

import (
	"math"
	"testing"
)

func TestSlowdownIsOfAllRequestsTogether(t *testing.T) {
	for name, test := range map[string]struct {
		times, base []float64
		want        float64
	}{
		"as long":                    {[]float64{100, 300}, []float64{200, 200}, 0},
		"one of two twice as long":   {[]float64{100, 200}, []float64{100, 100}, 0.5},
		"faster than what is normal": {[]float64{90, 90}, []float64{100, 100}, -0.1},
	} {
		t.Run(name, func(t *testing.T) {
			if got := slowdown(test.times, test.base, 1).Estimate; math.Abs(got-test.want) > 1e-9 {
				t.Errorf("slow-down %v, want %v", got, test.want)
			}
		})
	}
}

// A delay of all requests of a round is no slow-down.
func TestSlowdownIsOfRounds(t *testing.T) {
	got := slowdown([]float64{110, 220, 330, 440}, []float64{100, 200, 300, 400}, 1)
	for _, v := range []float64{got.Estimate, got.Low, got.High} {
		if math.Abs(v-0.1) > 1e-9 {
			t.Errorf("slow-down %+v, want 0.1 and no doubt", got)
		}
	}
}
