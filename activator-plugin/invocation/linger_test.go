package invocation

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

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

// A Begin that waits for the previous End in its pod does not look for it twice.
func TestEndThatIsAwaitedDoesNotLinger(t *testing.T) {
	const answers = 20 * time.Millisecond
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		var sent time.Duration
		rec := &recorder{beginHook: func(_ context.Context, inv pool.Invocation) error {
			switch inv.ID {
			case "1":
				time.Sleep(answers)
			case "2":
				sent = time.Since(began)
			}
			return nil
		}}
		l := newTestLifecycle(t, rec, clock.RealClock{})
		l.beginTimeout = beginTimeout
		l.start(revID, "node-a", rankedIn("ns/a", "1")).finish(200)
		next := l.start(revID, "node-a", rankedIn("ns/a", "2"))
		time.Sleep(time.Second)
		synctest.Wait()
		if sent != answers {
			t.Errorf("the Begin was sent after %v, want %v", sent, answers)
		}
		next.finish(200)
		drain(t, l)
		if diff := cmp.Diff([]string{"begin node-a 1", "end node-a 1", "begin node-a 2", "end node-a 2"}, rec.calls); diff != "" {
			t.Error("Calls (-want, +got):\n" + diff)
		}
		for _, e := range rec.ends {
			if e.Late {
				t.Errorf("the End of %s is late, so that nothing is learned from it", e.ID)
			}
		}
	})
}

// A Begin that waits for one of many Ends takes that one along, and only as many others as do not delay it.
func TestManyLingeringGoWithSeveralBegins(t *testing.T) {
	const many = alongMost + 10
	synctest.Test(t, func(t *testing.T) {
		rec := &recorder{}
		l := newTestLifecycle(t, rec, clock.RealClock{})
		var flights []*flight
		for i := range many {
			flights = append(flights, l.start(revID, "node-a", rankedIn(fmt.Sprint("ns/", i), fmt.Sprint("first-", i))))
		}
		synctest.Wait()
		for _, f := range flights {
			f.finish(200)
		}
		synctest.Wait()
		last := fmt.Sprint("ns/", many-1)
		for i, want := range []int{alongMost, many - alongMost} {
			l.start(revID, "node-a", invocationIn(last, fmt.Sprint("next-", i))).finish(200)
			synctest.Wait()
			if got := strings.Count(rec.calls[len(rec.calls)-2], "first-"); got != want {
				t.Errorf("%d Ends go with Begin %d, want %d: %q", got, i, want, rec.calls[many:])
			}
		}
		drain(t, l)
		late := slices.ContainsFunc(rec.ends, func(e pool.Ending) bool { return e.Late })
		if len(rec.ends) != many+2 || late {
			t.Errorf("%d Ends, of which some are late: %t; want %d", len(rec.ends), late, many+2)
		}
	})
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

// Whatever a pod uses until the agent hears of an End counts for the invocation that ended, and most of the quick ones
// that follow it are not reported.
func TestEndOfAQuickOneDoesNotLinger(t *testing.T) {
	rec := &recorder{}
	m := newRankingManager(t, rec, fixed{mode: api.ModeFull, source: api.SourceNode}, predictions{
		revID: {Demand: res(300, 100), Duration: 20 * time.Millisecond, CPUTime: 20 * time.Millisecond},
	}, newPod("a", "10.0.0.1"))
	clk := clocktesting.NewFakeClock(time.Now())
	m.clock, m.lifecycle.clock = clk, clk
	reported := newRequest(newRevision())
	m.dispatch(t.Context(), reported, revID, "10.0.0.1:80", false)(200)
	rec.await(t, 2) // no time passes for it to linger
	drain(t, m.lifecycle)
	if len(rec.ends) != 1 || rec.ends[0].Late || rec.ends[0].Ago != 0 || !reported.kept.Quick {
		t.Errorf("Ends are %+v of one that is quick: %t; want one, at once", rec.ends, reported.kept.Quick)
	}
}

// An End that went with an unanswered Begin may or may not have taken effect: it is sent again, and its measurements
// may include others.
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
