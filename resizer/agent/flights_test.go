package agent

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"libra.dev/libra/pkg/pool"
)

// What flights have used stays theirs, whichever of them end or begin, and however long a reading of
// the pool takes.
func TestFollowKeepsWhatFlightsUsed(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		type request struct {
			at time.Time
			work
		}
		now := epoch
		var requests []request
		var known []flight
		for range rapid.IntRange(1, 20).Draw(t, "states") {
			for range rapid.IntRange(0, 2).Draw(t, "ends") {
				if len(requests) > 0 {
					i := rapid.IntRange(0, len(requests)-1).Draw(t, "ended")
					requests = append(requests[:i:i], requests[i+1:]...)
				}
			}
			for range rapid.IntRange(0, 2).Draw(t, "begins") {
				// No two are begun within what a reading can tell apart.
				now = now.Add(ms(rapid.Int64Range(150, 300).Draw(t, "after")))
				requests = append(requests, request{now, work{predicted: ms(rapid.Int64Range(0, 1).Draw(t, "predicted"))}})
			}
			asked := now.Add(ms(rapid.Int64Range(0, 10).Draw(t, "later")))
			at := asked.Add(ms(rapid.Int64Range(0, 50).Draw(t, "out")))
			now = at.Add(ms(rapid.Int64Range(0, 50).Draw(t, "back")))
			var seen []pool.Flight
			for _, r := range requests {
				seen = append(seen, pool.Flight{Age: at.Sub(r.at), CPUTime: r.predicted})
			}
			before := len(known)
			flights, begun, ended := follow(known, sight{seen, asked, now})
			if len(flights) != len(requests) || ended != (len(flights)-len(begun) < before) {
				t.Fatalf("%d flights, %d of them new, ended: %v; want %d", len(flights), len(begun), ended, len(requests))
			}
			for i, f := range flights {
				if f.used != requests[i].used || f.earliest.After(requests[i].at) || f.latest.Before(requests[i].at) {
					t.Fatalf("flight %d is %+v, want %+v", i, f, requests[i])
				}
			}
			if len(flights) > 0 {
				used := time.Duration(rapid.Int64Range(0, 100).Draw(t, "used")*int64(len(flights))) * time.Millisecond
				divide(flights, used)
				for i := range requests {
					requests[i].used += used / time.Duration(len(requests))
				}
			}
			known = flights
		}
	})
}

func TestActivity(t *testing.T) {
	at, cpu := epoch, 5*time.Second
	var a activity
	for i, step := range []struct {
		after, used time.Duration
		busy, woke  bool
		since       time.Duration // used since the last rest
	}{
		{0, 0, false, false, 0},
		{ms(25), 0, false, false, 0},
		{ms(25), 500 * time.Microsecond, false, false, 0},
		{ms(25), 500 * time.Microsecond, true, true, ms(1)},
		{ms(25), ms(25), true, false, ms(26)},
		{ms(90), 900 * time.Microsecond, true, false, 26900 * time.Microsecond},
		{ms(10), 0, false, false, 0},
		{ms(25), ms(3), true, true, ms(3)},
		{ms(200), 0, false, false, 0},
	} {
		at, cpu = at.Add(step.after), cpu+step.used
		if woke := a.add(at, cpu); woke != step.woke || a.busy != step.busy || a.busy && a.used != step.since {
			t.Fatalf("step %d: woke %v, %+v; want %+v", i, woke, a, step)
		}
	}
	if a.add(at, 0); a.busy {
		t.Error("a container that began anew is busy")
	}
}
