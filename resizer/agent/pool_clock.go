package agent

import "time"

// poolClock translates times of the pool's clock into the agent's. The zero value knows
// nothing.
type poolClock struct {
	// readings are the times of the last states by both clocks. The pool makes a state some
	// time after it was asked for. On a full node that delay can exceed what is measured with
	// it, so the least of several counts. There are few readings, because the clocks of two
	// nodes drift apart.
	readings [8]clockReading
	next     int
}

type clockReading struct {
	asked time.Time // by the agent's clock
	made  time.Time // by the pool's
}

// read takes in a state: when it was asked for, and when it was made by the pool's clock.
func (c *poolClock) read(asked, made time.Time) {
	c.readings[c.next] = clockReading{asked, made}
	c.next = (c.next + 1) % len(c.readings)
}

// own returns a time of the pool's clock by the agent's clock; the agent heard of it at
// heard. The result is early rather than late, by what the fastest of the last readings took
// to reach the pool.
func (c *poolClock) own(at, heard time.Time) time.Time {
	latest := time.Time{}
	for _, r := range c.readings {
		if !r.made.IsZero() {
			latest = later(latest, r.asked.Add(at.Sub(r.made)))
		}
	}
	if latest.IsZero() {
		return heard
	}
	return earlier(heard, later(heard.Add(-poolTimeout), latest))
}
