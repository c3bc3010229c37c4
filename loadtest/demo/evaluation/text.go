package evaluation

import (
	"fmt"
	"math"

	"libra.dev/libra/loadtest/demo/report"
)

func ratioText(v float64) string { return report.Ratio(v) }

// percentText has no zero below zero.
func percentText(v float64) string { return report.Number("%.0f %%", math.Round(100*v)+0) }

// String is a ratio with its interval.
func (i interval) String() string {
	switch {
	case !i.measured():
		return "-"
	case math.IsNaN(i.low):
		return ratioText(i.value)
	}
	return fmt.Sprintf("%s (%s to %s)", ratioText(i.value), ratioText(i.low), ratioText(i.high))
}

// marked is a ratio that is said not to be known where its interval is too wide.
func (i interval) marked(f figure) string {
	if i.measured() && !i.known(f.tolerance()) {
		return i.String() + " ?"
	}
	return i.String()
}

// times is how often as long as alone.
func times(v float64) string { return report.Number("%.1f×", v) }

// milliseconds with their unit.
func milliseconds(v float64) string {
	if math.IsNaN(v) {
		return "-"
	}
	return report.MS(v) + " ms"
}

func cores(v float64) string { return report.Number("%.2f", v) }
