package evaluation

import (
	"math"
	"strings"
	"testing"
)

func TestNoiseIsOfStockAgainOrBetweenTheRoundsOfStock(t *testing.T) {
	libra := lending(run(Libra, Related, 1, 100, 100), 0) // the second did not lend
	stock := []Run{run(Stock, Related, 1, 100, 900), run(Stock, Related, 2, 110, 100), run(Stock, Related, 3, 121, 100)}
	// Over the medians of the others, 115.5, 110.5 and 105, the first is 100, 110 and 121.
	between := []float64{100/115.5 - 1, 110/110.5 - 1, 121/105.0 - 1}
	for name, c := range map[string]struct {
		runs []Run
		want float64
		says string
	}{
		"stock again":  {append(stock, libra, run(Again, Related, 1, 130, 100)), 130/110.0 - 1, "in stock again"},
		"three rounds": {append(stock, libra), median(between), "single rounds"},
		"one round":    {[]Run{stock[0], libra}, math.NaN(), "not known"},
		"no Libra":     {stock, math.NaN(), "not known"},
	} {
		noise := Compare(dataOf(c.runs...)).Noise[Related]
		if !approximately(noise.SlowdownP99, c.want) || !strings.Contains(noise.String(), c.says) {
			t.Errorf("%s: got %v (%s), want %v and %q", name, noise.SlowdownP99, noise, c.want, c.says)
		}
	}
}
