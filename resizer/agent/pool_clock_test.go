package agent

import (
	"testing"
	"time"
)

func TestPoolClock(t *testing.T) {
	const ahead = time.Hour // of the pool's clock
	start := time.Now()
	ms := func(n int) time.Time { return start.Add(time.Duration(n) * time.Millisecond) }
	pools := func(n int) time.Time { return ms(n).Add(ahead) }
	var c poolClock
	if got := c.own(pools(10), ms(12)); !got.Equal(ms(12)) {
		t.Errorf("before the first state it began %v after the start, want when it was heard of", got.Sub(start))
	}

	c.read(ms(100), pools(101))
	c.read(ms(200), pools(260)) // which took long to arrive from the pool
	if got := c.own(pools(300), ms(310)); !got.Equal(ms(299)) {
		t.Errorf("it began %v after the start, want 299ms: the slow reading says less than the fast one", got.Sub(start))
	}
	if got := c.own(pools(400), ms(390)); !got.Equal(ms(390)) {
		t.Errorf("it began %v after the start, after it was heard of", got.Sub(start))
	}
	if got := c.own(pools(300), ms(5000)); !got.Equal(ms(4000)) {
		t.Errorf("it began %v after the start, want no longer before it was heard of than a call may take", got.Sub(start))
	}

	// Clocks drift apart: old readings no longer count.
	for i := range c.readings {
		at := 1000 + 1000*i
		c.read(ms(at), pools(at+50))
	}
	if got := c.own(pools(9000), ms(9100)); !got.Equal(ms(8950)) {
		t.Errorf("it began %v after the start, want 8.95s, by the last readings", got.Sub(start))
	}
}
