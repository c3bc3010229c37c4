package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"go.opentelemetry.io/otel/metric/noop"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"
	"k8s.io/utils/clock"

	"libra.dev/libra/activator-plugin/placement"
	"libra.dev/libra/loadtest/bench/stats"
	"libra.dev/libra/loadtest/demo/report"
	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/pool"
)

// Probes begin something on a node, and look when a picture has it.
const (
	probesAtOnce = 8
	probeDomain  = "probe"
	probePod     = probeDomain + "/pod"
	probeEvery   = time.Millisecond
	probeMost    = 5 * time.Second
)

// Goals of the profiles at 1,000 nodes.
var (
	shareGoal     = stats.Goal{Bound: 0.1}
	stalenessGoal = stats.Goal{Bound: 150}
)

// profiling is what the user chooses.
type profiling struct {
	options
	activators int
}

func newProfiles() *cobra.Command {
	p := profiling{options: options{connections: 8, revisions: 10_000}}
	var nodes int
	cmd := &cobra.Command{
		Use:   "profiles",
		Short: "Measure what it costs Redis that activators follow what nodes lend, and how late they hear of it",
		Long: `profiles lets invocations begin and end at a fixed rate in the pools of many nodes, with and without activators that keep
a picture of all nodes, in turn and in random order. It prints which share of a core Redis uses more with them, and how long after
a Begin was sent the picture has it.`,
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			p.nodes = []int{nodes}
			return p.run(cmd.Context(), cmd.OutOrStdout())
		},
	}
	f := cmd.Flags()
	f.StringVar(&p.out, "out", "out/bench-pool-profiles", "folder for the results")
	f.StringVar(&p.commit, "commit", "unknown", "commit to name in the results")
	f.Uint64Var(&p.seed, "seed", 1, "seed of all that is random")
	f.BoolVar(&p.quick, "quick", false, "a smoke test: all steps in a few seconds, for figures that mean little")
	f.StringVar(&p.redis, "redis", "manifests/base/redis/deployment.yaml", "Deployment of Redis, whose arguments it has here")
	f.IntVar(&nodes, "nodes", 1000, "how many nodes' pools")
	f.IntVar(&p.standing, "standing", 10, "invocations in flight all the time on each node, all with something to lend")
	f.Float64Var(&p.rate, "rate", 5_000, "invocations a second")
	f.DurationVar(&p.length, "length", 5*time.Second, "how long it is measured with and without, in each round")
	f.IntVar(&p.rounds, "rounds", 6, "how often it is measured with and without")
	f.IntVar(&p.activators, "activators", 1, "how many activators keep a picture")
	f.BoolVar(&p.ranked, "ranked", false, "invocations are ranked, and neither lend nor borrow")
	return cmd
}

func (p profiling) check() error {
	p.options.followed = p.rate // which is not used here
	err := p.options.check()
	if p.activators < 1 || p.activators > 32 {
		err = errors.Join(err, fmt.Errorf("--activators is %d; it must be 1 to 32", p.activators))
	}
	return err
}

func (p profiling) run(ctx context.Context, out io.Writer) error {
	if p.quick {
		p.nodes, p.length, p.rate, p.rounds = []int{20}, 500*time.Millisecond, 500, 2
	}
	if err := p.check(); err != nil {
		return err
	}
	as, err := readShipped(p.redis)
	if err != nil {
		return err
	}
	pinned, err := leaveCore(redisCore)
	if err != nil {
		return err
	}
	m, err := p.measure(ctx, as, pinned, out)
	if err != nil {
		return err
	}
	metrics := m.summary(p, out)
	if err := os.MkdirAll(p.out, 0o755); err != nil {
		return err
	}
	results := report.Results{Machine: machine(), Commit: p.commit, Seed: p.seed, Metrics: metrics}
	return results.Write(p.out)
}

// profiled is what was measured with and without pictures, by round.
type profiled struct {
	with, without []*loop
	staleness     []float64 // of each probe, in milliseconds
}

func (p profiling) measure(ctx context.Context, as shipped, pinned bool, out io.Writer) (m profiled, err error) {
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
		fmt.Fprintf(out, "round %d of %d: Redis used %.1f %% of its core without pictures, %.1f %% with\n",
			round+1, p.rounds, m.without[round].redis*100, m.with[round].redis*100)
		fmt.Fprintf(out, "  at %.0f invocations a second without, and %.0f with\n", m.without[round].perSecond(), m.with[round].perSecond())
	}
	return m, nil
}

// pictured is the loop while activators keep pictures, and how stale one of them is.
func (p profiling) pictured(ctx context.Context, l *load, s *server) (_ *loop, staleness []float64, err error) {
	following, stop := context.WithCancel(ctx)
	var pictures []*placement.Picture
	var running sync.WaitGroup
	defer running.Wait()
	defer stop()
	for range p.activators {
		redis := pool.NewRedis(l.server)
		defer func() { err = errors.Join(err, redis.Close()) }()
		picture, err := placement.NewPicture(placement.PictureOptions{
			Profiles: redis, Clock: clock.RealClock{}, Logger: zap.NewNop().Sugar(), MeterProvider: noop.NewMeterProvider(),
		})
		if err != nil {
			return nil, nil, err
		}
		running.Go(func() { picture.Run(following) })
		pictures = append(pictures, picture)
	}
	probing, done := context.WithCancel(ctx)
	defer done()
	var probes errgroup.Group
	var mu sync.Mutex
	for i := range probesAtOnce {
		probes.Go(func() error {
			for n := i; probing.Err() == nil; n += probesAtOnce {
				took, err := l.probe(probing, pictures[0], l.nodes[n%len(l.nodes)].name, fmt.Sprintf("probe-%d-%d", i, n))
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

// probe begins an invocation that lends, waits until the picture says that something is lent, and
// ends it. It returns how long that took from when the Begin was sent.
func (l *load) probe(ctx context.Context, picture *placement.Picture, node, id string) (time.Duration, error) {
	view := picture.View(node, probeDomain)
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
				return fmt.Errorf("after %v the picture of node %s has not %s", probeMost, node, what)
			}
			time.Sleep(probeEvery)
		}
		return nil
	}
	if err := until("what it has", func() bool { lends, known := lends(); return known && !lends }); err != nil {
		return 0, err
	}
	inv := l.invocation(id, probePod, 0)
	inv.Domain, inv.Surplus, inv.Duration = probeDomain, surplus, time.Hour
	sent := time.Now()
	if _, err := l.pools.Begin(ctx, node, inv); err != nil {
		return 0, err
	}
	err := until("what began", func() bool { lends, _ := lends(); return lends })
	took := time.Since(sent)
	endCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTimeout)
	defer cancel()
	_, endErr := l.pools.End(endCtx, node, pool.Ending{ID: id, Status: 200, BeginAnswered: true})
	return took, errors.Join(err, endErr)
}

func (m profiled) summary(p profiling, out io.Writer) map[string]float64 {
	more, with, without := make([]float64, p.rounds), make([]float64, p.rounds), make([]float64, p.rounds)
	for i := range more {
		with[i], without[i] = m.with[i].redis, m.without[i].redis
		// Where the machine is too busy for the rate, there are fewer invocations in one than in the other.
		more[i] = with[i] - m.without[i].microseconds()*m.with[i].perSecond()/1e6
	}
	share := stats.Mean(more, p.seed)
	slices.Sort(m.staleness)
	p50, p99 := report.Percentile(m.staleness, 50), report.Percentile(m.staleness, 99)
	fmt.Fprintf(out, "%d node(s), %d activator(s), %.0f invocations a second: pictures take %.3f (%.3f to %.3f) of a core of Redis; %s: %s\n",
		p.nodes[0], p.activators, p.rate, share.Estimate, share.Low, share.High, shareGoal, stats.Said(shareGoal.Absolute(share)))
	fmt.Fprintf(out, "a Begin is in the picture after %.0f ms (P50), %.0f ms (P99) of %d; %s: %s\n",
		p50, p99, len(m.staleness), stalenessGoal, stats.Said(stalenessGoal.Absolute(stats.Exactly(p99))))
	return map[string]float64{
		"redis_share": share.Estimate, "redis_share_low": share.Low, "redis_share_high": share.High,
		"redis_core_share_with": stats.Mean(with, p.seed).Estimate, "redis_core_share_without": stats.Mean(without, p.seed).Estimate,
		"staleness_p50_ms": p50, "staleness_p99_ms": p99, "staleness_probes": float64(len(m.staleness)),
		"nodes": float64(p.nodes[0]), "activators": float64(p.activators), "invocations_per_s": p.rate,
	}
}
