package agent

import "time"

// poolClock tells the agent's time of what the pool says that it did at a time of its own.
// The zero value knows nothing.
type poolClock struct {
	// readings are the last states' times by both clocks. One was made by the pool after it
	// was asked for: how long after, on a full node, can be more than what is measured by it,
	// so that the least of several is taken. They are few, because the clocks of two nodes
	// drift apart.
	readings [8]clockReading
	next     int
}

type clockReading struct {
	asked time.Time // by the agent's clock
	made  time.Time // by the pool's
}

// read takes in a state that was asked for at a time, and made at one of the pool's clock.
func (c *poolClock) read(asked, made time.Time) {
	c.readings[c.next] = clockReading{asked, made}
	c.next = (c.next + 1) % len(c.readings)
}

// own is a time of the pool's clock by the agent's, which heard of it at a time. It is early
// rather than late, by what the fastest of the last readings took to come to the pool.
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
