package pool

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/util/wait"
	clocktesting "k8s.io/utils/clock/testing"

	"libra.dev/libra/pkg/pool/redistest"
)

// versionsKey is the key of a node that all versions share (lua/1_node.lua).
func versionsKey(node string) string { return "libra:{" + node + "}:versions" }

func newVersion(t testing.TB, addr string, version library) *Redis {
	r := newRedis(t, addr)
	r.library = version
	return r
}

// part is an agent and an activator of one version, which are busy on some nodes.
type part struct {
	*Redis
	nodes []string
	calls atomic.Int64
	// borrowed are Begins that borrowed something.
	borrowed atomic.Int64

	stop context.CancelFunc
	done *errgroup.Group
}

// start keeps invocations beginning and ending until the part is stopped. A call that
// fails ends it.
func start(ctx context.Context, r *Redis, nodes []string) *part {
	ctx, stop := context.WithCancel(ctx)
	p := &part{Redis: r, nodes: nodes, stop: stop}
	p.done, ctx = errgroup.WithContext(ctx)
	for i, node := range nodes {
		p.done.Go(func() error { return p.every(ctx, time.Second, func() error { return p.beat(node) }) })
		p.done.Go(func() error {
			return p.every(ctx, time.Second, func() error { return p.Renew(context.Background(), node, p.owner()) })
		})
		for j := range 2 {
			n := 0
			p.done.Go(func() error {
				return p.every(ctx, 5*time.Millisecond, func() error { n++; return p.invoke(node, fmt.Sprintf("%d-%d-%d", i, j, n)) })
			})
		}
	}
	return p
}

func (p *part) owner() string { return "activator-" + p.library.name() }

func (p *part) every(ctx context.Context, period time.Duration, f func() error) error {
	tick := time.NewTicker(period)
	defer tick.Stop()
	for {
		if err := f(); err != nil {
			return fmt.Errorf("version %d: %w", p.library, err)
		}
		p.calls.Add(1)
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

func (p *part) beat(node string) error {
	ctx := context.Background()
	state, err := p.Read(ctx, node)
	if err != nil {
		return err
	}
	pods := map[string]int64{}
	for i := range 2 {
		for _, side := range []string{"donor", "borrower"} {
			pods[fmt.Sprintf("default/%s-%d", side, i)] = 0
		}
	}
	_, err = p.Heartbeat(ctx, node, Heartbeat{Agent: "agent-" + p.library.name(), Epoch: state.Epoch, Whole: true, Lendable: unlimited, Pods: pods, Rested: slices.Collect(maps.Keys(pods)), RestedAt: state.Now})
	return err
}

// invoke makes one invocation borrow from another, where anything is lent.
func (p *part) invoke(node, id string) error {
	ctx, slot := context.Background(), strings.Split(id, "-")[1]
	id = p.library.name() + "-" + id
	gives, takes := donor(id+"-donor"), borrower(id+"-borrower")
	gives.Pod, takes.Pod = "default/donor-"+slot, "default/borrower-"+slot
	gives.Owner, takes.Owner = p.owner(), p.owner()
	if _, err := p.Begin(ctx, node, gives); err != nil {
		return err
	}
	_, borrowed, err := p.BeginAfter(ctx, node, nil, takes)
	if err != nil {
		return err
	}
	if !borrowed.IsZero() {
		p.borrowed.Add(1)
	}
	_, errTakes := p.End(ctx, node, Ending{ID: takes.ID, Status: 200})
	_, errGives := p.End(ctx, node, Ending{ID: gives.ID, Status: 200})
	return errors.Join(errTakes, errGives)
}

// end stops the part. All its calls have been answered by then.
func (p *part) end(t *testing.T) {
	t.Helper()
	p.stop()
	if err := p.done.Wait(); err != nil {
		t.Error(err)
	}
}

func (p *part) expectLending(t *testing.T, within time.Duration) {
	t.Helper()
	before := p.borrowed.Load()
	from := time.Now()
	err := wait.PollUntilContextTimeout(t.Context(), 10*time.Millisecond, within, true,
		func(context.Context) (bool, error) { return p.borrowed.Load() > before, nil })
	if err != nil {
		t.Fatalf("nothing was borrowed of version %d for %s", p.library, within)
	}
	t.Logf("version %d lends after %s", p.library, time.Since(from).Round(time.Millisecond))
}

// Two versions work on the same nodes at a time, as in an upgrade and a rollback.
func TestVersionsSideBySide(t *testing.T) {
	for _, tc := range []struct {
		name     string
		from, to library
	}{
		{"upgrade", thisLibrary, thisLibrary + 1},
		{"rollback", thisLibrary, thisLibrary - 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			addr := redistest.Start(t)
			nodes := []string{"node-1", "node-2", "node-3"}
			was := start(t.Context(), newVersion(t, addr, tc.from), nodes)
			was.expectLending(t, time.Minute)

			is := start(t.Context(), newVersion(t, addr, tc.to), nodes)
			// By then each has learned of the other with a heartbeat.
			time.Sleep(LeaseTTL)
			borrowedWas, borrowedIs, calls := was.borrowed.Load(), is.borrowed.Load(), is.calls.Load()
			time.Sleep(LeaseTTL)
			if a, b := was.borrowed.Load()-borrowedWas, is.borrowed.Load()-borrowedIs; a+b > 0 {
				t.Errorf("while both have invocations, %d Begins of version %d borrow, and %d of version %d", a, tc.from, b, tc.to)
			}
			if is.calls.Load() == calls {
				t.Fatal("nothing is called: this tests nothing")
			}
			was.end(t)
			is.expectLending(t, time.Minute)
			is.end(t)
		})
	}
}

// Loans end when another version is told of invocations on the node.
func TestLoansEndWhenAnotherVersionComes(t *testing.T) {
	addr := redistest.Start(t)
	r, other := newRedis(t, addr), newVersion(t, addr, thisLibrary+1)
	ctx := redistest.Context(t)
	lendOnce(t, r, "node")
	if err := other.Renew(ctx, "node", "activator-2"); err != nil {
		t.Fatal(err)
	}
	if borrowed, err := r.Begin(ctx, "node", borrower("late")); err != nil || !borrowed.IsZero() {
		t.Errorf("a Begin borrowed %v, %v", borrowed, err)
	}
	beat := Heartbeat{Agent: "agent-1", Epoch: epochOf(t, r, "node"), Whole: true, Lendable: unlimited, Pods: map[string]int64{"default/donor": 0, "default/borrower": 0}}
	if open, err := r.Heartbeat(ctx, "node", beat); err != nil || open {
		t.Errorf("the node is open: %t, %v", open, err)
	}
	state, err := r.Read(ctx, "node")
	if err != nil {
		t.Fatal(err)
	}
	for pod, balance := range state.Pods {
		if !balance.Lent.IsZero() || !balance.Borrowed.IsZero() {
			t.Errorf("%s has balance %+v", pod, balance)
		}
	}
	if ttl, err := r.calls.PTTL(ctx, versionsKey("node")).Result(); err != nil || ttl <= 0 {
		t.Errorf("the key that versions share expires in %v, %v", ttl, err)
	}
}

// A request that another version was told of may still run once that version has no more of them: its client may have left.
func TestWhatAnotherVersionWasToldOfMayRunOn(t *testing.T) {
	addr := redistest.Start(t)
	r, other := newRedis(t, addr), newVersion(t, addr, thisLibrary+1)
	clk := clocktesting.NewFakePassiveClock(epoch)
	r.UseClock(clk)
	other.UseClock(clk)
	ctx := redistest.Context(t)
	lendOnce(t, r, "node")
	for _, id := range []string{"donor", "borrower"} {
		if _, err := r.End(ctx, "node", Ending{ID: id}); err != nil {
			t.Fatal(err)
		}
	}
	beat := Heartbeat{Agent: "agent-1", Epoch: epochOf(t, r, "node"), Whole: true, Lendable: unlimited, Pods: map[string]int64{"default/donor": 0}}
	// lends says what a pod lends after a heartbeat.
	lends := func(id string) bool {
		t.Helper()
		if open, err := r.Heartbeat(ctx, "node", beat); err != nil || !open {
			t.Fatalf("the node is open: %t, %v", open, err)
		}
		inv := donor(id)
		inv.Pod = "default/donor"
		if _, err := r.Begin(ctx, "node", inv); err != nil {
			t.Fatal(err)
		}
		state, err := r.Read(ctx, "node")
		if err != nil {
			t.Fatal(err)
		}
		outcome, err := r.End(ctx, "node", Ending{ID: id})
		if err != nil || outcome.Alone == state.Available.IsZero() {
			t.Fatalf("%v are lent of a pod, and what ends in it is alone: %+v, %v", state.Available, outcome, err)
		}
		return outcome.Alone
	}
	if !lends("before") {
		t.Fatal("a pod at rest lends nothing")
	}

	// The agent is of the other version meanwhile.
	clk.SetTime(epoch.Add(time.Minute))
	if err := other.Renew(ctx, "node", "activator-2"); err != nil {
		t.Fatal(err)
	}
	clk.SetTime(epoch.Add(time.Minute + LeaseTTL))
	if lends("after") || lends("later") {
		t.Error("a pod lends beside what another version was told of")
	}
	beat.Rested, beat.RestedAt = []string{"default/donor"}, clk.Now()
	if !lends("rested") {
		t.Error("a pod at rest lends nothing")
	}
	beat.Rested = nil
	if !lends("last") {
		t.Error("a pod that has rested lends nothing")
	}

	// A version tells once a second at most. What begins after it has told is younger than a heartbeat
	// that comes in between.
	clk.SetTime(epoch.Add(2 * time.Minute))
	if err := other.Renew(ctx, "node", "activator-2"); err != nil {
		t.Fatal(err)
	}
	beat.Rested, beat.RestedAt = []string{"default/donor"}, clk.Now()
	for _, after := range []time.Duration{500 * time.Millisecond, 1500 * time.Millisecond} {
		clk.SetTime(epoch.Add(2*time.Minute + after))
		beat.RestedAt = clk.Now()
		if open, err := r.Heartbeat(ctx, "node", beat); err != nil || open {
			t.Fatalf("the node is open beside another version: %t, %v", open, err)
		}
		beat.Rested = nil
	}
	clk.SetTime(epoch.Add(2*time.Minute + LeaseTTL))
	if lends("beside what began last") {
		t.Error("a pod lends beside what another version may have been told of")
	}
}

// Loading a version leaves the one before it, for processes that still use it.
func TestOldLibrariesGo(t *testing.T) {
	addr := redistest.Start(t)
	ctx := redistest.Context(t)
	r := newRedis(t, addr)
	for _, name := range []string{"libra6", "librarian"} { // the second is not ours
		source := fmt.Sprintf("#!lua name=%s\nredis.register_function('%[1]s_begin', function() return 1 end)", name)
		if err := r.calls.FunctionLoad(ctx, source).Err(); err != nil {
			t.Fatal(err)
		}
	}
	expectLibraries(t, newVersion(t, addr, 7), []string{"libra6", "libra7", "librarian"})
	expectLibraries(t, newVersion(t, addr, 8), []string{"libra7", "libra8", "librarian"})
	expectLibraries(t, newVersion(t, addr, 9), []string{"libra8", "libra9", "librarian"})
	// A process that still uses a deleted library reloads it, and leaves newer ones.
	expectLibraries(t, newVersion(t, addr, 7), []string{"libra7", "libra8", "libra9", "librarian"})
}

func expectLibraries(t *testing.T, r *Redis, want []string) {
	t.Helper()
	ctx := redistest.Context(t)
	if err := r.Renew(ctx, "node", "activator-1"); err != nil {
		t.Fatal(err)
	}
	loaded, err := r.calls.FunctionList(ctx, redis.FunctionListQuery{}).Result()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, l := range loaded {
		names = append(names, l.Name)
	}
	if slices.Sort(names); !slices.Equal(names, want) {
		t.Errorf("version %d has loaded its library, and there are %q; want %q", r.library, names, want)
	}
}
