package agent

import "time"

// window tells what a container used in the last period of a CPU quota, within which the kernel
// does not care how use is spread. The zero value is ready to use.
type window struct{ uses []cpuUse }

type cpuUse struct {
	at  time.Time
	cpu time.Duration // so far
}

// add takes in what was used so far, and returns what was used in the last period, in milli CPU.
// If less than a period is known, it counts as a whole one.
func (w *window) add(at time.Time, cpu time.Duration) int64 {
	first := 0
	for first+1 < len(w.uses) && at.Sub(w.uses[first+1].at) >= peakWindow {
		first++
	}
	w.uses = append(w.uses[:copy(w.uses, w.uses[first:])], cpuUse{at, cpu})
	oldest := w.uses[0]
	return max(0, milli(float64(cpu-oldest.cpu), max(at.Sub(oldest.at), peakWindow)))
}

// since returns when the time began that the last add covered.
func (w *window) since() time.Time { return w.uses[0].at }

// begin restarts the window at a time by which the container had used cpu, because it is known to
// have rested until then. All later use counts.
func (w *window) begin(at time.Time, cpu time.Duration) {
	w.uses = append(w.uses[:0], cpuUse{at, cpu})
}
