package agent

import (
	"math/rand/v2"
	"testing"
	"time"
)

func TestThinning(t *testing.T) {
	var th thinning
	now := epoch
	// observed returns how many of n invocations that end so often are observed.
	observed := func(n int, every time.Duration) (wanted int) {
		for range n {
			now = now.Add(every)
			if th.wants(now) {
				wanted++
			}
		}
		return wanted
	}
	if got := observed(observeFreely, time.Millisecond); got != observeFreely {
		t.Errorf("%d of the first %d, want all", got, observeFreely)
	}
	if got := observed(100_000, 10*time.Millisecond); got < 800 || got > 1200 {
		t.Errorf("%d of 100 a second for 1000 s, want one a second", got)
	}
	observed(int(3*thinnedMost/time.Second), time.Second)
	if got := observed(20, time.Second); got < 18 {
		t.Errorf("%d of 20 that end once a second, want all but a few once they have done so for %v", got, 3*thinnedMost)
	}
	if got := observed(100, time.Minute); got != 100 {
		t.Errorf("%d of 100 that end once a minute, want all", got)
	}
}

// Long invocations are observed in proportion to their number, not to the time
// that one is in flight.
func TestThinningIsFairToShortOnes(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	var th thinning
	now := epoch
	var wanted, long int
	for wanted < 2000 {
		isLong := random.IntN(10) == 0 // nine tenths of the time a long one is in flight
		now = now.Add(time.Millisecond)
		if isLong {
			now = now.Add(80 * time.Millisecond)
		}
		if th.wants(now) {
			wanted++
			if isLong {
				long++
			}
		}
	}
	if share := float64(long) / float64(wanted); share < 0.07 || share > 0.13 {
		t.Errorf("%.2f of those observed are long, want a tenth", share)
	}
}

// A client's calls that differ in turn are all observed, whatever their number in a second.
func TestThinningIsFairToCallsInTurn(t *testing.T) {
	for _, every := range []time.Duration{400 * time.Millisecond, 250 * time.Millisecond, 100 * time.Millisecond, 7 * time.Millisecond} {
		var th thinning
		now := epoch
		var seen [2]int
		for call := range 20_000 {
			now = now.Add(every)
			if th.wants(now) && th.observed > observeFreely {
				seen[call%2]++
			}
		}
		if all := seen[0] + seen[1]; all < 40 || 3*min(seen[0], seen[1]) < all/2 {
			t.Errorf("every %v: %v of the calls in turn are observed, want about as many of each", every, seen)
		}
	}
}
