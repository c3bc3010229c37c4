package duplicator

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
	v1 "knative.dev/serving/pkg/apis/serving/v1"

	"libra.dev/libra/pkg/api"
)

func TestDuplicationEndsWithNoCopyLeft(t *testing.T) {
	unavailable := errors.New("the API server is away")
	answer := func(verb string, times int, err error) func(*cluster) {
		return func(c *cluster) {
			c.client.PrependReactor(verb, "services", func(clienttesting.Action) (bool, runtime.Object, error) {
				times--
				return times >= 0, nil, err
			})
		}
	}
	// lose creates copies but tells the caller that it did not.
	lose := func(times int) func(*cluster) {
		return func(c *cluster) {
			c.client.PrependReactor("create", "services", func(action clienttesting.Action) (bool, runtime.Object, error) {
				if times--; times < 0 {
					return false, nil, nil
				}
				services := v1.SchemeGroupVersion.WithResource("services")
				err := c.client.Tracker().Create(services, action.(clienttesting.CreateAction).GetObject(), action.GetNamespace())
				if err == nil {
					err = unavailable
				}
				return true, nil, err
			})
		}
	}
	for _, tc := range []struct {
		name     string
		function roundTripper
		arrange  func(*cluster)
		// after is when the activator is told to stop; 0 is never.
		after    time.Duration
		lasts    time.Duration // at most
		verdict  verdict
		event    string
		replayed bool
		// uncreated is when there was never a copy to remove.
		uncreated bool
	}{
		{name: "all is well", function: respond(200), lasts: time.Minute,
			verdict: verdictDone, event: "DuplicationFinished Replayed inputs to the copy: 24 ok", replayed: true},
		{name: "the function refuses all", function: respond(400), lasts: time.Minute,
			verdict: verdictFailed, event: "none of 24 replays succeeded: 24 client_error", replayed: true},
		{name: "the function is slow", function: respondAfter(28 * time.Second), lasts: 6 * time.Minute,
			verdict: verdictDone, event: "24 ok", replayed: true},
		{name: "there is no time for all replays", function: respondAfter(28 * time.Second), lasts: 10 * time.Minute,
			arrange: func(c *cluster) {
				slow := sync.OnceFunc(func() { time.Sleep(4 * time.Minute) })
				c.client.PrependReactor("get", "services", func(clienttesting.Action) (bool, runtime.Object, error) {
					slow()
					return false, nil, nil
				})
			},
			verdict: verdictFailed, event: "the duplication took more than 9m0s: only 20 of 24 replays", replayed: true},
		{name: "the function hangs", function: hang, lasts: 7 * time.Minute,
			verdict: verdictFailed, event: "none of 24 replays succeeded: 24 timeout", replayed: true},
		{name: "the copy is never ready", function: respond(200), lasts: 3 * time.Minute,
			arrange: func(c *cluster) { c.neverReady.Store(true) },
			verdict: verdictFailed, event: "is not ready after 2m0s: Knative has not reported its status yet"},
		{name: "the copy is refused", function: respond(200), lasts: time.Minute, uncreated: true,
			arrange: answer("create", 1, apierrors.NewForbidden(v1.Resource("services"), "shop", errors.New("no right"))),
			verdict: verdictFailed, event: "no right"},
		{name: "the copy is invalid", function: respond(200), lasts: time.Second, uncreated: true,
			arrange: answer("create", 1, apierrors.NewInvalid(v1.Kind("Service"), "shop", nil)),
			verdict: verdictFailed, event: "is invalid"},
		{name: "a webhook refuses the copy", function: respond(200), lasts: time.Second, uncreated: true,
			arrange: answer("create", 1, apierrors.NewBadRequest("validation failed")),
			verdict: verdictFailed, event: "validation failed"},
		{name: "the API server is slow", function: respond(200), lasts: time.Minute,
			arrange: answer("create", 10, apierrors.NewTimeoutError("slow", 1)),
			verdict: verdictDone, event: "24 ok", replayed: true},
		{name: "there are too many requests", function: respond(200), lasts: time.Minute,
			arrange: answer("create", 10, apierrors.NewTooManyRequestsError("later")),
			verdict: verdictDone, event: "24 ok", replayed: true},
		{name: "the API server does not come back", function: respond(200), lasts: 3 * time.Minute, uncreated: true,
			arrange: answer("create", 1000, apierrors.NewInternalError(unavailable)),
			verdict: verdictFailed, event: "the API server is away"},
		{name: "the copy is made but the answer is lost", function: respond(200), lasts: time.Minute,
			arrange: lose(1), verdict: verdictDone, event: "24 ok", replayed: true},
		{name: "all answers are lost", function: respond(200), lasts: 3 * time.Minute,
			arrange: lose(1000), verdict: verdictFailed, event: "creating Service ns/"},
		{name: "the activator stops while answers are lost", function: respond(200), after: 10 * time.Second, lasts: 11 * time.Second,
			arrange: lose(1000)},
		{name: "the copy cannot be read for a while", function: respond(200), lasts: time.Minute,
			arrange: answer("get", 10, unavailable),
			verdict: verdictDone, event: "24 ok", replayed: true},
		{name: "the removal fails at first", function: respond(200), lasts: time.Minute,
			arrange: answer("delete", 10, unavailable),
			verdict: verdictDone, event: "24 ok", replayed: true},
		{name: "another deletes the copy", function: respond(200), lasts: time.Minute,
			arrange: answer("get", 1, apierrors.NewNotFound(v1.Resource("services"), "shop")),
			verdict: verdictFailed, event: "was deleted by someone else"},
		{name: "the activator stops in replays", function: hang, after: 10 * time.Second, lasts: 11 * time.Second, replayed: true},
		{name: "the activator stops while the copy starts", function: respond(200), after: 10 * time.Second, lasts: 11 * time.Second,
			arrange: func(c *cluster) { c.neverReady.Store(true) }},
		{name: "the activator stops and the removal fails at first", function: hang, after: 10 * time.Second, lasts: 21 * time.Second,
			arrange: answer("delete", 10, unavailable), replayed: true},
		{name: "the lock is lost", function: hang, lasts: 20 * time.Second,
			arrange: func(c *cluster) { c.locks.renewing = errLost },
			verdict: verdictFailed, event: "another activator may be duplicating the same inputs", replayed: true},
		{name: "Redis is away at the end", function: respond(200), lasts: time.Minute,
			arrange: func(c *cluster) { c.locks.settlingFails = 5 },
			verdict: verdictDone, event: "24 ok", replayed: true},
		{name: "its revision gets no more traffic", function: hang, lasts: 20 * time.Second,
			arrange: func(c *cluster) { time.AfterFunc(5*time.Second, func() { c.unrouted.Store(true) }) }, replayed: true},
		{name: "its revision is deleted", function: hang, lasts: 20 * time.Second,
			arrange: func(c *cluster) { time.AfterFunc(5*time.Second, func() { c.deleted.Store(true) }) }, replayed: true},
		{name: "Libra is to observe only", function: hang, lasts: 20 * time.Second,
			arrange: func(c *cluster) { time.AfterFunc(5*time.Second, func() { c.isStopped.Store(true) }) }, replayed: true},
		{name: "Redis is away", function: hang, lasts: 40 * time.Second,
			arrange: func(c *cluster) { c.locks.renewing = unavailable },
			verdict: verdictFailed, event: "another activator may be duplicating the same inputs", replayed: true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCluster(t, tc.function)
				if tc.arrange != nil {
					tc.arrange(c)
				}
				rev := newRevision("shop-00001")
				c.gather(t, rev)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				j, ok := c.inputs.take(c.clock.Now())
				if !ok {
					t.Fatal("nothing is due")
				}
				if tc.after > 0 {
					time.AfterFunc(tc.after, cancel)
				}
				began := c.clock.Now()
				c.handle(ctx, j)

				if took := c.clock.Since(began); took > tc.lasts {
					t.Errorf("it took %v, want at most %v", took, tc.lasts)
				}
				if copies := c.copies(t); len(copies) != 0 {
					t.Errorf("%d copies are left", len(copies))
				}
				if got := c.count("delete") > 0; got == tc.uncreated {
					t.Errorf("%d deletions; never created: %v", c.count("delete"), tc.uncreated)
				}
				if got := c.locks.verdicts[keyOf(rev)]; got != tc.verdict {
					t.Errorf("verdict = %q, want %q", got, tc.verdict)
				}
				if got := c.recorded(); !strings.Contains(got, tc.event) {
					t.Errorf("events are:\n%s\nwant one with %q", got, tc.event)
				}
				if got := c.replays.Load(); got > 0 != tc.replayed || got > maxReplays {
					t.Errorf("%d replays, want some: %v, and at most %d", got, tc.replayed, maxReplays)
				}
				if c.inputs.bytes != 0 || len(c.inputs.gathered) != 0 {
					t.Errorf("%d bytes of inputs are left", c.inputs.bytes)
				}
			})
		})
	}
}

// Inputs may wait for hours until others' are duplicated.
func TestWhatIsNoLongerWantedIsNotDuplicated(t *testing.T) {
	for name, change := range map[string]func(*cluster){
		"no traffic":   func(c *cluster) { c.unrouted.Store(true) },
		"deleted":      func(c *cluster) { c.deleted.Store(true) },
		"observe only": func(c *cluster) { c.isStopped.Store(true) },
	} {
		c := newCluster(t, respond(200))
		c.gather(t, newRevision("shop-00001"))
		change(c)
		j, ok := c.inputs.take(c.clock.Now())
		if !ok {
			t.Fatal("nothing is due")
		}
		c.handle(t.Context(), j)
		if c.count("create") != 0 || c.replays.Load() != 0 || len(c.locks.verdicts) != 0 {
			t.Errorf("%s: %d copies and %d replays were made, and the verdicts are %v", name, c.count("create"), c.replays.Load(), c.locks.verdicts)
		}
		if name == "observe only" && c.wants(newRevision("shop-00002")) {
			t.Error("it keeps inputs")
		}
	}
}

func TestRunTakesWhatIsGathered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, respond(200))
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			c.Run(ctx)
			close(done)
		}()
		c.gather(t, newRevision("shop-00001"))
		c.gather(t, newRevision("cart-00001"))
		time.Sleep(time.Minute)
		if got := c.count("create"); got != 2 {
			t.Errorf("%d copies were made, want 2", got)
		}
		if got := c.replays.Load(); got != 2*maxReplays {
			t.Errorf("%d replays, want %d", got, 2*maxReplays)
		}
		cancel()
		<-done
	})
}

// The lock is renewed for as long as a duplication lasts.
func TestLockIsRenewed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, hang)
		c.gather(t, newRevision("shop-00001"))
		j, _ := c.inputs.take(c.clock.Now())
		c.handle(t.Context(), j)
		if want := int(maxReplays/parallel*replayWithin/renewEvery) - 1; c.locks.renewals < want {
			t.Errorf("%d renewals, want at least %d", c.locks.renewals, want)
		}
	})
}

func TestNoCopyWithoutTheLock(t *testing.T) {
	for name, arrange := range map[string]func(*memoryLocks, key){
		"busy":          func(l *memoryLocks, k key) { l.verdicts[k] = verdictBusy },
		"done":          func(l *memoryLocks, k key) { l.verdicts[k] = verdictDone },
		"failed":        func(l *memoryLocks, k key) { l.verdicts[k] = verdictFailed },
		"Redis is away": func(l *memoryLocks, _ key) { l.acquiring = errors.New("no answer") },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCluster(t, respond(200))
				rev := newRevision("shop-00001")
				arrange(c.locks, keyOf(rev))
				c.gather(t, rev)
				j, _ := c.inputs.take(c.clock.Now())
				c.handle(t.Context(), j)
				if len(c.client.Actions()) != 0 || c.replays.Load() != 0 {
					t.Errorf("%d calls of the API, %d replays", len(c.client.Actions()), c.replays.Load())
				}
				if ok, _ := c.inputs.reserve(rev, 1, c.clock.Now()); ok {
					t.Error("inputs are kept again at once")
				}
			})
		})
	}
}

// Redis is asked about a revision before any of its inputs are kept, and a revision that
// is done stays done for as long as requests come.
func TestNothingIsKeptOfWhatIsSettled(t *testing.T) {
	for _, tc := range []struct {
		name      string
		verdict   verdict
		err       error
		kept      bool
		prolonged time.Duration
		again     time.Duration // when it is asked again
	}{
		{name: "nothing is known", kept: true},
		{name: "done", verdict: verdictDone, prolonged: doneFor, again: settledFor},
		{name: "failed", verdict: verdictFailed, again: settledFor},
		{name: "busy", verdict: verdictBusy, again: retryAfter},
		{name: "Redis is away", err: errors.New("no answer"), again: retryAfter},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCluster(t, respond(200))
				rev := newRevision("shop-00001")
				if tc.verdict != verdictNone {
					c.locks.verdicts[keyOf(rev)] = tc.verdict
				}
				c.locks.acquiring = tc.err
				ctx, cancel := context.WithCancel(t.Context())
				done := make(chan struct{})
				go func() {
					c.Run(ctx)
					close(done)
				}()
				defer func() { cancel(); <-done }()

				if ok, why := c.inputs.reserve(rev, 1000, c.clock.Now()); ok || why != reasonNone {
					t.Errorf("before the answer: kept: %v, reason %q", ok, why)
				}
				synctest.Wait()
				if c.inputs.open(keyOf(rev), c.clock.Now()) != tc.kept {
					t.Errorf("more is wanted: %v, want %v", !tc.kept, tc.kept)
				}
				if ok, _ := c.inputs.reserve(rev, 1000, c.clock.Now()); ok != tc.kept {
					t.Errorf("after the answer: kept: %v, want %v", ok, tc.kept)
				}
				if c.locks.prolonged != tc.prolonged {
					t.Errorf("prolonged for %v, want %v", c.locks.prolonged, tc.prolonged)
				}
				if tc.kept {
					return
				}
				time.Sleep(tc.again)
				delete(c.locks.verdicts, keyOf(rev))
				c.locks.acquiring = nil
				c.inputs.reserve(rev, 1000, c.clock.Now())
				synctest.Wait()
				if ok, why := c.inputs.reserve(rev, 1000, c.clock.Now()); !ok {
					t.Errorf("not asked again after %v: %q", tc.again, why)
				}
			})
		})
	}
}

// An activator that has lost its lock leaves the new holder's copy alone.
func TestSuccessorsCopyIsLeftAlone(t *testing.T) {
	for name, lose := range map[string]func(*cluster, func()){
		"while it starts": func(c *cluster, replaced func()) {
			c.neverReady.Store(true)
			time.AfterFunc(5*time.Second, replaced)
		},
		"in replays": func(_ *cluster, replaced func()) { time.AfterFunc(5*time.Second, replaced) },
		"before it knows its own": func(c *cluster, replaced func()) {
			c.locks.renewing = errLost
			c.client.PrependReactor("create", "services", func(action clienttesting.Action) (bool, runtime.Object, error) {
				time.Sleep(renewEvery) // the answer comes once the lock is lost
				err := c.client.Tracker().Add(action.(clienttesting.CreateAction).GetObject())
				replaced()
				return true, nil, errors.Join(errors.New("no answer"), err)
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCluster(t, hang)
				rev := newRevision("shop-00001")
				lose(c, func() { c.replace(t, rev) })
				c.gather(t, rev)
				j, _ := c.inputs.take(c.clock.Now())
				c.handle(t.Context(), j)
				if copies := c.copies(t); len(copies) != 1 || copies[0].UID != "theirs" {
					t.Errorf("%d copies are left, want the other's", len(copies))
				}
				if got := c.locks.verdicts[keyOf(rev)]; got != verdictFailed {
					t.Errorf("verdict = %q, want %q", got, verdictFailed)
				}
			})
		})
	}
}

func TestCopyThatWasReplacedIsNotUsed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, respond(200))
		c.neverReady.Store(true)
		rev := newRevision("shop-00001")
		c.gather(t, rev)
		j, _ := c.inputs.take(c.clock.Now())
		time.AfterFunc(5*time.Second, func() {
			c.replace(t, rev)
			c.neverReady.Store(false)
		})
		c.handle(t.Context(), j)
		if got := c.recorded(); c.replays.Load() != 0 || !strings.Contains(got, "was replaced by someone else") {
			t.Errorf("%d replays; events:\n%s", c.replays.Load(), got)
		}
	})
}

func TestWhatWasLeftBehindIsReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rev := newRevision("shop-00001")
		c := newCluster(t, respond(200), copyOf(rev, api.Resources{}))
		c.gather(t, rev)
		j, _ := c.inputs.take(c.clock.Now())
		c.handle(t.Context(), j)
		if got := c.locks.verdicts[keyOf(rev)]; got != verdictDone {
			t.Errorf("verdict = %q, want %q; events:\n%s", got, verdictDone, c.recorded())
		}
		if len(c.copies(t)) != 0 {
			t.Error("a copy is left")
		}
	})
}

func TestAnothersServiceIsLeftAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rev := newRevision("shop-00001")
		theirs := &v1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: copyName(rev.Name)}}
		c := newCluster(t, respond(200), theirs)
		c.gather(t, rev)
		j, _ := c.inputs.take(c.clock.Now())
		c.handle(t.Context(), j)
		if len(c.copies(t)) != 1 || c.count("delete") != 0 || c.replays.Load() != 0 {
			t.Errorf("%d Services, %d deletions, %d replays", len(c.copies(t)), c.count("delete"), c.replays.Load())
		}
		if got := c.recorded(); !strings.Contains(got, errForeign.Error()) || strings.Count(got, copyName(rev.Name)) != 1 {
			t.Errorf("the events do not say why, and of which Service, once:\n%s", got)
		}
	})
}

func TestCopyThatCannotBeRemovedIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, respond(200))
		c.client.PrependReactor("delete", "services", func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, nil, errors.New("the API server is away")
		})
		c.gather(t, newRevision("shop-00001"))
		j, _ := c.inputs.take(c.clock.Now())
		c.handle(t.Context(), j)
		if got := c.recorded(); !strings.Contains(got, "CopyNotRemoved") || !strings.Contains(got, "the API server is away") {
			t.Errorf("the events do not say so:\n%s", got)
		}
	})
}

func TestSweepRemovesOnlyWhatWasLeftBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		aged := func(name string, age time.Duration, change func(*v1.Service)) *v1.Service {
			service := copyOf(newRevision(name), largest)
			service.CreationTimestamp = metav1.NewTime(time.Now().Add(-age))
			if change != nil {
				change(service)
			}
			return service
		}
		c := newCluster(t, respond(200),
			aged("left", 16*time.Minute, nil),
			aged("elsewhere", time.Hour, func(s *v1.Service) { s.Namespace = "other" }),
			aged("young", 14*time.Minute, nil),
			aged("theirs", time.Hour, func(s *v1.Service) { s.Name = "theirs" }),
			aged("unlabelled", time.Hour, func(s *v1.Service) { s.Labels = nil }),
		)
		c.sweep(t.Context())
		left := map[string]bool{}
		for _, service := range c.copies(t) {
			left[service.Name] = true
		}
		for _, name := range []string{copyName("young"), "theirs", copyName("unlabelled")} {
			if !left[name] {
				t.Errorf("%s was removed", name)
			}
		}
		if len(left) != 3 {
			t.Errorf("left are %v, want 3", left)
		}
	})
}
