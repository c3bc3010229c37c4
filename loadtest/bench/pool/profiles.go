package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"time"

	"go.opentelemetry.io/otel/metric/noop"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"
	"k8s.io/utils/clock"

	"libra.dev/libra/activator-plugin/placement"
	"libra.dev/libra/loadtest/bench/stats"
	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/pool"
)

// Probes begin an invocation on a node, and check when a picture shows it.
const (
	probesAtOnce = 8
	probeDomain  = "probe"
	probePod     = probeDomain + "/pod"
	probeEvery   = time.Millisecond
	probeMost    = 5 * time.Second

	// stalenessAtOnce is the number of successive probes in one block of an interval.
	stalenessAtOnce = 20
)

// Goals for pictures of 1,000 nodes.
var (
	shareGoal     = stats.Goal{Bound: 0.1}
	stalenessGoal = stats.Goal{Bound: 150}
)

// profiled has the measurements with and without a picture, by round.
type profiled struct {
	with, without []*loop
	staleness     []float64 // of each probe, in milliseconds
}

func (p picturing) measure(ctx context.Context, as shipped, pinned bool, out io.Writer) (m profiled, err error) {
	s, err := startServer(ctx, as, pinned)
	if err != nil {
		return m, err
	}
	defer func() { err = errors.Join(err, s.stop()) }()
	l, err := newLoad(ctx, p.options, s.addr, p.nodes[0])
	if err != nil {
		return m, err
	}
	defer func() { err = errors.Join(err, l.close()) }()
	random := rand.New(rand.NewPCG(p.seed, 0))
	for round := range p.rounds {
		arms := []func() error{
			func() error {
				without, err := l.loop(ctx, s, p.rate)
				m.without = append(m.without, without)
				return err
			},
			func() error {
				with, staleness, err := p.pictured(ctx, l, s)
				m.with, m.staleness = append(m.with, with), append(m.staleness, staleness...)
				return err
			},
		}
		random.Shuffle(len(arms), func(i, j int) { arms[i], arms[j] = arms[j], arms[i] })
		for _, arm := range arms {
			if err := arm(); err != nil {
				return m, err
			}
		}
		fmt.Fprintf(out, "round %d of %d: Redis used %.1f %% of its core without a picture, %.1f %% with one\n",
			round+1, p.rounds, m.without[round].redis*100, m.with[round].redis*100)
		fmt.Fprintf(out, "  at %.0f invocations a second without, and %.0f with\n", m.without[round].perSecond(), m.with[round].perSecond())
	}
	return m, nil
}

// pictured runs the loop while an activator keeps a picture, and returns how stale the picture is.
func (p picturing) pictured(ctx context.Context, l *load, s *server) (_ *loop, staleness []float64, err error) {
	following, stop := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer stop()
	redis := pool.NewRedis(l.server)
	defer func() { err = errors.Join(err, redis.Close()) }()
	picture, err := newPicture(redis)
	if err != nil {
		return nil, nil, err
	}
	running.Go(func() { picture.Run(following) })
	probing, done := context.WithCancel(ctx)
	defer done()
	var probes errgroup.Group
	var mu sync.Mutex
	for i := range probesAtOnce {
		probes.Go(func() error {
			for n := i; probing.Err() == nil; n += probesAtOnce {
				took, err := l.probe(probing, picture, l.nodes[n%len(l.nodes)].name, fmt.Sprintf("probe-%d-%d", i, n))
				if probing.Err() != nil {
					return nil
				}
				if err != nil {
					return err
				}
				mu.Lock()
				staleness = append(staleness, took.Seconds()*1000)
				mu.Unlock()
			}
			return nil
		})
	}
	with, err := l.loop(ctx, s, p.rate)
	done()
	return with, staleness, errors.Join(err, probes.Wait())
}

func newPicture(profiles *pool.Redis) (*placement.Picture, error) {
	return placement.NewPicture(placement.PictureOptions{
		Profiles: profiles, Clock: clock.RealClock{}, Logger: zap.NewNop().Sugar(), MeterProvider: noop.NewMeterProvider(),
	})
}

// probe begins an invocation that lends, waits until the picture shows that something is lent, and ends it.
// It returns the time from sending the Begin until then.
func (l *load) probe(ctx context.Context, picture *placement.Picture, node, id string) (time.Duration, error) {
	view := picture.View(node, probeDomain)
	picture.Use(time.Now()) // as a request that is placed does, so that it is refreshed as often
	lends := func() (lends, known bool) {
		coverage, known := view.Coverage(api.SourceOwners, placement.Demand{Want: surplus, Duration: time.Second}, time.Now())
		return coverage > 0, known
	}
	until := func(what string, is func() bool) error {
		for from := time.Now(); !is(); {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if time.Since(from) > probeMost {
				return fmt.Errorf("after %v the picture of node %s does not show %s", probeMost, node, what)
			}
			time.Sleep(probeEvery)
		}
		return nil
	}
	if err := until("that the node lends nothing", func() bool { lends, known := lends(); return known && !lends }); err != nil {
		return 0, err
	}
	inv := l.invocation(id, probePod, 0)
	inv.Domain, inv.Surplus, inv.Duration = probeDomain, surplus, time.Hour
	sent := time.Now()
	if _, err := l.pools.Begin(ctx, node, inv); err != nil {
		return 0, err
	}
	err := until("what the invocation lends", func() bool { lends, _ := lends(); return lends })
	took := time.Since(sent)
	endCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTimeout)
	defer cancel()
	_, endErr := l.pools.End(endCtx, node, pool.Ending{ID: id, Status: 200, BeginAnswered: true})
	return took, errors.Join(err, endErr)
}

func (m profiled) summary(p picturing, out io.Writer) map[string]float64 {
	more, with, without, perSecond := make([]float64, p.rounds), make([]float64, p.rounds), make([]float64, p.rounds), make([]float64, p.rounds)
	for i := range more {
		with[i], without[i], perSecond[i] = m.with[i].redis, m.without[i].redis, m.with[i].perSecond()
		// If the machine is too busy for the rate, one arm has fewer invocations than the other.
		more[i] = with[i] - m.without[i].microseconds()*m.with[i].perSecond()/1e6
	}
	share, rate := stats.Mean(more), stats.Mean(perSecond)
	p50 := stats.Percentile(m.staleness, 50, stalenessAtOnce, p.seed)
	p99 := stats.Percentile(m.staleness, 99, stalenessAtOnce, p.seed)
	fmt.Fprintf(out, "%d node(s), %.0f of %.0f invocations a second: a picture takes %.3f (%.3f to %.3f) of a core of Redis; %s: %s\n",
		p.nodes[0], rate.Estimate, p.rate, share.Estimate, share.Low, share.High, shareGoal, stats.Said(shareGoal.Absolute(share)))
	fmt.Fprintf(out, "a Begin is in the picture after %.0f ms (P50), %.0f ms (P99, %.0f to %.0f) of %d; %s: %s\n",
		p50.Estimate, p99.Estimate, p99.Low, p99.High, len(m.staleness), stalenessGoal, stats.Said(stalenessGoal.Absolute(p99)))
	return map[string]float64{
		"redis_share": share.Estimate, "redis_share_low": share.Low, "redis_share_high": share.High,
		"redis_core_share_with": stats.Mean(with).Estimate, "redis_core_share_without": stats.Mean(without).Estimate,
		"staleness_p50_ms": p50.Estimate, "staleness_p99_ms": p99.Estimate, "staleness_p99_ms_low": p99.Low, "staleness_p99_ms_high": p99.High,
		"staleness_probes":  float64(len(m.staleness)),
		"invocations_per_s": rate.Estimate,
	}
}
