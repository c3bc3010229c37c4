package invocation

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/utils/clock"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/pool"
)

func rankedIn(pod, id string) pool.Invocation {
	inv := invocationIn(pod, id)
	inv.Ranked = true
	return inv
}

func TestLingering(t *testing.T) {
	const ms = time.Millisecond
	wants := rankedIn("ns/a", "1")
	wants.Want = api.Resources{MemoryBytes: 1}
	for _, tc := range []struct {
		name  string
		first pool.Invocation
		after time.Duration // from the end of the first to the start of the next
		next  pool.Invocation
		calls []string // until the next ends
		ago   time.Duration
	}{
		{"goes with the next Begin on its node", rankedIn("ns/a", "1"), 20 * ms, invocationIn("ns/b", "2"),
			[]string{"begin node-a 1", "begin node-a 2 after 1"}, 20 * ms},
		{"goes before the next Begin in its pod", rankedIn("ns/a", "1"), 0, invocationIn("ns/a", "2"),
			[]string{"begin node-a 1", "begin node-a 2 after 1"}, 0},
		{"goes by itself when none comes for long", rankedIn("ns/a", "1"), 51 * ms, invocationIn("ns/b", "2"),
			[]string{"begin node-a 1", "end node-a 1", "begin node-a 2"}, lingerFor},
		{"goes at once when it is not ranked", invocationIn("ns/a", "1"), 20 * ms, invocationIn("ns/b", "2"),
			[]string{"begin node-a 1", "end node-a 1", "begin node-a 2"}, 0},
		{"goes at once when a loan may end with it", wants, 20 * ms, invocationIn("ns/b", "2"),
			[]string{"begin node-a 1", "end node-a 1", "begin node-a 2"}, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				rec := &recorder{}
				l := newTestLifecycle(t, rec, clock.RealClock{})
				first := l.start(revID, "node-a", tc.first)
				time.Sleep(100 * ms)
				first.finish(200)
				synctest.Wait()
				time.Sleep(tc.after)
				next := l.start(revID, "node-a", tc.next)
				synctest.Wait()
				if diff := cmp.Diff(tc.calls, rec.calls); diff != "" {
					t.Error("Calls (-want, +got):\n" + diff)
				}
				want := []pool.Ending{{ID: "1", Duration: 100 * ms, Ago: tc.ago, Status: 200, BeginAnswered: true}}
				if diff := cmp.Diff(want, rec.ends); diff != "" {
					t.Error("Ends (-want, +got):\n" + diff)
				}
				next.finish(200)
				drain(t, l)
			})
		})
	}
}

func TestLingeringOfAnotherNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rec := &recorder{}
		l := newTestLifecycle(t, rec, clock.RealClock{})
		l.start(revID, "node-a", rankedIn("ns/a", "1")).finish(200)
		synctest.Wait()
		l.start(revID, "node-b", invocationIn("ns/b", "2")).finish(200)
		drain(t, l)
		want := []string{"begin node-a 1", "begin node-b 2", "end node-b 2", "end node-a 1"}
		if diff := cmp.Diff(want, rec.calls); diff != "" {
			t.Error("Calls (-want, +got):\n" + diff)
		}
	})
}

// Nobody knows whether an End was done whose Begin was not answered: it is sent again, and
// what is measured of it may be of others, too.
func TestLingeringWithABeginThatFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rec := &recorder{beginHook: func(_ context.Context, inv pool.Invocation) error {
			if inv.ID == "2" {
				return errors.New("connection refused")
			}
			return nil
		}}
		l := newTestLifecycle(t, rec, clock.RealClock{})
		l.start(revID, "node-a", rankedIn("ns/a", "1")).finish(200)
		synctest.Wait()
		next := l.start(revID, "node-a", invocationIn("ns/b", "2"))
		synctest.Wait()
		if diff := cmp.Diff([]string{"begin node-a 1", "begin node-a 2 after 1", "end node-a 1"}, rec.calls); diff != "" {
			t.Error("Calls (-want, +got):\n" + diff)
		}
		if late := []bool{rec.ends[0].Late, rec.ends[1].Late}; late[0] || !late[1] {
			t.Errorf("late: %v, want the second alone", late)
		}
		next.finish(200)
		drain(t, l)
	})
}
