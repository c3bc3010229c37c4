package agent

import "time"

const (
	// A loan of which more than half is not used for so many periods in a row is shrunk.
	unusedPeriods = 5
	// askAgain is when it is asked again for what was not had, or not given up.
	askAgain = time.Second
	// A container keeps so much more than it used, and as much more as the smallest loan.
	keptNum, keptDen = 5, 4
	wantStep         = 100 // milli CPU
	// What is above the user allocation by less is how the kernel rounds.
	leastLoan = 10 // milli CPU
)

// wanting finds how much CPU a container wants to borrow, by what it uses in each period of its
// quota: twice its limit once it was throttled, and a little more than it used once it leaves most of
// a loan (Escra, section 4). The zero value is ready.
type wanting struct {
	from    sample
	unused  int // periods in a row
	asked   int64
	askedAt time.Time
}

// repaid is told when the loans of the container have ended: the next are not judged by what became
// of those.
func (w *wanting) repaid() { w.unused = 0 }

// add takes the next sample of a container that is owed so many milli CPU, and says what it wants
// beyond that when that is to be asked for.
func (w *wanting) add(s sample, owed int64) (milli int64, ask bool) {
	passed := s.at.Sub(w.from.at)
	if passed < peakWindow {
		return 0, false
	}
	from, limit := w.from, s.Limit.CPUMilli
	w.from = s
	if passed > 2*peakWindow || s.CPU < from.CPU || limit < owed {
		w.unused = 0 // it was not looked at for a while, is another, or lends
		return 0, false
	}
	used, borrowed := int64(float64(s.CPU-from.CPU)/float64(passed)*1000), limit-owed
	switch {
	case s.ThrottledPeriods > from.ThrottledPeriods:
		w.unused, milli = 0, 2*limit-owed
	case borrowed >= leastLoan && used < owed+borrowed/2:
		if w.unused++; w.unused < unusedPeriods {
			return 0, false
		}
		w.unused, milli = 0, max(0, used*keptNum/keptDen+wantStep-owed)/wantStep*wantStep
	default:
		w.unused = 0
		return 0, false
	}
	if milli == w.asked && s.at.Sub(w.askedAt) < askAgain {
		return 0, false
	}
	w.asked, w.askedAt = milli, s.at
	return milli, true
}
