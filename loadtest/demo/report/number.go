package report

import (
	"fmt"
	"math"
)

// Number is v as the format says, or a dash when there is none.
func Number(format string, v float64) string {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return "-"
	}
	return fmt.Sprintf(format, v)
}

// MS is a time in milliseconds. The small ones have a digit more: theirs is the overhead.
func MS(v float64) string {
	if v < 100 {
		return Number("%.1f", v)
	}
	return Number("%.0f", v)
}

// Ratio is a ratio to two digits.
func Ratio(v float64) string { return Number("%.2f", v) }
