package report

import (
	"fmt"
	"math"
)

// Number formats v, or returns a dash if v is NaN or infinite.
func Number(format string, v float64) string {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return "-"
	}
	return fmt.Sprintf(format, v)
}

// MS formats a time in milliseconds. Times below 100 have a digit more: the overhead
// shows in them.
func MS(v float64) string {
	if v < 100 {
		return Number("%.1f", v)
	}
	return Number("%.0f", v)
}

// Ratio formats a ratio with two decimals.
func Ratio(v float64) string { return Number("%.2f", v) }
