package agent

import "time"

// logEvery is the least time between two log lines that say the same about a pod.
const logEvery = 10 * time.Second

// repeats thins out log lines about what can happen to a pod a hundred times a second.
// The first occurrence is logged at once, and those that follow in one line every
// logEvery.
type repeats map[repeat]*repeated

type repeat struct{ pod, what string }

type repeated struct {
	told  time.Time
	times int // since then
}

// tell says whether to log now, and how often it has happened since the last line.
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

// forget drops entries so old that the next occurrence would be logged at once.
func (r repeats) forget(now time.Time) {
	for of, seen := range r {
		if seen.times == 0 && now.Sub(seen.told) >= logEvery || now.Sub(seen.told) >= 2*logEvery {
			delete(r, of)
		}
	}
}
