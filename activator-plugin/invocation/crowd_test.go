package invocation

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"pgregory.net/rapid"

	"libra.dev/libra/activator-plugin/predict"
	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/pool"
	"libra.dev/libra/pkg/pool/pooltest"
)

// Upgraded connections last. Those of a few functions must not keep others' requests from being reported.
func TestUpgradedConnectionsOfAPodAreReportedAsOne(t *testing.T) {
	unlimited := newPod("a", "10.0.0.1")
	unlimited.Spec.Containers[0].Resources.Limits = nil
	for name, pod := range map[string]*corev1.Pod{"with limits": newPod("a", "10.0.0.1"), "without limits": unlimited} {
		t.Run(name, func(t *testing.T) { testUpgradedConnections(t, pod) })
	}
}

func testUpgradedConnections(t *testing.T, pod *corev1.Pod) {
	rec := &recorder{}
	m := newRankingManager(t, rec, full, nil, pod)
	rev := newRevision()
	rev.Spec.ContainerConcurrency = nil
	var ends []func(int)
	for range 2 * samplesFirst {
		req := newRequest(rev)
		req.upgrade = true
		ends = append(ends, m.dispatch(t.Context(), req, revID, "10.0.0.1:80", false))
	}
	m.lifecycle.mu.Lock()
	inFlight := m.lifecycle.inFlight
	m.lifecycle.mu.Unlock()
	for _, end := range ends {
		end(101)
	}
	drain(t, m.lifecycle)
	if inFlight != 1 || len(rec.begins) != 1 || len(rec.ends) != 1 {
		t.Errorf("%d count as in flight, with %d Begins and %d Ends, want one of each", inFlight, len(rec.begins), len(rec.ends))
	}
}

func TestInFlightIsBounded(t *testing.T) {
	other := types.NamespacedName{Namespace: "ns", Name: "other-00001"}
	for _, tc := range []struct {
		name    string
		fill    func(l *lifecycle)
		rev     types.NamespacedName
		started bool
	}{
		{"of the process", func(l *lifecycle) { l.inFlight = maxInFlight }, revID, false},
		{"of the namespace", func(l *lifecycle) { l.namespaces["ns"] = maxOfNamespace }, other, false},
		{"of another namespace", func(l *lifecycle) { l.namespaces["other"] = maxOfNamespace }, other, true},
		{"of the revision", func(l *lifecycle) { l.revisions[revID] = maxOfRevision }, revID, false},
		{"of another revision", func(l *lifecycle) { l.revisions[revID] = maxOfRevision }, other, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			l := newTestLifecycle(t, &recorder{}, clock.RealClock{})
			tc.fill(l)
			f := l.start(tc.rev, "node-a", invocationIn("ns/a", "one more"))
			if started := f != nil; started != tc.started {
				t.Errorf("started: %t, want %t", started, tc.started)
			}
			if f != nil {
				f.finish(200)
				l.running.Wait()
			}
		})
	}
}

// A pod lends nothing while a request beyond the bound is in it, whether it lent before or would
// lend after.
func TestWhatIsBeyondTheBoundEndsWhatItsPodLends(t *testing.T) {
	p := pooltest.NewMemory(clock.RealClock{})
	m := newRankingManager(t, p, full, predictions{revID: {Demand: res(300, 100), Duration: time.Minute}}, newPod("a", "10.0.0.1"))
	rev := newRevision()
	concurrency := int64(10)
	rev.Spec.ContainerConcurrency = &concurrency
	dispatch := func() func(int) { return m.dispatch(t.Context(), newRequest(rev), revID, "10.0.0.1:80", false) }
	expect := func(when string, begun int, available api.Resources) {
		t.Helper()
		var state pool.State
		waitFor(t, when, func() bool {
			openNode(t, p, "ns/a")
			var err error
			if state, err = p.Read(t.Context(), "node-a"); err != nil {
				t.Fatal("Read() =", err)
			}
			return state.Begun == begun && state.Available == available
		})
	}
	openNode(t, p, "ns/a")
	first := dispatch()
	expect("the first to lend", 1, res(600, 384))

	m.lifecycle.mu.Lock()
	m.lifecycle.revisions[revID] += maxOfRevision
	m.lifecycle.mu.Unlock()
	beyond, another := dispatch(), dispatch()
	expect("nothing to be lent beside one beyond the bound", 2, res(0, 0))
	m.lifecycle.mu.Lock()
	m.lifecycle.revisions[revID] -= maxOfRevision
	m.lifecycle.mu.Unlock()
	next := dispatch()
	expect("one within the bound again to lend nothing", 3, res(0, 0))
	beyond(200)
	first(200)
	expect("nothing to be lent while there is one beyond the bound", 2, res(0, 0))
	another(200)
	expect("the last to lend", 1, res(600, 384))
	next(200)
	drain(t, m.lifecycle)
}

func TestCrowdIsToldOfAsOne(t *testing.T) {
	rec := &recorder{}
	m := newRankingManager(t, rec, fixed{mode: api.ModeFull, source: api.SourceNode},
		predictions{revID: predict.Prediction{Demand: res(300, 700), Duration: time.Minute, CPUTime: time.Second}}, newPod("a", "10.0.0.1"))
	m.lifecycle.revisions[revID] = maxOfRevision
	var ends []func(int)
	for range 3 {
		ends = append(ends, m.dispatch(t.Context(), newRequest(newRevision()), revID, "10.0.0.1:80", false))
	}
	for _, end := range ends {
		end(200)
	}
	m.lifecycle.running.Wait()
	m.lifecycle.revisions[revID] -= maxOfRevision
	delete(m.lifecycle.revisions, revID)
	drain(t, m.lifecycle)
	want := []pool.Invocation{{
		Function: "ns/rev-00001", Configuration: "ns/rev", Pod: "ns/a", Domain: "ns", Owner: "owner", Size: api.UnknownSize,
		Allocation: res(1000, 512), Ranked: true,
	}}
	if diff := cmp.Diff(want, rec.begins, cmpopts.IgnoreFields(pool.Invocation{}, "ID", "Number")); diff != "" {
		t.Error("Begins (-want, +got):\n" + diff)
	}
	if len(rec.ends) != 1 || !rec.ends[0].Late {
		t.Errorf("Ends %+v, want one, late", rec.ends)
	}
}

// However requests beyond the bound come and go, and whatever the pool does, a pod has at most
// one flight for them. While any of them is there, the pool knows of one, if it answers. In the
// end it knows of none.
func TestCrowdProperties(t *testing.T) {
	times := rapid.SampledFrom([]time.Duration{0, time.Millisecond, 20 * time.Millisecond, 300 * time.Millisecond, 3 * time.Second})
	type visit struct {
		after, stays time.Duration
		abandoned    bool
	}
	rapid.Check(t, func(rt *rapid.T) {
		visits := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) visit {
			return visit{times.Draw(t, "after"), times.Draw(t, "stays"), rapid.Bool().Draw(t, "abandoned")}
		}), 1, 20).Draw(rt, "visits")
		away := times.Draw(rt, "away")
		synctest.Test(t, func(t *testing.T) {
			begun := time.Now()
			unlessAway := func(ctx context.Context) error {
				if time.Since(begun) < away {
					return errors.New("connection refused")
				}
				return nil
			}
			memory := pooltest.NewMemory(clock.RealClock{})
			book := newLedger(&hooked{Pool: memory, hook: unlessAway})
			l := newTestLifecycle(t, book, clock.RealClock{})
			l.logger = zap.NewNop().Sugar()
			ctx, cancel := context.WithCancel(t.Context())
			var renewing sync.WaitGroup
			renewing.Go(func() { l.renewLeases(ctx) })
			for i, v := range visits {
				time.Sleep(v.after)
				l.running.Go(func() {
					leave := l.join(revID, "node-a", invocationIn("ns/a", fmt.Sprint(i)))
					l.mu.Lock()
					if l.inFlight != 1 {
						rt.Errorf("%d flights are kept for one pod", l.inFlight)
					}
					l.mu.Unlock()
					time.Sleep(v.stays)
					state, err := memory.Read(t.Context(), "node-a")
					if reachable := time.Since(begun) - away; min(v.stays, reachable) > retryTimeout+maxBackoff && (err != nil || state.Begun != 1) {
						rt.Errorf("the pool knows of %d invocations (%v) where there has been one for %s, want 1", state.Begun, err, v.stays)
					}
					leave(v.abandoned)
				})
			}
			l.running.Wait()
			drain(t, l)
			cancel()
			renewing.Wait()
			for _, wrong := range book.mistakes("node-a") {
				rt.Error(wrong)
			}
			abandoned := slices.ContainsFunc(visits, func(v visit) bool { return v.abandoned })
			if state, err := memory.Read(t.Context(), "node-a"); err != nil || slices.Contains(state.Unseen, "ns/a") != abandoned {
				rt.Errorf("the pods that may compute for clients that left are %v, %v, want ns/a: %t", state.Unseen, err, abandoned)
			}
		})
	})
}

// hooked is a pool whose calls fail as a hook says.
type hooked struct {
	pool.Pool
	hook func(context.Context) error
}

func (h *hooked) Begin(ctx context.Context, node string, inv pool.Invocation) (api.Resources, error) {
	if err := h.hook(ctx); err != nil {
		return api.Resources{}, err
	}
	return h.Pool.Begin(ctx, node, inv)
}

func (h *hooked) Renew(ctx context.Context, node, owner string) error {
	if err := h.hook(ctx); err != nil {
		return err
	}
	return h.Pool.Renew(ctx, node, owner)
}

func (h *hooked) End(ctx context.Context, node string, e pool.Ending) (pool.Outcome, error) {
	if err := h.hook(ctx); err != nil {
		return pool.Outcome{}, err
	}
	return h.Pool.End(ctx, node, e)
}

// outcomes is a pool that keeps the outcome of each invocation.
type outcomes struct {
	pool.Pool
	mu   sync.Mutex
	each []pool.Outcome
}

func (o *outcomes) End(ctx context.Context, node string, e pool.Ending) (pool.Outcome, error) {
	outcome, err := o.Pool.End(ctx, node, e)
	o.mu.Lock()
	defer o.mu.Unlock()
	o.each = append(o.each, outcome)
	return outcome, err
}

// Where a pod takes any number of requests, another activator's request does not count as alone
// beside one that is not reported by itself.
func TestNobodyIsAloneBesideACrowd(t *testing.T) {
	p := &outcomes{Pool: pooltest.NewMemory(clock.RealClock{})}
	rev := newRevision()
	rev.Spec.ContainerConcurrency = new(int64)
	activator := func(owner string) *Manager {
		m := newRankingManager(t, p, full, nil, newPod("a", "10.0.0.1"))
		m.lifecycle.owner = owner
		return m
	}
	one, other := activator("one"), activator("other")
	for range samplesFirst + 1 {
		dispatchOnce(one, rev, "10.0.0.1:80")
		one.lifecycle.running.Wait()
	}
	for _, beside := range []bool{true, false} {
		crowded := func(int) {}
		if beside {
			crowded = one.dispatch(t.Context(), newRequest(rev), revID, "10.0.0.1:80", false)
			waitFor(t, "the Begin of the crowd", func() bool {
				state, err := p.Read(t.Context(), "node-a")
				return err == nil && state.Begun == 1
			})
		}
		p.each = nil
		dispatchOnce(other, rev, "10.0.0.1:80")
		other.lifecycle.running.Wait()
		if len(p.each) != 1 || !p.each[0].Found || p.each[0].Alone == beside {
			t.Errorf("beside a crowd: %t: outcomes %+v, want one, alone: %t", beside, p.each, !beside)
		}
		crowded(200)
		one.lifecycle.running.Wait()
	}
	drain(t, one.lifecycle)
	drain(t, other.lifecycle)
}
