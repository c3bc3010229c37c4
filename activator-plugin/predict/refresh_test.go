package predict

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
)

// refreshed is a client on a clock of its own, and its predictor.
type refreshed struct {
	*Client
	clock  *clocktesting.FakeClock
	server *server
}

func newRefreshed(t *testing.T, status int, body string) *refreshed {
	s := newServer(t, status, body)
	clk := clocktesting.NewFakeClock(time.Now())
	return &refreshed{newClient(t, s.URL, clk), clk, s}
}

// hears makes the client hear every announcement from now on, as listen does.
func (r *refreshed) hears() {
	now := r.clock.Now()
	r.hearing.Store(&now)
	r.allAreDue()
}

// fetchesIn returns how often the predictor is asked during d, with one request a second.
func (r *refreshed) fetchesIn(d time.Duration) int32 {
	before := r.server.asked.Load()
	for range int(d / time.Second) {
		ask(r.Client, 1)
		r.clock.SetTime(r.clock.Now().Add(time.Second))
	}
	return r.server.asked.Load() - before
}

// For 10,000 functions that are called all the time, each activator would ask 2,000 times a second
// for what the predictor announces anyway.
func TestWhatIsAnnouncedIsSeldomAskedFor(t *testing.T) {
	for name, c := range map[string]struct {
		status  int
		body    string
		unheard int32 // fetches a minute
	}{
		"a table":  {http.StatusOK, versionJSON(t, "7"), 12},
		"no model": {http.StatusNotFound, noModel, 60},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRefreshed(t, c.status, c.body)
			if got := r.fetchesIn(time.Minute); got != c.unheard {
				t.Errorf("%d fetches in a minute without announcements, want %d", got, c.unheard)
			}
			r.hears()
			// Twice, because the first answer may come from a replica that lags.
			if got := r.fetchesIn(refreshHeard); got != 2 {
				t.Errorf("%d fetches in the first %v with announcements, want 2", got, refreshHeard)
			}
			if got := r.fetchesIn(10 * refreshHeard); got > 10 {
				t.Errorf("%d fetches in ten times as long, want at most 10", got)
			}
			r.Client.hearing.Store(nil)
			if got := r.fetchesIn(time.Minute); got < c.unheard-1 {
				t.Errorf("%d fetches in a minute since nothing is heard any more, want %d", got, c.unheard)
			}
		})
	}
}

func TestWhatIsAnnouncedIsAskedForAtOnce(t *testing.T) {
	r := newRefreshed(t, http.StatusOK, versionJSON(t, "7"))
	r.hears()
	r.fetchesIn(refreshHeard / 2)
	r.server.say(http.StatusOK, versionJSON(t, "8"))
	before := r.server.asked.Load()
	r.hear(announce(change("8", 0)))
	r.fetches.Wait()
	if got := r.server.asked.Load() - before; got != 1 {
		t.Errorf("%d fetches after an announcement, want 1", got)
	}
	if got := r.find(name).state.Load().table.Version; got != 8 {
		t.Errorf("version %d is in hand, want 8", got)
	}
}

// The first request after refreshHeard finds out that the predictor is gone, while the table may
// still be used.
func TestAPredictorThatIsGoneIsSeenInTime(t *testing.T) {
	r := newRefreshed(t, http.StatusOK, versionJSON(t, "7"))
	r.hears()
	r.fetchesIn(refreshHeard)
	r.server.say(http.StatusServiceUnavailable, "")
	r.fetchesIn(refreshHeard)
	r.fetchesIn(dropAfter)
	if _, ok := ask(r.Client, 1); ok {
		t.Error("a table is still used, though the predictor fails")
	}
}

// A cluster may have this many revisions, and one activator may be asked for all of them.
func TestTenThousandFunctionsAreKnown(t *testing.T) {
	c := newClient(t, "http://localhost", clocktesting.NewFakeClock(time.Now()))
	for i := range 10_000 {
		if c.function(types.NamespacedName{Namespace: "ns", Name: fmt.Sprint("rev-", i)}, c.clock.Now()) == nil {
			t.Fatalf("there is no room for a function after %d", i)
		}
	}
}
