package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"libra.dev/libra/loadtest/bench/machine"
	"libra.dev/libra/loadtest/bench/rig"
	"libra.dev/libra/loadtest/demo/report"
	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/pool"
	"libra.dev/libra/pkg/redisconn"
)

const (
	owner       = "bench-pool"
	beatsAtOnce = 4
	callTimeout = 5 * time.Second
	cpuTime     = 40 * time.Millisecond
)

var (
	allocation = api.Resources{CPUMilli: 1000, MemoryBytes: 512 << 20}
	surplus    = api.Resources{CPUMilli: 400, MemoryBytes: 128 << 20}
	want       = api.Resources{CPUMilli: 300, MemoryBytes: 64 << 20}
	lendable   = api.Resources{CPUMilli: 1 << 20, MemoryBytes: 1 << 40}
	capacity   = api.Resources{CPUMilli: 64_000, MemoryBytes: 256 << 30}
)

// load keeps the pools of some nodes open until it is closed.
type load struct {
	options
	server       redisconn.Server
	pools, beats *pool.Redis
	nodes        []node
	stop         context.CancelFunc
	beating      chan error // gets one value, when the heartbeats have ended
}

type node struct {
	name string
	beat pool.Heartbeat
}

func newLoad(ctx context.Context, o options, addr string, nodes int) (*load, error) {
	beatCtx, stop := context.WithCancel(ctx)
	server := redisconn.MustParse(addr)
	l := &load{options: o, server: server, pools: pool.NewRedis(server), beats: pool.NewRedis(server), stop: stop, beating: make(chan error, 1)}
	for i := range nodes {
		n := node{name: fmt.Sprintf("node-%04d", i)}
		state, err := l.pools.Read(ctx, n.name)
		if err != nil {
			return nil, errors.Join(err, l.closeClients())
		}
		n.beat = pool.Heartbeat{
			Agent: "agent", Epoch: state.Epoch, Whole: true, Lendable: lendable, Capacity: capacity, Idle: capacity, Pods: map[string]int64{probePod: 0},
		}
		for j := range o.standing {
			n.beat.Pods[fmt.Sprintf("default/standing-%d", j)] = 0
		}
		for j := range o.connections {
			n.beat.Pods[podOf(j)] = 0
		}
		opens := n.beat
		opens.Rested, opens.RestedAt = slices.Collect(maps.Keys(opens.Pods)), state.Now // nothing had begun in them
		if _, err := l.pools.Heartbeat(ctx, n.name, opens); err != nil {
			return nil, errors.Join(err, l.closeClients())
		}
		l.nodes = append(l.nodes, n)
	}
	go func() {
		l.beating <- rig.Beat(beatCtx, len(l.nodes), beatsAtOnce, func(ctx context.Context, i int) error { return l.beatOf(ctx, l.nodes[i]) })
	}()
	if err := l.fill(ctx); err != nil {
		return nil, errors.Join(err, l.close())
	}
	return l, nil
}

// followers stands in for the agents of the nodes, except for their heartbeats.
type followers struct {
	pools []*pool.Redis
	stop  context.CancelFunc
	work  errgroup.Group
}

// follow makes the agents of all nodes follow events, and read the state once a second.
func (l *load) follow(ctx context.Context) (*followers, error) {
	ctx, stop := context.WithCancel(ctx)
	f := &followers{stop: stop}
	var watchers []*pool.Watcher
	for _, n := range l.nodes {
		p := pool.NewAgentRedis(l.server)
		f.pools = append(f.pools, p)
		w := p.Watch(n.name)
		if _, err := w.Next(ctx); err != nil { // returns at once
			return nil, errors.Join(err, f.close())
		}
		watchers = append(watchers, w)
	}
	for _, w := range watchers {
		f.work.Go(func() error {
			for {
				if _, err := w.Next(ctx); ctx.Err() != nil {
					return nil
				} else if err != nil {
					return err
				}
			}
		})
	}
	f.work.Go(func() error {
		return rig.Beat(ctx, len(l.nodes), beatsAtOnce, func(ctx context.Context, i int) error {
			_, err := f.pools[i].Read(ctx, l.nodes[i].name)
			return err
		})
	})
	return f, nil
}

func (f *followers) close() error {
	f.stop()
	errs := []error{f.work.Wait()}
	for _, p := range f.pools {
		errs = append(errs, p.Close())
	}
	return errors.Join(errs...)
}

func podOf(connection int) string { return fmt.Sprintf("default/pod-%d", connection) }

// fill begins the invocations that stay in flight.
func (l *load) fill(ctx context.Context) error {
	for i, n := range l.nodes {
		if err := l.beatOf(ctx, n); err != nil {
			return err
		}
		for j := range l.standing {
			inv := l.invocation(fmt.Sprintf("%s-standing-%d", n.name, j), fmt.Sprintf("default/standing-%d", j), i*l.standing+j)
			inv.Duration, inv.Surplus = time.Hour, surplus
			if _, err := l.pools.Begin(ctx, n.name, inv); err != nil {
				return err
			}
		}
	}
	return nil
}

func (l *load) beatOf(ctx context.Context, n node) error {
	open, err := l.beats.Heartbeat(ctx, n.name, n.beat)
	if err == nil && !open {
		return fmt.Errorf("the pool of node %s is closed after a heartbeat", n.name)
	}
	return errors.Join(err, l.beats.Renew(ctx, n.name, owner))
}

func (l *load) close() error {
	l.stop()
	return errors.Join(<-l.beating, l.closeClients())
}

func (l *load) closeClients() error { return errors.Join(l.pools.Close(), l.beats.Close()) }

func (l *load) invocation(id, pod string, function int) pool.Invocation {
	function %= l.revisions
	return pool.Invocation{
		ID: id, Function: fmt.Sprintf("default/resize-%d-00001", function), Configuration: fmt.Sprintf("default/resize-%d", function),
		Pod: pod, Domain: "default", Owner: owner,
		Size: 1 << 20, Allocation: allocation, Duration: time.Second, MinRemaining: 100 * time.Millisecond,
	}
}

// loop is the result of one loop.
type loop struct {
	took        time.Duration
	begins      []float64          // milliseconds, ascending
	left        map[string]float64 // the unused share of each core
	redis       float64            // the share of its core that Redis used
	invocations int
	failed      int // failed calls, most of them because the machine had no time
}

// loop begins and ends invocations for l.length. With a rate, the time of a Begin counts
// from when it was due. With rate 0, there are no pauses.
func (l *load) loop(ctx context.Context, s *server, rate float64) (*loop, error) {
	idleBefore, err := idle()
	if err != nil {
		return nil, err
	}
	cpuBefore, err := machine.CPU(s.process.Process.Pid)
	if err != nil {
		return nil, err
	}
	start := time.Now()
	var (
		result = &loop{left: map[string]float64{}}
		mu     sync.Mutex
	)
	g, ctx := errgroup.WithContext(ctx)
	for c := range l.connections {
		g.Go(func() error {
			begins, failed, err := l.connection(ctx, c, start, rate)
			mu.Lock()
			defer mu.Unlock()
			result.begins = append(result.begins, begins...)
			result.failed += failed
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	result.took = time.Since(start)
	result.invocations = len(result.begins)
	if result.failed*100 > result.invocations {
		return nil, fmt.Errorf("%d calls of %d invocations failed", result.failed, result.invocations)
	}
	slices.Sort(result.begins)

	cpuAfter, err := machine.CPU(s.process.Process.Pid)
	if err != nil {
		return nil, err
	}
	idleAfter, err := idle()
	if err != nil {
		return nil, err
	}
	result.redis = (cpuAfter - cpuBefore).Seconds() / result.took.Seconds()
	for core := range idleAfter {
		result.left[core] = min(1, (idleAfter[core]-idleBefore[core]).Seconds()/result.took.Seconds())
	}
	return result, nil
}

// connection is one connection's share of a loop: one call at a time. It returns how many
// milliseconds each Begin took, and how many calls failed.
func (l *load) connection(ctx context.Context, c int, start time.Time, rate float64) (begins []float64, failed int, err error) {
	random := rand.New(rand.NewPCG(l.seed, uint64(c)))
	for i := 0; ; i++ {
		from := time.Now()
		if rate > 0 {
			due := start.Add(time.Duration(float64(i*l.connections+c) / rate * float64(time.Second)))
			if due.Sub(start) >= l.length {
				return begins, failed, nil
			}
			time.Sleep(time.Until(due))
			from = due
		} else if from.Sub(start) >= l.length {
			return begins, failed, nil
		}
		if ctx.Err() != nil {
			return begins, failed, ctx.Err()
		}
		node := l.nodes[random.IntN(len(l.nodes))].name
		inv := l.invocation(fmt.Sprintf("%d-%d-%x", c, i, random.Uint64()), podOf(c), random.IntN(l.revisions))
		switch kind := random.IntN(4); {
		case l.ranked:
			inv.Ranked, inv.CPUTime = true, cpuTime
		case kind <= 1:
			inv.Surplus = surplus
		case kind == 2:
			inv.Want = want
		}
		callCtx, cancel := context.WithTimeout(ctx, callTimeout)
		_, err := l.pools.Begin(callCtx, node, inv)
		begins = append(begins, time.Since(from).Seconds()*1000)
		if err != nil {
			failed++
		}
		if _, err := l.pools.End(callCtx, node, pool.Ending{ID: inv.ID, Duration: time.Second, Status: 200, BeginAnswered: err == nil}); err != nil {
			failed++
		}
		cancel()
	}
}

func (l *loop) perSecond() float64 { return float64(l.invocations) / l.took.Seconds() }

// microseconds is Redis's CPU time for one invocation, which does not depend on how much of
// its core others took.
func (l *loop) microseconds() float64 { return l.redis * 1e6 / l.perSecond() }

func (l *loop) String() string {
	var cores []string
	for core, share := range l.left {
		cores = append(cores, fmt.Sprintf("%s %.0f %%", core, share*100))
	}
	slices.Sort(cores)
	return fmt.Sprintf("%.0f invocations/s, %d calls failed, Begin P50 %.3f ms, P99 %.3f ms; Redis used %.0f %% of its core, %.0f µs per invocation; left: %s",
		l.perSecond(), l.failed, report.Percentile(l.begins, 50), report.Percentile(l.begins, 99),
		l.redis*100, l.microseconds(), strings.Join(cores, ", "))
}

// into adds the figures to the metrics, under names that begin with prefix and end with of.
func (l *loop) into(metrics map[string]float64, of, prefix string) {
	metrics[prefix+"begin_p50_ms"+of] = report.Percentile(l.begins, 50)
	metrics[prefix+"begin_p99_ms"+of] = report.Percentile(l.begins, 99)
	metrics[prefix+"invocations_per_s"+of] = l.perSecond()
	metrics[prefix+"failed_calls"+of] = float64(l.failed)
	metrics[prefix+"redis_core_share"+of] = l.redis
	metrics[prefix+"redis_us_per_invocation"+of] = l.microseconds()
	for core, share := range l.left {
		metrics[prefix+"left_of_"+core+of] = share
	}
}
