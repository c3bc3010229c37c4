package pool

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"k8s.io/apimachinery/pkg/util/wait"

	"libra.dev/libra/pkg/pool/redistest"
)

// expectNewEpoch checks that nothing is known of a node, and that it lends again only after its
// agent has seen it whole.
func expectNewEpoch(t *testing.T, r *Redis, node, oldEpoch string) {
	t.Helper()
	ctx := redistest.Context(t)
	hb := Heartbeat{
		Agent: "agent-1", Epoch: oldEpoch, Whole: true, Lendable: unlimited,
		Pods: map[string]int64{"default/late": 0, "default/later": 0, "default/late-2": 0}, Rested: []string{"default/late-2"}, RestedAt: time.UnixMilli(0),
	}
	if open, err := r.Heartbeat(ctx, node, hb); err != nil || open {
		t.Fatalf("a heartbeat of epoch %s opened the node after that epoch: %t, %v", oldEpoch, open, err)
	}
	if _, err := r.Begin(ctx, node, donor("late")); err != nil {
		t.Fatal(err)
	}
	if borrowed, err := r.Begin(ctx, node, borrower("later")); err != nil || !borrowed.IsZero() {
		t.Fatalf("a node that nobody has seen whole since lent %v, %v", borrowed, err)
	}
	state, err := r.Read(ctx, node)
	if err != nil {
		t.Fatal(err)
	}
	short := Balance{Allocation: allocation, Short: borrower("later").Want.MemoryBytes}
	if len(state.Pods) != 1 || state.Pods["default/later"] != short || state.Open || state.Begun != 2 || state.Epoch == oldEpoch || !state.Available.IsZero() {
		t.Fatalf("the state is %+v, want that of a closed node without loans, in another epoch than %s", state, oldEpoch)
	}
	for _, id := range []string{"late", "later"} {
		if _, err := r.End(ctx, node, Ending{ID: id}); err != nil {
			t.Fatal(err)
		}
	}
	if outcome, err := r.End(ctx, node, Ending{ID: "borrower"}); err != nil || outcome.Found {
		t.Fatalf("an invocation of before was found: %+v, %v", outcome, err)
	}
	hb.Epoch, hb.RestedAt = state.Epoch, state.Now
	if open, err := r.Heartbeat(ctx, node, hb); err != nil || !open {
		t.Fatalf("a heartbeat of epoch %s did not open the node: %t, %v", state.Epoch, open, err)
	}
	if _, err := r.Begin(ctx, node, donor("late-2")); err != nil {
		t.Fatal(err)
	}
	if state, err = r.Read(ctx, node); err != nil || state.Begun != 1 || state.Available.IsZero() {
		t.Fatalf("the state after that is %+v, %v; want a donor's surplus in it", state, err)
	}
}

func epochOf(t *testing.T, r *Redis, node string) string {
	t.Helper()
	state, err := r.Read(redistest.Context(t), node)
	if err != nil {
		t.Fatal(err)
	}
	return state.Epoch
}

func TestFlush(t *testing.T) {
	r := newRedis(t, redistest.Start(t))
	lendOnce(t, r, "node")
	before := epochOf(t, r, "node")
	if err := r.calls.FlushAll(redistest.Context(t)).Err(); err != nil {
		t.Fatal(err)
	}
	expectNewEpoch(t, r, "node", before)
}

// A call that fails half-way, on a key that somebody else has written, leaves nothing half done.
func TestFailedCall(t *testing.T) {
	r := newRedis(t, redistest.Start(t))
	lendOnce(t, r, "node")
	before := epochOf(t, r, "node")
	ctx := redistest.Context(t)
	events := thisLibrary.key("node", "events")
	if err := r.calls.Set(ctx, events, "no stream", 0).Err(); err != nil {
		t.Fatal(err)
	}
	if _, err := r.End(ctx, "node", Ending{ID: "donor"}); !redis.HasErrorPrefix(err, "WRONGTYPE") {
		t.Fatalf("end on a key of another type: %v", err)
	}
	if err := r.calls.Del(ctx, events).Err(); err != nil {
		t.Fatal(err)
	}
	expectNewEpoch(t, r, "node", before)
}

func TestKeyOfAnotherType(t *testing.T) {
	r := newRedis(t, redistest.Start(t))
	if err := r.calls.HSet(redistest.Context(t), thisLibrary.key("node", epochKey), "epoch", "old").Err(); err != nil {
		t.Fatal(err)
	}
	expectNewEpoch(t, r, "node", "old")
}

// A Redis that restores its data from disk goes back to an earlier moment.
func TestRestart(t *testing.T) {
	server := redistest.StartServer(t)
	r := newRedis(t, server.Addr)
	lendOnce(t, r, "node")
	before := epochOf(t, r, "node")
	if err := r.calls.Save(redistest.Context(t)).Err(); err != nil {
		t.Fatal(err)
	}
	server.Restart(t)

	if n, err := awaitRedis(t, r).Exists(redistest.Context(t), thisLibrary.key("node", epochKey)).Result(); err != nil || n != 1 {
		t.Fatalf("%d of the node's keys came back from the disk, %v; want it, or this tests nothing", n, err)
	}
	expectNewEpoch(t, r, "node", before)
}

// awaitRedis waits until the connections that a restart has broken are gone.
func awaitRedis(t *testing.T, r *Redis) redis.UniversalClient {
	t.Helper()
	err := wait.PollUntilContextTimeout(redistest.Context(t), time.Millisecond, time.Minute, true,
		func(ctx context.Context) (bool, error) { return r.calls.Ping(ctx).Err() == nil, nil })
	if err != nil {
		t.Fatal(err)
	}
	return r.calls
}

func ignoreNil(err error) error {
	if errors.Is(err, redis.Nil) {
		return nil
	}
	return err
}

func TestFailover(t *testing.T) {
	// Otherwise a primary waits for seconds, to serve more replicas at once.
	atOnce := []string{"--repl-diskless-sync-delay", "0"}
	primary := redistest.StartServer(t, atOnce...)
	host, port, _ := strings.Cut(primary.Addr, ":")
	replica := redistest.StartServer(t, append(atOnce, "--replicaof", host, port)...)
	was := newRedis(t, primary.Addr)
	lendOnce(t, was, "node")
	before := epochOf(t, was, "node")

	is := newRedis(t, replica.Addr)
	ctx := redistest.Context(t)
	err := wait.PollUntilContextTimeout(ctx, 5*time.Millisecond, time.Minute, true,
		func(ctx context.Context) (bool, error) {
			epoch, err := is.calls.Get(ctx, thisLibrary.key("node", epochKey)).Result()
			return epoch == before, ignoreNil(err)
		})
	if err != nil {
		t.Fatalf("the replica does not have what its primary has: %v", err)
	}
	// From here on its view is outdated: it does not hear of this End.
	if err := is.calls.ReplicaOf(ctx, "NO", "ONE").Err(); err != nil {
		t.Fatal(err)
	}
	if outcome, err := was.End(ctx, "node", Ending{ID: "donor"}); err != nil || !outcome.Found {
		t.Fatalf("end on the old primary: %+v, %v", outcome, err)
	}
	expectNewEpoch(t, is, "node", before)

	// The old primary comes back as a replica, and is promoted again.
	host, port, _ = strings.Cut(replica.Addr, ":")
	middle := epochOf(t, is, "node")
	if err := was.calls.ReplicaOf(ctx, host, port).Err(); err != nil {
		t.Fatal(err)
	}
	err = wait.PollUntilContextTimeout(ctx, 5*time.Millisecond, time.Minute, true,
		func(ctx context.Context) (bool, error) {
			epoch, err := was.calls.Get(ctx, thisLibrary.key("node", epochKey)).Result()
			return epoch == middle, ignoreNil(err)
		})
	if err != nil {
		t.Fatalf("the old primary does not have what the new one has: %v", err)
	}
	if err := was.calls.ReplicaOf(ctx, "NO", "ONE").Err(); err != nil {
		t.Fatal(err)
	}
	expectNewEpoch(t, was, "node", middle)
}

func TestCluster(t *testing.T) {
	addrs := redistest.StartCluster(t)
	r := newRedis(t, strings.Join(addrs, ","))
	ctx := redistest.Context(t)
	for i := range 12 {
		lendOnce(t, r, fmt.Sprint("node-", i))
	}
	for _, addr := range addrs {
		one := newRedis(t, addr)
		keys, err := one.calls.Keys(ctx, "libra:*:node").Result()
		if err != nil || len(keys) == 0 {
			t.Errorf("the master %s has no node of 12, %v", addr, err)
		}
	}
	epochs := map[string]bool{}
	for i := range 12 {
		epochs[epochOf(t, r, fmt.Sprint("node-", i))] = true
	}
	if len(epochs) != 12 {
		t.Errorf("12 nodes have %d epochs", len(epochs))
	}

	follower, watcher := r.FollowMemory(), r.Watch("node-0")
	defer follower.Close() //nolint:errcheck // the test ends
	if node, err := follower.Next(ctx); err != nil || node != "" {
		t.Fatalf("%q, %v", node, err)
	}
	if _, err := watcher.Next(ctx); err != nil {
		t.Fatal(err)
	}
	if outcome, err := r.End(ctx, "node-0", Ending{ID: "donor"}); err != nil || !outcome.Found {
		t.Fatalf("end in a cluster: %+v, %v", outcome, err)
	}
	// Masters forward to each other what is published, so earlier messages may come late.
	for node := ""; node != "node-0"; {
		var err error
		if node, err = follower.Next(ctx); err != nil {
			t.Fatal(err)
		}
	}
	if events, err := watcher.Next(ctx); err != nil || !events.Changed || len(events.Ended) != 1 || events.Ended[0].ID != "donor" {
		t.Fatalf("%+v, %v", events, err)
	}

	// One master loses its functions: the others keep theirs, and their epochs.
	before := epochOf(t, r, "node-1")
	flushed, err := r.clientOf(ctx, thisLibrary.key("node-0", epochKey))
	if err != nil {
		t.Fatal(err)
	}
	if err := flushed.FunctionFlush(ctx).Err(); err != nil {
		t.Fatal(err)
	}
	epochOf(t, r, "node-0")
	other, err := r.clientOf(ctx, thisLibrary.key("node-1", epochKey))
	if err != nil {
		t.Fatal(err)
	}
	if got := epochOf(t, r, "node-1"); (got == before) != (other != flushed) {
		t.Errorf("epoch of a node went from %s to %s; it shares the master that lost its functions: %t", before, got, other == flushed)
	}
}

// While a slot moves to a master that has had no node yet, the functions are loaded there, and the master that it moves from
// keeps its own.
func TestSlotMoves(t *testing.T) {
	addrs := redistest.StartCluster(t)
	r := newRedis(t, strings.Join(addrs, ","))
	ctx := redistest.Context(t)
	from, to := redis.NewClient(&redis.Options{Addr: addrs[0]}), redis.NewClient(&redis.Options{Addr: addrs[1]})
	defer from.Close() //nolint:errcheck // the test ends
	defer to.Close()   //nolint:errcheck // the test ends
	must := func(client *redis.Client, args ...any) any {
		t.Helper()
		reply, err := client.Do(ctx, args...).Result()
		if err != nil {
			t.Fatalf("%v: %v", args, err)
		}
		return reply
	}

	var nodes []string // of the first master
	for i := 0; len(nodes) < 2; i++ {
		node := fmt.Sprint("node-", i)
		if slot, err := from.ClusterKeySlot(ctx, thisLibrary.key(node, epochKey)).Result(); err != nil {
			t.Fatal(err)
		} else if slot < 5461 {
			nodes = append(nodes, node)
			lendOnce(t, r, node)
		}
	}
	moving, staying := nodes[0], nodes[1]
	before := epochOf(t, r, staying)

	slot := must(from, "cluster", "keyslot", thisLibrary.key(moving, epochKey))
	fromID, toID := must(from, "cluster", "myid"), must(to, "cluster", "myid")
	must(to, "cluster", "setslot", slot, "importing", fromID)
	must(from, "cluster", "setslot", slot, "migrating", toID)
	host, port, _ := strings.Cut(addrs[1], ":")
	for _, key := range must(from, "cluster", "getkeysinslot", slot, 100).([]any) {
		must(from, "migrate", host, port, key, 0, 5000)
	}
	epochOf(t, r, moving)
	if got := epochOf(t, r, staying); got != before {
		t.Errorf("the epoch of a node that stays went from %s to %s", before, got)
	}

	must(to, "cluster", "setslot", slot, "node", toID)
	must(from, "cluster", "setslot", slot, "node", toID)
	epochOf(t, r, moving)
	if got := epochOf(t, r, staying); got != before {
		t.Errorf("the epoch of a node that stays went from %s to %s", before, got)
	}
}
