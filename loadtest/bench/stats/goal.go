package stats

import (
	"fmt"
	"math"
)

// How wide the interval of a ratio may be on each side, as a part of the ratio, and how much
// stock, measured again, may differ from stock. A P99 may be less exact: fewer values decide it.
const (
	Tolerance    = 0.05
	ToleranceP99 = 0.10
)

// Verdict says whether a goal is reached.
type Verdict string

// The verdicts. NotKnown must never pass for Holds.
const (
	Holds       Verdict = "holds"
	DoesNotHold Verdict = "does not hold"
	NotKnown    Verdict = "not known"
)

// Goal is the most, or the least, that a figure should be.
type Goal struct {
	Bound   float64
	AtLeast bool
}

func (g Goal) String() string {
	if g.AtLeast {
		return fmt.Sprintf("at least %v", g.Bound)
	}
	return fmt.Sprintf("at most %v", g.Bound)
}

func (g Goal) reached(v float64) bool {
	if g.AtLeast {
		return v >= g.Bound
	}
	return v <= g.Bound
}

// Ratio judges a ratio of two arms. again is the ratio of stock, measured again, to stock. The
// ratio's estimate decides if both say enough. why says what is not known.
func (g Goal) Ratio(ratio, again Interval, tolerance float64) (v Verdict, why string) {
	switch {
	case !ratio.measured():
		return NotKnown, "not measured"
	case !again.measured():
		return NotKnown, "stock was not measured again"
	case math.Abs(again.Estimate-1) > tolerance:
		return NotKnown, fmt.Sprintf("stock again is %.2f of stock, more than %.0f %% away", again.Estimate, 100*tolerance)
	case !ratio.Narrow(tolerance):
		return NotKnown, fmt.Sprintf("the interval is wider than ±%.0f %%%s", 100*tolerance, g.side(ratio))
	case g.reached(ratio.Estimate):
		return Holds, ""
	default:
		return DoesNotHold, ""
	}
}

// side says on which side of the goal all of an interval is.
func (g Goal) side(in Interval) string {
	switch v, _ := g.Absolute(in); v {
	case Holds:
		return ", and all of it within the goal"
	case DoesNotHold:
		return ", and all of it beyond the goal"
	default:
		return ""
	}
}

// Absolute judges a figure that is no ratio. Its whole interval decides, however wide it is.
func (g Goal) Absolute(in Interval) (v Verdict, why string) {
	low, high := g.reached(in.Low), g.reached(in.High)
	switch {
	case !in.measured():
		return NotKnown, "not measured"
	case math.IsNaN(in.Low) || math.IsNaN(in.High):
		return NotKnown, "it was measured too few times"
	case low && high:
		return Holds, ""
	case !low && !high:
		return DoesNotHold, ""
	default:
		return NotKnown, "the goal is within the interval"
	}
}

// Said formats a verdict, with the reason why nothing is known.
func Said(v Verdict, why string) string {
	if why == "" {
		return string(v)
	}
	return fmt.Sprintf("%s: %s", v, why)
}

// Exactly returns a value that is no estimate, such as the maximum of everything seen.
func Exactly(v float64) Interval { return Interval{Estimate: v, Low: v, High: v} }

func (in Interval) measured() bool { return !math.IsNaN(in.Estimate) && !math.IsInf(in.Estimate, 0) }

// Narrow reports whether an interval is narrow enough for the ratio to mean something.
func (in Interval) Narrow(tolerance float64) bool {
	return (in.High-in.Low)/2 <= tolerance*in.Estimate
}
