package agent

import "time"

// logEvery is how often the log says the same of a pod at most.
const logEvery = 10 * time.Second

// repeats is for the log's lines about what can happen to a pod a hundred times a second.
// What happens first is told at once, and what follows in one line every logEvery.
type repeats map[repeat]*repeated

type repeat struct{ pod, what string }

type repeated struct {
	told  time.Time
	times int // since then
}

// tell says whether the log is to tell now, and how often it happened since it did last.
func (r repeats) tell(pod, what string, now time.Time) (times int, ok bool) {
	seen := r[repeat{pod, what}]
	if seen == nil {
		seen = &repeated{told: now.Add(-logEvery)}
		r[repeat{pod, what}] = seen
	}
	seen.times++
	if now.Sub(seen.told) < logEvery {
		return 0, false
	}
	times, seen.told, seen.times = seen.times, now, 0
	return times, true
}

// forget drops what has not happened for so long that the log would tell of it at once.
func (r repeats) forget(now time.Time) {
	for of, seen := range r {
		if seen.times == 0 && now.Sub(seen.told) >= logEvery || now.Sub(seen.told) >= 2*logEvery {
			delete(r, of)
		}
	}
}
