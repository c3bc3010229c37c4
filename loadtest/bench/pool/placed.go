package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"
	"go.opentelemetry.io/otel/metric/noop"
	"go.uber.org/zap"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"libra.dev/libra/activator-plugin/placement"
	"libra.dev/libra/loadtest/bench/rig"
	"libra.dev/libra/loadtest/bench/stats"
	"libra.dev/libra/loadtest/demo/report"
	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/pool"
)

// grantedGoal is of what the pool had for requests, over what they were placed for.
var grantedGoal = stats.Goal{Bound: 0.85, AtLeast: true}

const mostPlacing = 16

func newPlaced() *cobra.Command {
	p := profiling{options: options{connections: 8, revisions: 10_000}}
	var nodes int
	cmd := &cobra.Command{
		Use:   "placed",
		Short: "Measure how much of what requests are placed for they get",
		Long: `placed has several activators, each with a picture and pods of its own, place invocations on many nodes under the source
owners: half of them lend what they do not need, and half borrow, and are placed where the most of that can be had. It
prints how much of the CPU that their nodes had for them when they were placed the pool had when they began.`,
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			p.nodes = []int{nodes}
			return p.runPlaced(cmd.Context(), cmd.OutOrStdout())
		},
	}
	f := cmd.Flags()
	f.StringVar(&p.out, "out", "out/bench-pool-placed", "folder for the results")
	f.StringVar(&p.commit, "commit", "unknown", "commit to name in the results")
	f.Uint64Var(&p.seed, "seed", 1, "seed of all that is random")
	f.BoolVar(&p.quick, "quick", false, "a smoke test: all steps in a few seconds, for figures that mean little")
	f.StringVar(&p.redis, "redis", "manifests/base/redis/deployment.yaml", "Deployment of Redis, whose arguments it has here")
	f.IntVar(&nodes, "nodes", 1000, "how many nodes, each with two pods of each activator")
	f.Float64Var(&p.rate, "rate", 1_000, "invocations a second, of all activators")
	f.DurationVar(&p.length, "length", 5*time.Second, "how long a round is")
	f.IntVar(&p.rounds, "rounds", 8, "how many rounds")
	f.IntVar(&p.activators, "activators", 4, "how many activators")
	return cmd
}

func (p profiling) runPlaced(ctx context.Context, out io.Writer) (err error) {
	if p.quick {
		p.nodes, p.length, p.rate, p.rounds = []int{20}, 500*time.Millisecond, 100, 2
	}
	if p.activators < 1 || p.activators > mostPlacing {
		return fmt.Errorf("--activators is %d; it must be 1 to %d", p.activators, mostPlacing)
	}
	p.connections = 2 * p.activators // each has two pods on a node
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
	s, err := startServer(ctx, as, pinned)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.stop()) }()
	l, err := newLoad(ctx, p.options, s.addr, p.nodes[0])
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.close()) }()
	var granted []float64
	var total promises
	if err := l.placed(ctx, p, func(round *promises) {
		granted = append(granted, round.share())
		total.add(round)
		fmt.Fprintf(out, "round %d: of %.0f core-seconds %.3f were granted, to %d of %d that wanted some\n",
			len(granted), round.coreSeconds(), round.share(), round.number.Load(), round.wanted.Load())
	}); err != nil {
		return err
	}
	share := stats.Mean(granted, p.seed)
	fmt.Fprintf(out, "granted of what was promised: %.3f (%.3f to %.3f); %s: %s\n", share.Estimate, share.Low, share.High, grantedGoal, stats.Said(grantedGoal.Absolute(share)))
	if err := os.MkdirAll(p.out, 0o755); err != nil {
		return err
	}
	return report.Results{Machine: machine(), Commit: p.commit, Seed: p.seed, Metrics: map[string]float64{
		"granted_over_promised": share.Estimate, "granted_over_promised_low": share.Low, "granted_over_promised_high": share.High,
		"promised_core_s": total.coreSeconds(), "promised_to": float64(total.number.Load()), "wanted": float64(total.wanted.Load()),
		"failed_begins": float64(total.failed.Load()), "nodes": float64(p.nodes[0]), "activators": float64(p.activators), "invocations_per_s": p.rate,
	}}.Write(p.out)
}

// promises are, in milli CPU times milliseconds, as the activator's metric libra.placement.cpu has them.
type promises struct {
	promised, granted      atomic.Int64
	number, wanted, failed atomic.Int64
}

func (p *promises) add(o *promises) {
	p.promised.Add(o.promised.Load())
	p.granted.Add(o.granted.Load())
	p.number.Add(o.number.Load())
	p.wanted.Add(o.wanted.Load())
	p.failed.Add(o.failed.Load())
}

func (p *promises) share() float64 {
	return float64(p.granted.Load()) / float64(max(p.promised.Load(), 1))
}
func (p *promises) coreSeconds() float64 { return float64(p.promised.Load()) / 1e6 }

// activator is one that places invocations.
type activator struct {
	pools           *pool.Redis
	donors, wanting *placement.Revision
	dests           []string
	random          *rand.Rand
}

// placed tells of each round.
func (l *load) placed(ctx context.Context, p profiling, tell func(*promises)) (err error) {
	following, stop := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer stop()
	var activators []*activator
	for i := range p.activators {
		a, err := l.newActivator(following, &running, i, p.seed)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, a.pools.Close()) }()
		activators = append(activators, a)
	}
	// The first round is until as much is in flight as later, and tells nothing.
	for round := range p.rounds + 1 {
		var of promises
		var placing sync.WaitGroup
		for i, a := range activators {
			placing.Go(func() { l.placing(ctx, a, p, fmt.Sprintf("%d-%d", round, i), i, &of, &running) })
		}
		placing.Wait()
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if round > 0 {
			tell(&of)
		}
	}
	return nil
}

func (l *load) newActivator(ctx context.Context, running *sync.WaitGroup, number int, seed uint64) (*activator, error) {
	a := &activator{pools: pool.NewRedis(l.server), random: rand.New(rand.NewPCG(seed, uint64(number)))}
	picture, err := placement.NewPicture(placement.PictureOptions{
		Profiles: a.pools, Clock: clock.RealClock{}, Logger: zap.NewNop().Sugar(), MeterProvider: noop.NewMeterProvider(),
	})
	if err != nil {
		return nil, errors.Join(err, a.pools.Close())
	}
	running.Go(func() { picture.Run(ctx) })
	slots := placement.NewSlots(picture, func(string, string) api.Source { return api.SourceOwners })
	donors, wanting := types.NamespacedName{Namespace: "default", Name: "donor"}, types.NamespacedName{Namespace: "default", Name: "wanting"}
	activators := l.connections / 2
	for _, id := range []types.NamespacedName{donors, wanting} {
		// Of the pods on a node each has one.
		slots.SetActivators(id, number, activators)
		for i, n := range l.nodes {
			for of := range activators {
				ip := fmt.Sprintf("10.%d.%d.%d", of, i>>8, i&255)
				slots.SetPod(id, placement.Pod{Name: fmt.Sprintf("default/%s-%06d-%02d", id.Name, i, of), Node: n.name, IPs: []string{ip}, Ready: true})
			}
			if id == wanting {
				a.dests = append(a.dests, fmt.Sprintf("10.%d.%d.%d:8012", number, i>>8, i&255))
			}
		}
	}
	a.donors, a.wanting = slots.Of(donors, 1), slots.Of(wanting, 1)
	return a, nil
}

// placing has an activator place invocations for the length of a round, half of which lend and half of which borrow.
// They end by themselves.
func (l *load) placing(ctx context.Context, a *activator, p profiling, prefix string, number int, of *promises, running *sync.WaitGroup) {
	start := time.Now()
	for i := 0; ; i++ {
		due := start.Add(time.Duration(float64(i*p.activators) / p.rate * float64(time.Second)))
		if due.Sub(start) >= p.length || rig.Pause(ctx, time.Until(due)) != nil {
			return
		}
		inv := l.invocation(fmt.Sprintf("placed-%s-%d", prefix, i), podOf(2*number), a.random.IntN(l.revisions))
		inv.Duration = 200*time.Millisecond + rand.N(1800*time.Millisecond)
		ask := placement.Ask{Policy: placement.Random, Now: time.Now()}
		pods := a.donors
		if i%2 == 0 {
			inv.Surplus = api.Resources{CPUMilli: 100 * (1 + a.random.Int64N(9))}
		} else {
			inv.Pod, pods = podOf(2*number+1), a.wanting
			inv.Want = api.Resources{CPUMilli: 100 * (1 + a.random.Int64N(9))}
			ask.Policy, ask.Demand = placement.Coverage, placement.Demand{Want: inv.Want, Duration: inv.Duration, OwnCPUMilli: allocation.CPUMilli}
		}
		choice := pods.Take(a.dests[a.random.IntN(len(a.dests))], ask)
		running.Go(func() {
			defer choice.Release()
			l.invoke(ctx, a, choice, inv, of)
		})
	}
}

// invoke begins an invocation where it was placed, and ends it when it was said to.
func (l *load) invoke(ctx context.Context, a *activator, choice placement.Choice, inv pool.Invocation, of *promises) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTimeout+inv.Duration)
	defer cancel()
	borrowed, err := a.pools.Begin(ctx, choice.Node, inv)
	if err != nil {
		of.failed.Add(1)
	}
	if inv.Want.CPUMilli > 0 {
		of.wanted.Add(1)
		if promised := choice.PromisedCPUMilli; promised > 0 {
			of.number.Add(1)
			of.promised.Add(promised * inv.Duration.Milliseconds())
			of.granted.Add(borrowed.CPUMilli * inv.Duration.Milliseconds())
		}
	}
	_ = rig.Pause(ctx, inv.Duration)
	if _, err := a.pools.End(ctx, choice.Node, pool.Ending{ID: inv.ID, Duration: inv.Duration, Status: 200, BeginAnswered: err == nil}); err != nil {
		of.failed.Add(1)
	}
}
