package pool

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/util/wait"
	testingclock "k8s.io/utils/clock/testing"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/pool/redistest"
	"libra.dev/libra/pkg/redisconn"
)

func newRedis(t testing.TB, addr string) *Redis {
	r := NewRedis(redisconn.MustParse(addr))
	t.Cleanup(func() { r.Close() })
	return r
}

var (
	epoch      = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	allocation = api.Resources{CPUMilli: 1000, MemoryBytes: 512 << 20}
	unlimited  = api.Resources{CPUMilli: MostVolume, MemoryBytes: MostVolume}
)

// openNode makes all named pods take part, without a floor and at rest.
func openNode(t testing.TB, p Pool, node string, pods ...string) {
	t.Helper()
	state, err := p.Read(redistest.Context(t), node)
	if err != nil {
		t.Fatal(err)
	}
	hb := Heartbeat{Agent: "agent-1", Epoch: state.Epoch, Whole: true, Lendable: unlimited, Pods: map[string]int64{}, Rested: pods, RestedAt: state.Now}
	for _, pod := range pods {
		hb.Pods[pod] = 0
	}
	if open, err := p.Heartbeat(redistest.Context(t), node, hb); err != nil || !open {
		t.Fatalf("a heartbeat of a node that is whole opened it: %t, %v", open, err)
	}
}

func donor(id string) Invocation {
	return Invocation{
		ID: id, Function: "default/resize-00001", Pod: "default/" + id, Domain: "default", Owner: "activator-1",
		Allocation: allocation, Duration: time.Minute, Surplus: api.Resources{CPUMilli: 500, MemoryBytes: 256 << 20},
	}
}

func borrower(id string) Invocation {
	inv := donor(id)
	inv.Surplus, inv.Want = api.Resources{}, inv.Surplus
	return inv
}

// ranked returns an invocation that neither lends nor borrows.
func ranked(id, pod string, cpuTime time.Duration) Invocation {
	inv := donor(id)
	inv.Pod, inv.Duration, inv.Surplus, inv.Ranked, inv.CPUTime = "default/"+pod, 0, api.Resources{}, true, cpuTime
	return inv
}

// lendOnce opens the node and makes one invocation borrow from another.
func lendOnce(t *testing.T, p Pool, node string) {
	t.Helper()
	ctx := redistest.Context(t)
	openNode(t, p, node, "default/donor", "default/borrower")
	if _, err := p.Begin(ctx, node, donor("donor")); err != nil {
		t.Fatal(err)
	}
	borrowed, err := p.Begin(ctx, node, borrower("borrower"))
	if err != nil {
		t.Fatal(err)
	}
	if want := donor("donor").Surplus; borrowed != want {
		t.Fatalf("borrowed %v, want %v", borrowed, want)
	}
}

func TestServerClock(t *testing.T) {
	r := newRedis(t, redistest.Start(t))
	ctx := redistest.Context(t)
	inv := ranked("invocation", "pod", 0)
	openNode(t, r, "node", inv.Pod)
	earliest, errEarliest := r.calls.Time(ctx).Result()
	_, errBegin := r.Begin(ctx, "node", inv)
	latest, errLatest := r.calls.Time(ctx).Result()
	state, errRead := r.Read(ctx, "node")
	if err := errors.Join(errEarliest, errBegin, errLatest, errRead); err != nil {
		t.Fatal(err)
	}
	if len(state.InFlight[inv.Pod]) != 1 {
		t.Fatalf("there are %v in flight in %s, which is one", state.InFlight[inv.Pod], inv.Pod)
	}
	begun := state.Now.Add(-state.InFlight[inv.Pod][0].Age)
	if begun.Before(earliest.Truncate(time.Millisecond)) || begun.After(latest) {
		t.Errorf("it begins between %v and %v, and is taken to begin at %v", earliest, latest, begun)
	}
}

func TestLibraryIsLoadedAgain(t *testing.T) {
	r := newRedis(t, redistest.Start(t))
	lendOnce(t, r, "node-1")

	ctx := redistest.Context(t)
	if err := r.calls.FlushAll(ctx).Err(); err != nil {
		t.Fatal(err)
	}
	if err := r.calls.FunctionFlush(ctx).Err(); err != nil {
		t.Fatal(err)
	}
	state, err := r.Read(ctx, "node-1")
	if err != nil {
		t.Fatal(err)
	}
	if len(state.Pods) != 0 || state.Begun != 0 {
		t.Fatalf("after a flush the state is %+v, want an empty one", state)
	}
	borrowed, err := r.Begin(ctx, "node-1", donor("late"))
	if err != nil || !borrowed.IsZero() {
		t.Fatalf("begin after a flush borrowed %v, %v", borrowed, err)
	}
	if state, err = r.Read(ctx, "node-1"); err != nil || !state.Available.IsZero() {
		t.Fatalf("a node that was open before a flush lends %v after it (%v)", state.Available, err)
	}
	lendOnce(t, r, "node-2")
}

// Calls that give back or keep alive must work when no others do.
func TestEndWithoutMemory(t *testing.T) {
	r := newRedis(t, redistest.Start(t))
	lendOnce(t, r, "node")

	ctx := redistest.Context(t)
	if err := r.calls.ConfigSet(ctx, "maxmemory", "1").Err(); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Begin(ctx, "node", donor("late")); err == nil {
		t.Error("begin succeeded without memory")
	}
	if err := r.Renew(ctx, "node", "activator-1"); err != nil {
		t.Errorf("renew without memory: %v", err)
	}
	outcome, err := r.End(ctx, "node", Ending{ID: "borrower"})
	if err != nil || !outcome.Found {
		t.Errorf("end without memory: %+v, %v", outcome, err)
	}
	if state, err := r.Read(ctx, "node"); err != nil || len(state.Pods) != 0 {
		t.Errorf("read without memory: %+v, %v; want no balances", state, err)
	}
}

// Ends are forgotten even if nobody calls Read, and most need not be remembered.
func TestEndsAreForgotten(t *testing.T) {
	r := newRedis(t, redistest.Start(t))
	ctx := redistest.Context(t)
	clock := testingclock.NewFakePassiveClock(epoch)
	r.UseClock(clock)
	end := func(from, to int) sizes {
		for i := from; i < to; i++ {
			if _, err := r.End(ctx, "node", Ending{ID: fmt.Sprint("invocation-", i)}); err != nil {
				t.Fatal(err)
			}
			clock.SetTime(clock.Now().Add(LeaseTTL / 10))
		}
		return measureSizes(t, r, "node")
	}
	few, many := end(0, 100), end(100, 3000)
	if more := many.lua - few.lua; more > 4096 {
		t.Errorf("2,900 ends of more than a lease time ago take %d bytes", more)
	}
	for i := range 1000 {
		inv := donor(fmt.Sprint("answered-", i))
		_, errBegin := r.Begin(ctx, "node", inv)
		o, errEnd := r.End(ctx, "node", Ending{ID: inv.ID, BeginAnswered: true})
		if err := errors.Join(errBegin, errEnd); err != nil || !o.Found {
			t.Fatalf("end of %s: %+v, %v", inv.ID, o, err)
		}
	}
	if more := measureSizes(t, r, "node").lua - many.lua; more > 4096 {
		t.Errorf("1,000 ends whose Begins were answered take %d bytes at once", more)
	}
}

func TestDeadline(t *testing.T) {
	r := newRedis(t, redistest.Start(t))
	lendOnce(t, r, "node")

	ctx, cancel := context.WithDeadline(context.Background(), time.Now())
	defer cancel()
	if _, err := r.Read(ctx, "node"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("read past its deadline: %v", err)
	}

	pause := r.calls.ClientPause(redistest.Context(t), time.Minute)
	if pause.Err() != nil {
		t.Fatal(pause.Err())
	}
	ctx, cancel = context.WithTimeout(context.Background(), 5*time.Millisecond)
	defer cancel()
	// Either the socket's deadline ends the call, at the same moment as the context's, or the
	// context's does before it is sent.
	if _, err := r.End(ctx, "node", Ending{ID: "donor"}); !errors.Is(err, os.ErrDeadlineExceeded) && !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("end on a Redis that answers nothing: %v", err)
	}
}

// Redis limits connections, and there are as many agents as nodes.
func TestAgentKeepsFewConnections(t *testing.T) {
	addr := redistest.Start(t)
	admin := newRedis(t, addr)
	r := NewAgentRedis(redisconn.MustParse(addr))
	defer r.Close() //nolint:errcheck // the test ends
	ctx := redistest.Context(t)
	connections := func() int {
		t.Helper()
		list, err := admin.calls.ClientList(ctx).Result()
		if err != nil {
			t.Fatal(err)
		}
		return strings.Count(list, "\n")
	}
	others := func() int { epochOf(t, admin, "node"); return connections() }()
	if _, err := r.Watch("node").Next(ctx); err != nil {
		t.Fatal(err)
	}
	// Calls that overlap.
	if err := admin.calls.ClientPause(ctx, 200*time.Millisecond).Err(); err != nil {
		t.Fatal(err)
	}
	var calls errgroup.Group
	for range 16 {
		calls.Go(func() error { _, err := r.Read(ctx, "node"); return err })
	}
	if err := calls.Wait(); err != nil {
		t.Fatal(err)
	}
	const most = agentIdleMost + 1 // plus the one that waits
	err := wait.PollUntilContextTimeout(ctx, 10*time.Millisecond, time.Minute, true,
		func(ctx context.Context) (bool, error) {
			// Calls that end at one moment may each find room for their connection. The next call closes one too
			// many, and an agent makes some all the time.
			_, err := r.Read(ctx, "node")
			return connections() <= others+most, err
		})
	if err != nil {
		t.Errorf("an agent keeps %d connections, want %d at most", connections()-others, most)
	}
}

func TestNoRedis(t *testing.T) {
	r := newRedis(t, t.TempDir()+"/nobody.sock")
	if err := r.Renew(redistest.Context(t), "node-1", "activator-1"); err == nil || !strings.Contains(err.Error(), "node-1") {
		t.Errorf("got error %v, want one that names the node", err)
	}
}
