package agent

import "time"

const (
	// A loan is shrunk when more than half of it is unused for so many periods in a row.
	unusedPeriods = 5
	// askAgain is how long to wait before asking again for what was not given, or not given back.
	askAgain = time.Second
	// A container keeps keptNum/keptDen of what it used, plus wantStep, the smallest loan.
	keptNum, keptDen = 5, 4
	wantStep         = 100 // milli CPU
	// A limit that exceeds the user allocation by less does so because the kernel rounds.
	leastLoan = 10 // milli CPU
)

// wanting finds how much CPU a container wants to borrow, from its use in each period of its quota:
// twice its limit once it was throttled, and a little more than it used once it leaves most of a
// loan unused (Escra, section 4). The zero value is ready to use.
type wanting struct {
	from    sample
	unused  unused
	asked   int64
	askedAt time.Time
}

// unused is periods in a row in which a loan was mostly unused, and the most that the container used in
// one of them, in milli CPU. The last one alone may just be a pause between two requests.
type unused struct {
	periods int
	most    int64
}

// repaid takes in that the container's loans have ended: they do not count against the next ones.
func (w *wanting) repaid() { w.unused = unused{} }

// add takes the next sample of a container that is owed so many milli CPU. It returns how much the
// container wants beyond that, in milli CPU, and whether to ask for it now.
func (w *wanting) add(s sample, owed int64) (milli int64, ask bool) {
	passed := s.at.Sub(w.from.at)
	if passed < peakWindow {
		return 0, false
	}
	from, limit := w.from, s.Limit.CPUMilli
	w.from = s
	if passed > 2*peakWindow || s.CPU < from.CPU || limit < owed {
		w.unused = unused{} // it was not sampled for a while, is another, or lends
		return 0, false
	}
	used, borrowed := int64(float64(s.CPU-from.CPU)/float64(passed)*1000), limit-owed
	switch {
	case s.ThrottledPeriods > from.ThrottledPeriods:
		w.unused, milli = unused{}, 2*limit-owed
	case borrowed >= leastLoan && used < owed+borrowed/2:
		w.unused = unused{w.unused.periods + 1, max(w.unused.most, used)}
		if w.unused.periods < unusedPeriods {
			return 0, false
		}
		milli = min(borrowed, max(0, w.unused.most*keptNum/keptDen+wantStep-owed)/wantStep*wantStep)
		w.unused = unused{}
	default:
		w.unused = unused{}
		return 0, false
	}
	if milli == w.asked && s.at.Sub(w.askedAt) < askAgain {
		return 0, false
	}
	w.asked, w.askedAt = milli, s.at
	return milli, true
}
