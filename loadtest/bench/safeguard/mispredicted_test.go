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
		"fewer to compare with":      {[]float64{110, 110, 110}, []float64{100}, 0.1},
		"faster than what is normal": {[]float64{90}, []float64{100, 100}, -0.1},
	} {
		t.Run(name, func(t *testing.T) {
			if got := slowdown(test.times, test.base); math.Abs(got-test.want) > 1e-9 {
				t.Errorf("slow-down %v, want %v", got, test.want)
			}
		})
	}
}
