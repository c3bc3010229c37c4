package invocation

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/redis/go-redis/v9"
	"go.opentelemetry.io/otel/metric/noop"
	"go.uber.org/zap/zaptest"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/pool"
	"libra.dev/libra/pkg/pool/pooltest"
	"libra.dev/libra/pkg/pool/redistest"
	"libra.dev/libra/pkg/redisconn"
)

func newTestLifecycle(t testing.TB, p pool.Pool, clk clock.WithTicker) *lifecycle {
	t.Helper()
	m, err := newMetrics(noop.NewMeterProvider())
	if err != nil {
		t.Fatal("newMetrics() =", err)
	}
	l := newLifecycle(p, "owner", clk, zaptest.NewLogger(t).Sugar(), m)
	l.beginTimeout, l.lateAfter = testTimeout, testTimeout
	return l
}

func drain(t testing.TB, l *lifecycle) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	defer cancel()
	if err := l.drain(ctx); err != nil {
		t.Fatal("drain() =", err)
	}
	if l.inFlight+len(l.nodes)+len(l.revisions)+len(l.crowds)+len(l.lending)+len(l.ending)+len(l.lingering) != 0 {
		t.Errorf("after all had ended there are left: %d in flight, on nodes %v, of revisions %v, crowds %v, lending from %v, ending in %v, lingering %v",
			l.inFlight, l.nodes, l.revisions, l.crowds, l.lending, l.ending, l.lingering)
	}
}

func invocationIn(pod, id string) pool.Invocation {
	return pool.Invocation{ID: id, Function: revID.String(), Pod: pod, Domain: "ns"}
}

func TestBeginThenEnd(t *testing.T) {
	rec := &recorder{}
	clk := clocktesting.NewFakeClock(time.Now())
	l := newTestLifecycle(t, rec, clk)

	f := l.start(revID, "node-a", invocationIn("ns/a", "1"))
	rec.await(t, 1)
	clk.Step(1500 * time.Millisecond)
	f.finish(201)
	drain(t, l)

	want := invocationIn("ns/a", "1")
	want.Owner, want.Number = "owner", 1
	if diff := cmp.Diff([]pool.Invocation{want}, rec.begins); diff != "" {
		t.Error("Begin (-want, +got):\n" + diff)
	}
	if diff := cmp.Diff([]pool.Ending{{ID: "1", Duration: 1500 * time.Millisecond, Status: 201, BeginAnswered: true}}, rec.ends); diff != "" {
		t.Error("End (-want, +got):\n" + diff)
	}
}

func TestEndWaitsForBegin(t *testing.T) {
	release := make(chan struct{})
	rec := &recorder{beginHook: func(context.Context, pool.Invocation) error {
		<-release
		return errors.New("lost")
	}}
	l := newTestLifecycle(t, rec, clock.RealClock{})

	l.start(revID, "node-a", invocationIn("ns/a", "1")).finish(200)
	close(release)
	drain(t, l)

	// A Begin that failed may have taken effect, so its invocation is ended like any other.
	if diff := cmp.Diff([]string{"begin node-a 1", "end node-a 1"}, rec.calls); diff != "" {
		t.Error("Calls (-want, +got):\n" + diff)
	}
}

// endingLate is a pool that answers the End of an invocation when release is closed.
func endingLate(id string, release <-chan struct{}) *recorder {
	return &recorder{endHook: func(_ context.Context, e pool.Ending) error {
		if e.ID == id {
			<-release
		}
		return nil
	}}
}

// A pod may lend until the pool has answered the End of each invocation that could lend, whatever
// else ends in it meanwhile.
func TestLendsUntilEndsAreAnswered(t *testing.T) {
	release := make(chan struct{})
	rec := endingLate("1", release)
	l := newTestLifecycle(t, rec, clock.RealClock{})
	if l.lends("ns/a") {
		t.Error("a pod lends in which nothing was")
	}
	donor := invocationIn("ns/a", "1")
	donor.Surplus = res(0, 64)
	l.start(revID, "node-a", donor).finish(200)
	l.start(revID, "node-a", invocationIn("ns/b", "2")).finish(200)
	l.start(revID, "node-a", invocationIn("ns/a", "3")).finish(200)
	if !l.lends("ns/a") || l.lends("ns/b") {
		t.Errorf("lends are %v, want those of ns/a only", l.lending)
	}
	close(release)
	drain(t, l)
	if l.lends("ns/a") {
		t.Error("a pod lends after the End was answered")
	}
}

func TestBeginHasADeadline(t *testing.T) {
	rec := &recorder{beginHook: func(ctx context.Context, _ pool.Invocation) error {
		<-ctx.Done()
		return ctx.Err()
	}}
	l := newTestLifecycle(t, rec, clocktesting.NewFakeClock(time.Now()))
	l.beginTimeout = time.Millisecond

	f := l.start(revID, "node-a", invocationIn("ns/a", "1"))
	rec.await(t, 1)
	f.finish(200)
	drain(t, l)
	// Its Begin may still be on its way.
	if len(rec.ends) != 1 || rec.ends[0].BeginAnswered {
		t.Errorf("Ends %+v, want 1 after a Begin without an answer", rec.ends)
	}
}

func TestBeginIsTriedWhileTheInvocationRuns(t *testing.T) {
	backoffs := []time.Duration{
		10 * time.Millisecond, 20 * time.Millisecond, 40 * time.Millisecond, 80 * time.Millisecond,
		160 * time.Millisecond, 320 * time.Millisecond, 640 * time.Millisecond, time.Second, time.Second,
	}
	failures := len(backoffs)
	rec := &recorder{beginHook: func(context.Context, pool.Invocation) error {
		if failures--; failures >= 0 {
			return errors.New("connection refused")
		}
		return nil
	}}
	clk := clocktesting.NewFakeClock(time.Now())
	l := newTestLifecycle(t, rec, clk)
	inv := invocationIn("ns/a", "1")
	inv.Duration = 2500 * time.Millisecond
	f := l.start(revID, "node-a", inv)

	for i, backoff := range backoffs {
		rec.await(t, 1+i)
		waitFor(t, "the back-off", clk.HasWaiters)
		clk.Step(backoff)
	}
	calls := rec.await(t, 1+len(backoffs))
	f.finish(200)
	drain(t, l)

	if want := slices.Repeat([]string{"begin node-a 1"}, 1+len(backoffs)); !slices.Equal(calls, want) {
		t.Errorf("Calls before the end: %q, want %q", calls, want)
	}
	// What else ran in the pod before the pool heard of this one is not known to it.
	if len(rec.ends) != 1 || !rec.ends[0].Late {
		t.Errorf("Ends: %+v, want one, late", rec.ends)
	}
	passed := time.Duration(0)
	for i, begin := range rec.begins {
		if want := max(0, inv.Duration-passed); begin.Duration != want {
			t.Errorf("attempt %d is predicted to last another %v, want %v", i+1, begin.Duration, want)
		}
		if i < len(backoffs) {
			passed += backoffs[i]
		}
	}
}

// A transfer to or from an invocation that is about to end would not pay, also when it is about to
// end because the pool was away. Memory that it cannot do without is an exception. For a borrower,
// the time that it takes without the loan counts; for a donor, the time at which it may be over.
func TestLateBeginTransfersNothingForTooShort(t *testing.T) {
	for _, concurrency := range []int{1, 2} {
		testLateBegin(t, concurrency)
	}
}

func testLateBegin(t *testing.T, concurrency int) {
	backoffs := []time.Duration{beginBackoff, 2 * beginBackoff, 4 * beginBackoff}
	failures := len(backoffs)
	rec := &recorder{beginHook: func(context.Context, pool.Invocation) error {
		if failures--; failures >= 0 {
			return errors.New("connection refused")
		}
		return nil
	}}
	clk := clocktesting.NewFakeClock(time.Now())
	l := newTestLifecycle(t, rec, clk)
	inv := invocationIn("ns/a", "1")
	inv.MinRemaining = 300 * time.Millisecond
	inv.Duration, inv.WithoutLoan = inv.MinRemaining+beginBackoff, inv.MinRemaining+3*beginBackoff
	inv.Surplus, inv.Want, inv.Concurrency = res(600, 0), res(300, 88), concurrency
	f := l.start(revID, "node-a", inv)
	for i, backoff := range backoffs {
		rec.await(t, 1+i)
		waitFor(t, "the back-off", clk.HasWaiters)
		clk.Step(backoff)
	}
	rec.await(t, 1+len(backoffs))
	f.finish(200)
	drain(t, l)

	for i, want := range []struct{ lends, borrows bool }{{true, true}, {true, true}, {false, true}, {false, false}} {
		begin := rec.begins[i]
		if borrows := begin.Want.CPUMilli > 0; borrows != want.borrows || begin.Want.MemoryBytes != 88*mi {
			t.Errorf("attempt %d, %v before its end without a loan, wants %v; CPU: want %v", i+1, begin.WithoutLoan, begin.Want, want.borrows)
		}
		// Others in its pod may lend for longer.
		if lends := !begin.Surplus.IsZero(); lends != (want.lends || concurrency > 1) {
			t.Errorf("attempt %d of one of %d, %v before its end, lends: %v", i+1, concurrency, begin.Duration, lends)
		}
	}
}

func TestBeginIsNotTriedAfterTheInvocation(t *testing.T) {
	rec := &recorder{beginHook: func(context.Context, pool.Invocation) error { return errors.New("connection refused") }}
	l := newTestLifecycle(t, rec, clocktesting.NewFakeClock(time.Now()))
	f := l.start(revID, "node-a", invocationIn("ns/a", "1"))
	rec.await(t, 1)
	f.finish(200)
	drain(t, l)
	if diff := cmp.Diff([]string{"begin node-a 1", "end node-a 1"}, rec.calls); diff != "" {
		t.Error("Calls (-want, +got):\n" + diff)
	}
	if rec.ends[0].Late {
		t.Error("the End is late, though its only Begin was sent at once")
	}
}

// Every End after a late Begin is late, also the first.
func TestEndAfterALateBegin(t *testing.T) {
	begins, ends := 1, 2
	rec := &recorder{
		beginHook: func(context.Context, pool.Invocation) error {
			if begins--; begins >= 0 {
				return errors.New("connection refused")
			}
			return nil
		},
		endHook: func(ctx context.Context, e pool.Ending) error {
			if ends--; ends < 0 {
				return nil
			}
			if ends == 1 {
				<-ctx.Done() // as a busy machine would miss the first deadline
			}
			return errors.New("not answered")
		},
	}
	clk := clocktesting.NewFakeClock(time.Now())
	l := newTestLifecycle(t, rec, clk)
	l.lateAfter = time.Millisecond
	f := l.start(revID, "node-a", invocationIn("ns/a", "1"))
	waitFor(t, "the back-off of the Begin", clk.HasWaiters)
	clk.Step(beginBackoff)
	rec.await(t, 2)
	f.finish(200)

	waitFor(t, "the back-off of the End", clk.HasWaiters)
	clk.Step(endBackoff)
	rec.await(t, 4)
	waitFor(t, "the next back-off of the End", clk.HasWaiters)
	clk.Step(2 * endBackoff)
	drain(t, l)
	for i, e := range rec.ends {
		if !e.Late {
			t.Errorf("End %d is not late", i+1)
		}
	}
}

func TestEndIsTriedUntilAnswered(t *testing.T) {
	backoffs := []time.Duration{
		100 * time.Millisecond, 200 * time.Millisecond, 400 * time.Millisecond, 800 * time.Millisecond,
		time.Second, time.Second,
	}
	failures := len(backoffs)
	rec := &recorder{endHook: func(context.Context, pool.Ending) error {
		if failures--; failures >= 0 {
			return errors.New("connection refused")
		}
		return nil
	}}
	clk := clocktesting.NewFakeClock(time.Now())
	l := newTestLifecycle(t, rec, clk)
	l.start(revID, "node-a", invocationIn("ns/a", "1")).finish(200)

	for i, backoff := range backoffs {
		waitFor(t, "the back-off", clk.HasWaiters)
		clk.Step(backoff - time.Nanosecond)
		if got := len(rec.await(t, 0)); got != 2+i {
			t.Fatalf("after less than the back-off of %v there were %d calls, want %d", backoff, got, 2+i)
		}
		clk.Step(time.Nanosecond)
		rec.await(t, 3+i)
	}
	drain(t, l)
	for i, e := range rec.ends {
		if want := i > 0; e.Late != want {
			t.Errorf("attempt %d is late: %v, want %v", i+1, e.Late, want)
		}
	}
}

func TestEndThatIsAnsweredTooLateIsSentAgain(t *testing.T) {
	rec := &recorder{endHook: func(ctx context.Context, e pool.Ending) error {
		if e.Late {
			return nil
		}
		<-ctx.Done()
		return ctx.Err()
	}}
	l := newTestLifecycle(t, rec, clock.RealClock{})
	l.lateAfter = time.Millisecond
	l.start(revID, "node-a", invocationIn("ns/a", "1")).finish(200)
	drain(t, l)
	if len(rec.ends) != 2 {
		t.Errorf("%d Ends, want 2", len(rec.ends))
	}
}

func TestDrainGivesUp(t *testing.T) {
	rec := &recorder{endHook: func(context.Context, pool.Ending) error { return errors.New("connection refused") }}
	l := newTestLifecycle(t, rec, clock.RealClock{})
	l.start(revID, "node-a", invocationIn("ns/a", "1")).finish(200)
	rec.await(t, 2)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := l.drain(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("drain() = %v, want context.Canceled", err)
	}
	l.running.Wait()
}

// endsLost is a pool that loses Ends while lost is set.
type endsLost struct {
	pool.Pool
	lost atomic.Bool
}

func (p *endsLost) End(ctx context.Context, node string, e pool.Ending) (pool.Outcome, error) {
	if p.lost.Load() {
		return pool.Outcome{}, errors.New("connection refused")
	}
	return p.Pool.End(ctx, node, e)
}

// An owner's lease covers all that it has on a node: the pool does not end an invocation whose End
// was lost while another one runs.
func TestEndIsNotLostWhileTheLeaseIsRenewed(t *testing.T) {
	clk := clocktesting.NewFakeClock(time.Now())
	memory := pooltest.NewMemory(clk)
	p := &endsLost{Pool: memory}
	l := newTestLifecycle(t, p, clk)
	state := func() pool.State {
		t.Helper()
		s, err := memory.Read(t.Context(), "node-a")
		if err != nil {
			t.Fatal("Read() =", err)
		}
		return s
	}
	start := func(id string, surplus, want api.Resources) *flight {
		t.Helper()
		inv := invocationIn("ns/"+id, id)
		inv.Duration, inv.Allocation, inv.Surplus, inv.Want = time.Hour, res(1000, 512), surplus, want
		before := state().Begun
		f := l.start(revID, "node-a", inv)
		waitFor(t, "the begin of the "+id, func() bool { return state().Begun > before })
		return f
	}
	openNode(t, memory, "ns/donor", "ns/borrower")
	donor := start("donor", res(400, 0), res(0, 0))
	borrower := start("borrower", res(0, 0), res(300, 0))

	p.lost.Store(true)
	donor.finish(200)
	for passed := time.Duration(0); passed <= 2*pool.LeaseTTL; passed += renewEvery {
		waitFor(t, "the back-off", clk.HasWaiters)
		clk.Step(renewEvery)
		l.renew(t.Context())
	}
	if got := state(); got.Begun != 2 || len(got.Pods) != 2 {
		t.Fatalf("while the End is lost and the lease renewed the state is %+v, want the loan to stay", got)
	}
	p.lost.Store(false)
	waitFor(t, "the End", func() bool {
		clk.Step(time.Millisecond)
		return state().Begun == 1
	})
	if got := state(); len(got.Pods) != 0 {
		t.Errorf("balances after the End: %v, want none", got.Pods)
	}
	borrower.finish(200)
	drain(t, l)
}

func waitFor(t testing.TB, what string, condition func() bool) {
	t.Helper()
	err := wait.PollUntilContextTimeout(context.Background(), time.Millisecond, testTimeout, true,
		func(context.Context) (bool, error) { return condition(), nil })
	if err != nil {
		t.Fatalf("Waiting for %s: %v", what, err)
	}
}

func TestNextInAPodBeginsAfterTheLastHasEnded(t *testing.T) {
	release := make(chan struct{})
	rec := endingLate("1", release)
	l := newTestLifecycle(t, rec, clock.RealClock{})

	l.start(revID, "node-a", invocationIn("ns/a", "1")).finish(200)
	second := l.start(revID, "node-a", invocationIn("ns/a", "2"))
	// An invocation in another pod does not wait.
	l.start(revID, "node-a", invocationIn("ns/b", "3")).finish(200)
	rec.await(t, 3)
	close(release)
	rec.await(t, 5)
	second.finish(200)
	drain(t, l)

	var ofPod []string
	for _, c := range rec.calls {
		if c != "begin node-a 3" && c != "end node-a 3" {
			ofPod = append(ofPod, c)
		}
	}
	if diff := cmp.Diff([]string{"begin node-a 1", "end node-a 1", "begin node-a 2", "end node-a 2"}, ofPod); diff != "" {
		t.Error("Calls for one pod (-want, +got):\n" + diff)
	}
}

// afterALateEnd returns a lifecycle in which an invocation has ended in the pod ns/a. Its End is answered after release.
func afterALateEnd(t *testing.T, clk clock.WithTicker, release <-chan struct{}) (*lifecycle, *recorder) {
	t.Helper()
	rec := endingLate("1", release)
	l := newTestLifecycle(t, rec, clk)
	l.start(revID, "node-a", invocationIn("ns/a", "1")).finish(200)
	rec.await(t, 1)
	return l, rec
}

// The pool takes the Duration to begin with the Begin, and a donor must not last longer than predicted.
func TestABeginThatWaitsSaysWhatIsLeft(t *testing.T) {
	clk, release := clocktesting.NewFakeClock(time.Now()), make(chan struct{})
	l, rec := afterALateEnd(t, clk, release)
	inv := invocationIn("ns/a", "2")
	inv.Duration, inv.WithoutLoan = 300*time.Millisecond, 500*time.Millisecond
	second := l.start(revID, "node-a", inv)
	clk.Step(200 * time.Millisecond)
	close(release)
	rec.await(t, 3)
	second.finish(200)
	drain(t, l)
	if got := rec.begins[1]; got.Duration != 100*time.Millisecond || got.WithoutLoan != 300*time.Millisecond {
		t.Errorf("the second is predicted to last another %v, and %v without a loan; want 100ms and 300ms", got.Duration, got.WithoutLoan)
	}
}

// An invocation that is over before the End of the last one in its pod is answered never begins.
// The next one still waits for that End: it would otherwise count the last one among those that
// the pool does not know, although the pool may have ended it.
func TestNextInAPodDoesNotWaitForLong(t *testing.T) {
	clk, release := clocktesting.NewFakeClock(time.Now()), make(chan struct{})
	l, rec := afterALateEnd(t, clk, release)
	l.beginTimeout = time.Millisecond
	second := l.start(revID, "node-a", invocationIn("ns/a", "2"))
	waitFor(t, "the second to be tried", clk.HasWaiters)
	second.finish(200)
	l.beginTimeout = testTimeout
	third := l.start(revID, "node-a", invocationIn("ns/a", "3"))
	select {
	case <-second.answered:
		t.Error("the second stands for the End before it no more, which is not answered")
	case <-time.After(20 * time.Millisecond):
	}
	close(release)
	third.finish(200)
	drain(t, l)

	if diff := cmp.Diff([]string{"begin node-a 1", "end node-a 1", "begin node-a 3", "end node-a 3"}, rec.calls); diff != "" {
		t.Error("Calls (-want, +got):\n" + diff)
	}
	if others := rec.begins[1].Others; others != 0 {
		t.Errorf("the third counts %d others in its pod, want none", others)
	}
}

func TestLeasesAreRenewedWhereInvocationsAre(t *testing.T) {
	rec := &recorder{}
	clk := clocktesting.NewFakeClock(time.Now())
	l := newTestLifecycle(t, rec, clk)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		l.renewLeases(ctx)
	}()
	defer func() {
		cancel()
		<-done
	}()
	waitFor(t, "the ticker", clk.HasWaiters)

	a := l.start(revID, "node-a", invocationIn("ns/a", "1"))
	b := l.start(revID, "node-b", invocationIn("ns/b", "2"))
	rec.await(t, 2)
	clk.Step(renewEvery)
	renewals := rec.await(t, 4)[2:]
	slices.Sort(renewals)
	if diff := cmp.Diff([]string{"renew node-a owner", "renew node-b owner"}, renewals); diff != "" {
		t.Error("Renewals (-want, +got):\n" + diff)
	}

	a.finish(200)
	waitFor(t, "the end on node-a, and the renewals", func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return len(l.nodes) == 1 && len(l.unrenewed) == 0
	})
	clk.Step(renewEvery)
	calls := rec.await(t, 6)
	if diff := cmp.Diff("renew node-b owner", calls[5]); diff != "" {
		t.Error("Renewal (-want, +got):\n" + diff)
	}
	b.finish(200)
	drain(t, l)
}

// A Begin counts the others in the pod that the pool may not know of, but not those whose End is
// answered or goes along with the Begin.
func TestBeginCountsOthers(t *testing.T) {
	hold := make(chan struct{})
	rec := &recorder{beginHook: func(_ context.Context, inv pool.Invocation) error {
		if inv.ID == "1" {
			<-hold
		}
		return nil
	}}
	l := newTestLifecycle(t, rec, clock.RealClock{})
	begin := func(pod, id string, calls int) *flight {
		f := l.start(revID, "node-a", invocationIn(pod, id))
		rec.await(t, calls)
		return f
	}
	first := l.start(revID, "node-a", invocationIn("ns/a", "1"))
	second := begin("ns/a", "2", 1)
	elsewhere := begin("ns/b", "3", 2)
	second.finish(200)
	rec.await(t, 3)
	<-second.answered
	third := begin("ns/a", "4", 4)
	close(hold)
	rec.await(t, 5)
	first.finish(200)
	third.finish(200)
	elsewhere.finish(200)
	drain(t, l)

	others := map[string]int{}
	for _, inv := range rec.begins {
		others[inv.ID] = inv.Others
	}
	if diff := cmp.Diff(map[string]int{"1": 0, "2": 1, "3": 0, "4": 1}, others); diff != "" {
		t.Error("Others (-want, +got):\n" + diff)
	}
}

// An invocation that the pool has lost is still in the pod: the next Begin there counts it.
func TestWhatThePoolHasLostIsNotLent(t *testing.T) {
	addr := redistest.Start(t)
	p := pool.NewRedis(redisconn.MustParse(addr))
	defer p.Close()
	l := newTestLifecycle(t, p, clock.RealClock{})
	begin := func(id string, want int) (*flight, pool.State) {
		inv := invocationIn("ns/a", id)
		inv.Allocation, inv.Surplus, inv.Need = res(1000, 512), res(600, 0), res(400, 512)
		inv.Concurrency, inv.Duration = 3, time.Minute
		f := l.start(revID, "node-a", inv)
		var state pool.State
		waitFor(t, "the Begin of "+id, func() bool {
			openNode(t, p, "ns/a")
			var err error
			if state, err = p.Read(t.Context(), "node-a"); err != nil {
				t.Fatal("Read() =", err)
			}
			return state.Begun == want
		})
		return f, state
	}
	openNode(t, p, "ns/a")
	before, state := begin("1", 1)
	if state.Available != res(600, 0) {
		t.Fatalf("Available is %v, want what the one in the pod leaves", state.Available)
	}
	client := redis.NewClient(&redis.Options{Addr: addr})
	defer client.Close()
	if err := client.FlushAll(t.Context()).Err(); err != nil {
		t.Fatal("FlushAll() =", err)
	}
	openNode(t, p, "ns/a")
	after, state := begin("2", 1)
	if !state.Available.IsZero() {
		t.Errorf("Available is %v beside one that the pool has lost", state.Available)
	}
	before.finish(200)
	<-before.answered
	last, state := begin("3", 2)
	if state.Available != res(200, 0) {
		t.Errorf("Available is %v, want what the two in the pod leave", state.Available)
	}
	after.finish(200)
	last.finish(200)
	drain(t, l)
}
