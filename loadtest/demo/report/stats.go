package report

import (
	"math"
	"slices"
)

// Percentile is the nearest-rank percentile: the smallest value that at least p
// per cent of the values do not exceed. So it is always a value that was seen,
// and P99 of fewer than 100 values is the largest. It is NaN if there are no
// values.
func Percentile(values []float64, p float64) float64 {
	if len(values) == 0 {
		return math.NaN()
	}
	sorted := slices.Sorted(slices.Values(values))
	// Computed the other way round, 99 per cent of 200 would be a hair above 198.
	rank := int(math.Ceil(p * float64(len(sorted)) / 100))
	return sorted[min(max(rank, 1), len(sorted))-1]
}
