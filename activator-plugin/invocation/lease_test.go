package invocation

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/redis/go-redis/v9"
	"k8s.io/utils/clock"

	"libra.dev/libra/pkg/pool"
	"libra.dev/libra/pkg/pool/redistest"
	"libra.dev/libra/pkg/redisconn"
)

// renewed is a pool that notes the nodes whose renewals it has answered.
type renewed struct {
	pool.Pool
	mu    sync.Mutex
	nodes map[string]bool
}

func (r *renewed) Renew(ctx context.Context, node, owner string) error {
	err := r.Pool.Renew(ctx, node, owner)
	if err == nil {
		r.mu.Lock()
		r.nodes[node] = true
		r.mu.Unlock()
	}
	return err
}

// A shard that hangs does not keep the nodes of the others from being renewed, however many
// nodes it has.
func TestHungShardHoldsUpNoOthersLeases(t *testing.T) {
	addrs := redistest.StartCluster(t)
	p := pool.NewRedis(redisconn.MustParse(strings.Join(addrs, ",")))
	defer p.Close()
	cluster := redis.NewClusterClient(&redis.ClusterOptions{Addrs: addrs})
	defer cluster.Close()
	r := &renewed{Pool: p, nodes: map[string]bool{}}
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
	if len(r.nodes) != len(l.nodes) {
		t.Fatalf("%d nodes are renewed of %d", len(r.nodes), len(l.nodes))
	}

	hung := addrs[0]
	resume := stop(t, hung)
	for round := range 2 {
		r.mu.Lock()
		clear(r.nodes)
		r.mu.Unlock()
		l.renew(t.Context())
		r.mu.Lock()
		for shard, nodes := range shards {
			for _, node := range nodes {
				if r.nodes[node] != (shard != hung) {
					t.Errorf("Round %d: %s of shard %s is renewed: %t", round, node, shard, r.nodes[node])
				}
			}
		}
		r.mu.Unlock()
	}
	resume()
	l.renewals.Wait()
	l.renew(t.Context())
	l.renewals.Wait()
	if len(l.unrenewed) != 0 {
		t.Errorf("After the shard answers again, %v are not renewed", l.unrenewed)
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
