package pool

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	testingclock "k8s.io/utils/clock/testing"

	"libra.dev/libra/pkg/pool/redistest"
)

// following returns a follower that has begun.
func following(t *testing.T, r *Redis) *MemoryFollower {
	t.Helper()
	f := r.FollowMemory()
	t.Cleanup(func() { f.Close() }) //nolint:errcheck // the test ends
	expectNext(t, f, "")
	return f
}

func expectNext(t *testing.T, f *MemoryFollower, want string) {
	t.Helper()
	if node, err := f.Next(redistest.Context(t)); err != nil || node != want {
		t.Fatalf("Next = %q, %v; want %q", node, err, want)
	}
}

// A follower hears of a node when what is borrowed of memory or needed of it changes, and
// never of CPU, or of what comes and goes without either.
func TestMemoryFollower(t *testing.T) {
	r := newRedis(t, redistest.Start(t))
	ctx := redistest.Context(t)
	f := following(t, r)
	heartbeat := func(node string, needs map[string]int64) {
		t.Helper()
		state, err := r.Read(ctx, node)
		if err != nil {
			t.Fatal(err)
		}
		hb := Heartbeat{
			Agent: "a", Epoch: state.Epoch, Whole: true, Lendable: unlimited, Pods: map[string]int64{"default/donor": 0, "default/borrower": 0}, Needs: needs,
			Rested: []string{"default/donor", "default/borrower"}, RestedAt: state.Now,
		}
		if _, err := r.Heartbeat(ctx, node, hb); err != nil {
			t.Fatal(err)
		}
	}
	begin := func(node string, inv Invocation) {
		t.Helper()
		if _, err := r.Begin(ctx, node, inv); err != nil {
			t.Fatal(err)
		}
	}
	end := func(node, id string) {
		t.Helper()
		if _, err := r.End(ctx, node, Ending{ID: id}); err != nil {
			t.Fatal(err)
		}
	}
	onlyCPU := func(inv Invocation) Invocation {
		inv.Surplus.MemoryBytes, inv.Want.MemoryBytes = 0, 0
		return inv
	}

	heartbeat("quiet", nil)
	begin("quiet", onlyCPU(donor("donor")))
	begin("quiet", onlyCPU(borrower("borrower")))
	begin("quiet", ranked("1", "a", time.Second))
	end("quiet", "1")
	end("quiet", "borrower")
	heartbeat("quiet", nil)

	heartbeat("lent", nil)
	begin("lent", donor("donor"))
	begin("lent", borrower("borrower"))
	expectNext(t, f, "lent")
	end("lent", "borrower")
	expectNext(t, f, "lent")

	heartbeat("needs", map[string]int64{"default/a": 1 << 30})
	expectNext(t, f, "needs")
	heartbeat("needs", map[string]int64{"default/a": 1 << 30}) // says nothing new
	heartbeat("needs", nil)
	expectNext(t, f, "needs")

	// When the heartbeat lapses, needs are forgotten silently, so they are told again.
	clock := testingclock.NewFakePassiveClock(time.Now())
	r.UseClock(clock)
	heartbeat("lapsed", map[string]int64{"default/a": 1 << 30})
	expectNext(t, f, "lapsed")
	clock.SetTime(clock.Now().Add(LeaseTTL))
	heartbeat("lapsed", map[string]int64{"default/a": 1 << 30})
	expectNext(t, f, "lapsed")

	// A change that comes while nobody reads is not missed, and no other was told.
	heartbeat("last", map[string]int64{"default/a": 1 << 30})
	expectNext(t, f, "last")
}

// Changes on any node may have been missed while Redis was away.
func TestMemoryFollowerAfterAnOutage(t *testing.T) {
	addr := redistest.Start(t)
	r := newRedis(t, addr)
	f := following(t, r)
	ctx := redistest.Context(t)
	if err := r.calls.Do(ctx, "CLIENT", "KILL", "TYPE", "pubsub").Err(); err != nil {
		t.Fatal(err)
	}
	if node, err := f.Next(ctx); err == nil {
		t.Fatalf("Next = %q after the connection was lost, want an error", node)
	}
	expectNext(t, f, "")
}

// An error says which setting is wrong.
func TestMemoryFollowerWithoutCredentials(t *testing.T) {
	s := redistest.StartServer(t, "--requirepass", "secret")
	if _, err := newRedis(t, s.Addr).FollowMemory().Next(redistest.Context(t)); err == nil || !strings.Contains(err.Error(), "LIBRA_REDIS_CREDENTIALS") {
		t.Errorf("Next() = %v, want an error that names the setting", err)
	}
}

// A Redis that hangs is noticed.
func TestMemoryFollowerOfAHangingRedis(t *testing.T) {
	r := newRedis(t, redistest.StartServer(t, "--enable-debug-command", "yes").Addr)
	f := following(t, r)
	ctx := redistest.Context(t)
	busy := make(chan error)
	go func() { busy <- r.calls.Do(ctx, "DEBUG", "SLEEP", "3").Err() }()
	if node, err := f.Next(ctx); err == nil || ctx.Err() != nil {
		t.Fatalf("Next of a Redis that hangs = %q, %v; want an error before its context ends", node, err)
	}
	if err := <-busy; !timedOut(err) {
		t.Errorf("the call that was to make Redis hang = %v, want a timeout", err)
	}
}

// A follower of a Redis in which nothing happens is not disturbed, and ends with its context.
func TestMemoryFollowerOfAnIdleRedis(t *testing.T) {
	f := following(t, newRedis(t, redistest.Start(t)))
	ctx, cancel := context.WithTimeout(t.Context(), 5*followSlice/2)
	defer cancel()
	if node, err := f.Next(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("Next = %q, %v; want the deadline's error", node, err)
	}
}

// A user that may not publish can lend memory all the same.
func TestWithoutTheRightToPublish(t *testing.T) {
	addr := redistest.Start(t)
	r := newRedis(t, addr)
	ctx := redistest.Context(t)
	if err := r.calls.Do(ctx, "ACL", "SETUSER", "default", "resetchannels").Err(); err != nil {
		t.Fatal(err)
	}
	lendOnce(t, newRedis(t, addr), "node")
	before := epochOf(t, r, "node")
	if _, err := r.End(ctx, "node", Ending{ID: "borrower"}); err != nil {
		t.Fatal(err)
	}
	if got := epochOf(t, r, "node"); got != before {
		t.Errorf("the epoch %s became %s: a call failed half-way", before, got)
	}
}
