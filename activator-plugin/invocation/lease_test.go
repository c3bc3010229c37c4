package invocation

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	"libra.dev/libra/pkg/pool"
	"libra.dev/libra/pkg/pool/redistest"
	"libra.dev/libra/pkg/redisconn"
)

// renewed is a pool that notes when it first answered the renewal of each node.
type renewed struct {
	pool.Pool
	mu    sync.Mutex
	nodes map[string]time.Time
}

func (r *renewed) Renew(ctx context.Context, node, owner string) error {
	err := r.Pool.Renew(ctx, node, owner)
	if err == nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		if _, again := r.nodes[node]; !again {
			r.nodes[node] = time.Now()
		}
	}
	return err
}

// by reports whether a node was renewed by then.
func (r *renewed) by(node string, then time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	at, renewed := r.nodes[node]
	return renewed && !at.After(then)
}

// A shard that hangs does not keep the other shards' nodes from being renewed, however many
// nodes it has.
func TestHungShardHoldsUpNoOthersLeases(t *testing.T) {
	addrs := redistest.StartCluster(t)
	p := pool.NewRedis(redisconn.MustParse(strings.Join(addrs, ",")))
	defer p.Close()
	cluster := redis.NewClusterClient(&redis.ClusterOptions{Addrs: addrs})
	defer cluster.Close()
	r := &renewed{Pool: p, nodes: map[string]time.Time{}}
	l := newTestLifecycle(t, r, clock.RealClock{})

	// Many more nodes of each shard than are renewed at a time.
	shards := map[string][]string{}
	for i := range 20 * maxRenewals {
		node := fmt.Sprint("node-", i)
		master, err := cluster.MasterForKey(t.Context(), "libra:{"+node+"}:node")
		if err != nil {
			t.Fatal("MasterForKey() =", err)
		}
		shards[master.Options().Addr] = append(shards[master.Options().Addr], node)
		l.nodes[node]++
	}
	l.renew(t.Context())
	l.renewals.Wait() // those that were slow, too
	if len(r.nodes) != len(l.nodes) {
		t.Fatalf("%d nodes are renewed of %d", len(r.nodes), len(l.nodes))
	}

	hung := addrs[0]
	resume := stop(t, hung)
	for round := range 2 {
		r.mu.Lock()
		clear(r.nodes)
		r.mu.Unlock()
		lapse := time.Now().Add(pool.LeaseTTL)
		// On a slow machine a renewal times out now and then, and the next one makes up for it.
		for range pool.LeaseTTL / renewEvery {
			l.renew(t.Context())
		}
		for shard, nodes := range shards {
			for _, node := range nodes {
				if r.by(node, lapse) != (shard != hung) {
					t.Errorf("Round %d: the lease of %s of shard %s has lapsed: %t", round, node, shard, shard != hung)
				}
			}
		}
	}
	resume()
	l.renewals.Wait()
	l.renew(t.Context())
	l.renewals.Wait()
	if len(l.unrenewed) != 0 {
		t.Errorf("After the shard answers again, %v are not renewed", l.unrenewed)
	}
}

// shards is a pool of which some nodes' shards are away.
type shards struct {
	recorder
	away map[string]bool
}

func (s *shards) Renew(_ context.Context, node, _ string) error {
	if s.away[node] {
		return errors.New("connection refused")
	}
	return nil
}

// However the nodes' renewals take turns, an outage of one shard of several is logged once when it begins and
// once when it is over.
func TestOutageIsLoggedOnce(t *testing.T) {
	core, logs := observer.New(zap.InfoLevel)
	p := &shards{}
	l := newTestLifecycle(t, p, clock.RealClock{})
	l.logger = zap.New(core).Sugar()
	for _, node := range []string{"a", "b", "c", "d"} {
		l.nodes[node]++
	}
	for _, step := range []struct {
		away map[string]bool
		gone string // a node without invocations from then on
		want string
	}{
		{away: map[string]bool{"a": true, "b": true}, want: "warn 2"},
		{away: map[string]bool{"a": true}},
		{away: map[string]bool{"a": true, "c": true}},
		{away: map[string]bool{"d": true}},
		{want: "info"},
		{away: map[string]bool{"a": true}, want: "warn 1"},
		{away: map[string]bool{"a": true}, gone: "a", want: "info"},
	} {
		p.away = step.away
		delete(l.nodes, step.gone)
		for range 3 {
			l.renew(t.Context())
			l.renewals.Wait()
		}
		var got []string
		for _, entry := range logs.TakeAll() {
			said := entry.Level.String()
			if nodes, some := entry.ContextMap()["nodes"]; some {
				said += fmt.Sprint(" ", nodes)
			}
			got = append(got, said)
		}
		if strings.Join(got, ", ") != step.want {
			t.Errorf("while %v are away, without %q, logged %q, want %q", step.away, step.gone, got, step.want)
		}
	}
}

// When the activator stops, its renewals are cut short. That is no outage.
func TestRenewalsThatAreCutShortAreNoOutage(t *testing.T) {
	l := newTestLifecycle(t, &shards{away: map[string]bool{"a": true}}, clock.RealClock{})
	l.nodes["a"]++
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	l.renew(ctx)
	l.renewals.Wait()
	if len(l.silent) != 0 {
		t.Errorf("%v are taken to be away", l.silent)
	}
}

// The pool ends idle donors with their owner's lease, which has to last as long as they may.
func TestIdleDonorsAreRenewed(t *testing.T) {
	clk := clocktesting.NewFakeClock(time.Now())
	l := newTestLifecycle(t, &recorder{}, clk)
	for node, idle := range map[string]int64{"leaves-none": 0, "leaves-some": 300} {
		f := l.start(revID, node, pool.Invocation{ID: node, Function: "ns/rev", Pod: "ns/" + node, Domain: "ns", IdleCPUMilli: idle})
		f.finish(200)
	}
	drain(t, l)
	due := func() []string {
		nodes := l.due()
		clear(l.unrenewed)
		return nodes
	}
	if diff := cmp.Diff([]string{"leaves-some"}, due()); diff != "" {
		t.Error("renewed after the End (-want, +got):\n" + diff)
	}
	clk.Step(pool.IdleMost - time.Nanosecond)
	if diff := cmp.Diff([]string{"leaves-some"}, due()); diff != "" {
		t.Error("renewed for as long as it is lent of (-want, +got):\n" + diff)
	}
	clk.Step(time.Nanosecond)
	if nodes := due(); len(nodes) > 0 || len(l.idle) > 0 {
		t.Errorf("%v are renewed and %v kept after that, want none", nodes, l.idle)
	}
}

// stop halts the Redis at addr, which the test has started, until resume is called.
func stop(t *testing.T, addr string) (resume func()) {
	t.Helper()
	client := redis.NewClient(&redis.Options{Addr: addr})
	defer client.Close()
	info, err := client.InfoMap(t.Context(), "server").Result()
	if err != nil {
		t.Fatal("InfoMap() =", err)
	}
	var pid int
	if _, err := fmt.Sscan(info["Server"]["process_id"], &pid); err != nil {
		t.Fatalf("process_id of %v: %v", info, err)
	}
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal("Kill() =", err)
	}
	resume = sync.OnceFunc(func() { syscall.Kill(pid, syscall.SIGCONT) })
	t.Cleanup(resume)
	return resume
}
