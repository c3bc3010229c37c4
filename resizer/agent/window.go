package agent

import "time"

// window tells what a container used in the last period of a CPU quota: within one the
// kernel does not care how use is spread. The zero value is ready.
type window struct{ uses []cpuUse }

type cpuUse struct {
	at  time.Time
	cpu time.Duration // so far
}

// add takes in what was used so far, and returns what was used in the last period, in
// milli CPU. What is known of less than a period counts as of a whole one.
func (w *window) add(at time.Time, cpu time.Duration) int64 {
	first := 0
	for first+1 < len(w.uses) && at.Sub(w.uses[first+1].at) >= peakWindow {
		first++
	}
	w.uses = append(w.uses[:copy(w.uses, w.uses[first:])], cpuUse{at, cpu})
	oldest := w.uses[0]
	return max(0, milli(float64(cpu-oldest.cpu), max(at.Sub(oldest.at), peakWindow)))
}

// since is when the time began of which add told last.
func (w *window) since() time.Time { return w.uses[0].at }

// begin makes all count that is used above what was used by a time: what was before it is known to
// have been a rest.
func (w *window) begin(at time.Time, cpu time.Duration) {
	w.uses = append(w.uses[:0], cpuUse{at, cpu})
}
