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
	if got := observed(1000, 10*time.Millisecond); got < 10 || got > 12 {
		t.Errorf("%d of 100 a second for 10 s, want one a second", got)
	}
	if got := observed(20, time.Second); got < 10 {
		t.Errorf("%d of 20 that end once a second, want most of them as soon as it is %v", got, thinnedMost)
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
