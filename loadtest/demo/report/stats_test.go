package report

import (
	"math"
	"testing"

	"pgregory.net/rapid"
)

func TestPercentile(t *testing.T) {
	hundred := make([]float64, 200)
	for i := range hundred {
		hundred[i] = float64(200 - i)
	}
	for _, c := range []struct {
		name   string
		values []float64
		p      float64
		want   float64
	}{
		{"one value", []float64{7}, 50, 7},
		{"the lower of two", []float64{2, 1}, 50, 1},
		{"the middle of three", []float64{3, 1, 2}, 50, 2},
		{"few values: the largest", []float64{1, 2, 3}, 99, 3},
		{"99 of 200", hundred, 99, 198},
		{"the least", []float64{3, 1, 2}, 0, 1},
		{"the most", []float64{3, 1, 2}, 100, 3},
	} {
		if got := Percentile(c.values, c.p); got != c.want {
			t.Errorf("%s: got %v, want %v", c.name, got, c.want)
		}
	}
	if got := Percentile(nil, 50); !math.IsNaN(got) {
		t.Errorf("of no values: got %v, want NaN", got)
	}
}

func TestPercentileIsTheSmallestThatEnoughDoNotExceed(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		values := rapid.SliceOfN(rapid.Float64Range(0, 100), 1, 300).Draw(t, "values")
		p := float64(rapid.IntRange(1, 100).Draw(t, "p"))
		got := Percentile(values, p)
		below, upTo := 0, 0
		for _, v := range values {
			if v < got {
				below++
			}
			if v <= got {
				upTo++
			}
		}
		if n := float64(len(values)); float64(upTo)*100 < p*n || float64(below)*100 >= p*n {
			t.Errorf("%v %% of %d values: %v has %d below it, %d up to it", p, len(values), got, below, upTo)
		}
	})
}
