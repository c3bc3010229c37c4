package agent

import "time"

// safeguardWindows are the times over which CPU use is compared with a lowered limit. The first
// is the period of a CPU quota. Use that stays under the threshold in every such period also
// stays under it in four in a row. The second measures steady use more exactly, because samples
// do not fall on the edges of a window.
var safeguardWindows = [...]time.Duration{peakWindow, 4 * peakWindow}

// watch is the safeguard of one container: it tells from successive samples whether use comes
// near a lowered limit. The zero value is ready to use.
type watch struct {
	limit   int64 // the lowered limit, in milli CPU; 0 if it is not lowered
	periods int64 // ThrottledPeriods when it was lowered
	samples []sample
}

// add takes the next sample of a container that is owed so many milli CPU, and says whether use
// crossed the threshold, 0 to 1, or the container was throttled.
func (w *watch) add(s sample, owed int64, threshold float64) bool {
	limit := s.Limit.CPUMilli
	if limit == 0 || limit >= owed {
		w.limit, w.samples = 0, w.samples[:0]
		return false
	}
	if w.limit == 0 || limit < w.limit {
		// Use under a higher limit does not count against this one.
		w.limit, w.periods = limit, s.ThrottledPeriods
		w.samples = append(w.samples[:0], s)
		return false
	}
	w.limit = limit
	w.keep(s)
	if s.ThrottledPeriods > w.periods {
		return true
	}
	oldest := 0
	for i := len(safeguardWindows) - 1; i >= 0; i-- {
		window := safeguardWindows[i]
		for s.at.Sub(w.samples[oldest].at) > window {
			oldest++
		}
		allowed := threshold * float64(limit) / 1000 * float64(window)
		if float64(s.CPU-w.samples[oldest].CPU) >= allowed {
			return true
		}
	}
	return false
}

// keep adds a sample and drops those that no window reaches back to.
func (w *watch) keep(s sample) {
	longest := safeguardWindows[len(safeguardWindows)-1]
	first := 0
	for first < len(w.samples) && s.at.Sub(w.samples[first].at) > longest {
		first++
	}
	w.samples = append(w.samples[:copy(w.samples, w.samples[first:])], s)
}
