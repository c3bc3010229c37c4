package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"libra.dev/libra/loadtest/bench/rig"
	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/pool"
	"libra.dev/libra/pkg/redisconn"
)

const (
	owner       = "bench-resizer"
	beatEvery   = time.Second
	beatsAtOnce = 8
	callTimeout = 5 * time.Second
	// loanLasts is the least time that a loan is in force: loans last 50 to 150 ms.
	loanLasts = 50 * time.Millisecond
)

var (
	surplus  = api.Resources{CPUMilli: 400}
	want     = api.Resources{CPUMilli: 300}
	lendable = api.Resources{CPUMilli: 1 << 20, MemoryBytes: 1 << 40}
)

// lenders stands in for the cluster's agents and activators, as far as the pools can tell: it
// keeps every node's pool open, and makes loans.
type lenders struct {
	pools, beats *pool.Redis
	seed         uint64
	functions    int // pods of each namespace on a node
	stop         context.CancelFunc
	beating      chan error // gets one value, when the heartbeats have ended

	mu    sync.Mutex
	nodes []pool.Heartbeat // by node number

	made, refused atomic.Int64
}

// newLenders opens the pools of all nodes until the lenders are closed.
func (s *site) newLenders(ctx context.Context) (*lenders, error) {
	beatCtx, stop := context.WithCancel(ctx)
	l := &lenders{pools: pool.NewRedis(redisconn.MustParse(s.redis)), beats: pool.NewRedis(redisconn.MustParse(s.redis)), seed: s.seed, functions: s.optedInEach() / namespaces, stop: stop, beating: make(chan error, 1)}
	for i := range s.nodes {
		state, err := l.pools.Read(ctx, nodeName(i))
		if err != nil {
			stop()
			return nil, errors.Join(err, l.pools.Close(), l.beats.Close())
		}
		beat := pool.Heartbeat{Agent: "agent", Epoch: state.Epoch, Whole: true, Lendable: lendable, Pods: map[string]int64{}, Needs: map[string]int64{}}
		for n := range namespaces {
			for j := range l.functions {
				beat.Pods[namespaceOf(n)+"/"+podName(i, j)] = 0
			}
		}
		opens := beat
		opens.Rested, opens.RestedAt = slices.Collect(maps.Keys(opens.Pods)), state.Now // nothing had begun in them
		if _, err := l.pools.Heartbeat(ctx, nodeName(i), opens); err != nil {
			stop()
			return nil, errors.Join(err, l.pools.Close(), l.beats.Close())
		}
		l.nodes = append(l.nodes, beat)
	}
	go func() { l.beating <- rig.Beat(beatCtx, len(l.nodes), beatsAtOnce, l.beatOf) }()
	return l, nil
}

// close ends the heartbeats. Invocations in flight stay in the pools until their leases expire.
func (l *lenders) close() error {
	l.stop()
	return errors.Join(<-l.beating, l.pools.Close(), l.beats.Close())
}

func (l *lenders) beatOf(ctx context.Context, i int) error {
	l.mu.Lock()
	beat := l.nodes[i]
	l.mu.Unlock()
	open, err := l.beats.Heartbeat(ctx, nodeName(i), beat)
	if err == nil && !open {
		err = fmt.Errorf("the pool of node %s is closed after a heartbeat", nodeName(i))
	}
	return errors.Join(err, l.beats.Renew(ctx, nodeName(i), owner))
}

// need makes a node's agent report that a pod needs so many bytes of memory from now on; 0 is no
// need.
func (l *lenders) need(ctx context.Context, i int, pod string, bytes int64) error {
	needs := map[string]int64{}
	if bytes > 0 {
		needs[pod] = bytes
	}
	l.mu.Lock()
	l.nodes[i].Needs = needs
	l.mu.Unlock()
	return l.beatOf(ctx, i)
}

// lend makes perSecond loans a second until ctx ends.
func (l *lenders) lend(ctx context.Context, perSecond float64) error {
	random := rand.New(rand.NewPCG(l.seed, 2))
	var pairs []pair
	for node := range l.nodes {
		for n := range namespaces {
			for j := 0; lends(n) && j+1 < l.functions; j += 2 {
				pairs = append(pairs, pair{node: node, namespace: n, first: j})
			}
		}
	}
	// Each pair has its turn before any has another, so that no pod has two invocations at once.
	random.Shuffle(len(pairs), func(i, j int) { pairs[i], pairs[j] = pairs[j], pairs[i] })
	var group sync.WaitGroup
	defer group.Wait()
	start := time.Now()
	for i := 0; ; i++ {
		if rig.Pause(ctx, time.Until(start.Add(time.Duration(float64(i)/perSecond*float64(time.Second))))) != nil {
			return nil
		}
		p, lasts := pairs[i%len(pairs)], loanLasts+time.Duration(random.Int64N(int64(2*loanLasts)))
		group.Go(func() {
			if l.loan(ctx, i, p, lasts) {
				l.made.Add(1)
			} else if ctx.Err() == nil {
				l.refused.Add(1)
			}
		})
	}
}

// pair is two pods of a node and a namespace, one of which lends to the other.
type pair struct{ node, namespace, first int }

// loan begins and ends two invocations as an activator does. One borrows from the other.
func (l *lenders) loan(ctx context.Context, id int, p pair, lasts time.Duration) (made bool) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	node := nodeName(p.node)
	invocation := func(which int) pool.Invocation {
		namespace := namespaceOf(p.namespace)
		return pool.Invocation{
			ID: fmt.Sprintf("%d-%d", id, which), Function: namespace + "/" + revisionName(0), Configuration: namespace + "/f00",
			Pod: namespace + "/" + podName(p.node, p.first+which), Domain: namespace, Owner: owner, Size: 1 << 20,
			Allocation: allocation, Predicted: allocation, Duration: time.Second, MinRemaining: 10 * time.Millisecond,
		}
	}
	donor, borrower := invocation(0), invocation(1)
	donor.Surplus, borrower.Want = surplus, want
	begun := []pool.Invocation{}
	for _, inv := range []pool.Invocation{donor, borrower} {
		borrowed, err := l.pools.Begin(ctx, node, inv)
		if err != nil {
			break
		}
		begun = append(begun, inv)
		made = borrowed.CPUMilli > 0
	}
	if made {
		rig.Pause(ctx, lasts) //nolint:errcheck // then it ends sooner
	}
	for _, inv := range begun {
		if _, err := l.pools.End(ctx, node, pool.Ending{ID: inv.ID, Duration: lasts, Status: 200, BeginAnswered: true}); err != nil {
			return false
		}
	}
	return made
}
