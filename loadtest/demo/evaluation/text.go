package evaluation

import (
	"fmt"
	"math"

	"libra.dev/libra/loadtest/demo/report"
)

func ratioText(v float64) string { return report.Ratio(v) }

// percentText formats a share, with no negative zero.
func percentText(v float64) string { return report.Number("%.0f %%", math.Round(100*v)+0) }

// String formats a ratio with its interval.
func (i interval) String() string {
	switch {
	case !i.measured():
		return "-"
	case math.IsNaN(i.low):
		return ratioText(i.value)
	}
	return fmt.Sprintf("%s (%s to %s)", ratioText(i.value), ratioText(i.low), ratioText(i.high))
}

// marked formats a ratio, with a question mark if its interval is too wide for
// it to be known.
func (i interval) marked(f figure) string {
	if i.measured() && !i.known(f.tolerance()) {
		return i.String() + " ?"
	}
	return i.String()
}

// times formats a slow-down.
func times(v float64) string { return report.Number("%.1f×", v) }

// milliseconds formats a time with its unit.
func milliseconds(v float64) string {
	if math.IsNaN(v) {
		return "-"
	}
	return report.MS(v) + " ms"
}

func cores(v float64) string { return report.Number("%.2f", v) }
