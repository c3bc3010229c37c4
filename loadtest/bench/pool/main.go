// Command pool measures the harvest pool on one Redis that has a core to itself: how many
// invocations a second it handles, and how long a Begin takes.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"libra.dev/libra/loadtest/bench/machine"
	"libra.dev/libra/loadtest/bench/stats"
	"libra.dev/libra/loadtest/demo/report"
)

func main() { machine.Main(newRoot()) }

// shared has the flags of all commands.
type shared struct {
	out, commit, redis string
	seed               uint64
}

func (s *shared) flags(f *pflag.FlagSet, out string) {
	f.StringVar(&s.out, "out", out, "folder for the results")
	f.StringVar(&s.commit, "commit", "unknown", "commit to name in the results")
	f.Uint64Var(&s.seed, "seed", 1, "random seed")
	f.StringVar(&s.redis, "redis", "manifests/base/redis/deployment.yaml", "Deployment of Redis, whose arguments to use")
}

// quickUsage is the help of the flag that most of them have.
const quickUsage = "a smoke test: all steps in a few seconds, with figures that mean little"

// options are the user's choices.
type options struct {
	shared
	quick       bool
	nodes       []int
	connections int
	standing    int
	revisions   int
	rate        float64
	followed    float64
	length      time.Duration
	rounds      int
	ranked      bool
}

func newRoot() *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use:   "bench-pool",
		Short: "Measure the harvest pool on one Redis core",
		Long: `bench-pool starts a redis-server, keeps one core for it if there are several, and begins
and ends invocations in the pools of many nodes: half of them have something to lend, a
quarter want to borrow, and a quarter do neither; or, with --ranked, all are only ranked,
as under the source node. It does so first without pauses, as fast as the connections can
(closed loop), then at a fixed rate, where the time of a Begin counts from when it was due
(open loop), and then at another rate while the agents of all nodes follow what happens
and read their node's state once a second. Redis has the arguments that the manifests give
it. All is measured several times, for an interval of what has a goal.`,
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return bench(cmd.Context(), o, cmd.OutOrStdout())
		},
	}
	f := cmd.Flags()
	o.flags(f, "out/bench-pool")
	f.BoolVar(&o.quick, "quick", false, quickUsage)
	f.IntSliceVar(&o.nodes, "nodes", []int{1, 100, 1000, 2000}, "numbers of nodes, each measured in its own run")
	o.loadFlags(f)
	f.Float64Var(&o.rate, "rate", 20_000, "invocations per second of the open loop")
	f.Float64Var(&o.followed, "followed", 5_000, "invocations per second of the loop that agents follow: all agents share a core with the load here")
	f.DurationVar(&o.length, "length", 20*time.Second, "length of each loop")
	f.IntVar(&o.rounds, "rounds", 3, "how often to measure all, each time with another seed; fewer than three give no interval, and so no verdict")
	cmd.AddCommand(newCompare(), newArm(), newPictures())
	return cmd
}

// loadFlags adds the flags that describe a load.
func (o *options) loadFlags(f *pflag.FlagSet) {
	f.IntVar(&o.connections, "connections", 8, "connections, each with one call at a time")
	f.IntVar(&o.standing, "standing", 10, "invocations always in flight on each node, all with something to lend")
	f.IntVar(&o.revisions, "revisions", 10_000, "revisions of the invocations")
	f.BoolVar(&o.ranked, "ranked", false, "invocations are ranked, and neither lend nor borrow")
}

func (o options) check() error {
	var errs []error
	for _, n := range o.nodes {
		if n < 1 || n > 10_000 {
			errs = append(errs, fmt.Errorf("--nodes has %d; each must be 1 to 10000", n))
		}
	}
	if o.connections < 1 || o.connections > 32 {
		errs = append(errs, fmt.Errorf("--connections is %d; it must be 1 to 32", o.connections))
	}
	if o.standing < 0 || o.standing > 1000 {
		errs = append(errs, fmt.Errorf("--standing is %d; it must be 0 to 1000", o.standing))
	}
	if o.revisions < 1 || o.revisions > 1_000_000 {
		errs = append(errs, fmt.Errorf("--revisions is %d; it must be 1 to 1000000", o.revisions))
	}
	if o.rate < 1 || o.rate > 1e6 {
		errs = append(errs, fmt.Errorf("--rate is %v; it must be 1 to 1000000", o.rate))
	}
	if o.followed < 1 || o.followed > 1e6 {
		errs = append(errs, fmt.Errorf("--followed is %v; it must be 1 to 1000000", o.followed))
	}
	if o.length < 100*time.Millisecond || o.length > 10*time.Minute {
		errs = append(errs, fmt.Errorf("--length is %v; it must be 100ms to 10m", o.length))
	}
	if o.rounds < 1 || o.rounds > 100 {
		errs = append(errs, fmt.Errorf("--rounds is %d; it must be 1 to 100", o.rounds))
	}
	return errors.Join(errs...)
}

func bench(ctx context.Context, o options, out io.Writer) error {
	if o.quick {
		o.nodes, o.length, o.rate, o.followed, o.rounds = []int{1, 10}, 500*time.Millisecond, 500, 200, 1
	}
	if err := o.check(); err != nil {
		return err
	}
	as, err := readShipped(o.redis)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(o.out, 0o755); err != nil {
		return err
	}
	start := time.Now()
	say := func(format string, args ...any) {
		fmt.Fprintf(out, "[%4.0f s] %s\n", time.Since(start).Seconds(), fmt.Sprintf(format, args...))
	}
	pinned, err := leaveCore()
	if err != nil {
		return err
	}
	if !pinned {
		say("one core only: Redis shares it with the load")
	}
	_, version, err := redisServer(ctx)
	if err != nil {
		return err
	}
	say("Redis %s, configured by %s", version, o.redis)

	var rounds []map[string]float64
	for round := range o.rounds {
		say("round %d of %d", round+1, o.rounds)
		metrics, err := o.round(ctx, as, pinned, say)
		if err != nil {
			return err
		}
		rounds = append(rounds, metrics)
		o.seed++
	}
	metrics := o.summary(rounds, float64(as.memoryBytes)/mib, say)
	metrics["connections"] = float64(o.connections)
	metrics["seconds_total"] = time.Since(start).Seconds()
	results := report.Results{Machine: machine.About() + ", Redis " + version, Commit: o.commit, Seed: o.seed - uint64(o.rounds), Metrics: metrics}
	if err := results.Write(o.out); err != nil {
		return err
	}
	say("results: %s/%s", o.out, report.ResultsFile)
	return nil
}

// round measures each number of nodes once.
func (o options) round(ctx context.Context, as shipped, pinned bool, say func(string, ...any)) (map[string]float64, error) {
	metrics := map[string]float64{}
	for _, nodes := range o.nodes {
		say("%d node(s), %d standing invocations on each", nodes, o.standing)
		r, err := run(ctx, o, as, nodes, pinned)
		if err != nil {
			return nil, fmt.Errorf("%d nodes: %w", nodes, err)
		}
		say("  closed loop: %s", r.closed)
		say("  %6.0f a second: %s", o.rate, r.open)
		say("  %6.0f a second, followed: %s", o.followed, r.followed)
		say("  memory of Redis without agents: %s", r.without)
		say("  and with them:                  %s", r.with)
		of := fmt.Sprintf("_%d_nodes", nodes)
		r.closed.into(metrics, of, "")
		r.open.into(metrics, of, "due_")
		r.followed.into(metrics, of, "followed_")
		r.without.into(metrics, of, "")
		r.with.into(metrics, of, "followed_")
	}
	return metrics, nil
}

// goals are for a run with one number of nodes, up to mostNodes, by the start of a metric's
// name. The goal for memory applies to any number.
var goals = []struct {
	name, what string
	goal       stats.Goal
}{
	{"invocations_per_s", "invocations a second", stats.Goal{Bound: 20_000, AtLeast: true}},
	{"begin_p99_ms", "Begin, P99, ms", stats.Goal{Bound: 1}},
}

const mostNodes = 1000

// summary returns the mean of each metric, with the interval of those that have a goal, and
// says which goals hold.
func (o options) summary(rounds []map[string]float64, limitMiB float64, say func(string, ...any)) map[string]float64 {
	metrics := map[string]float64{"redis_limit_mib": limitMiB}
	mean := func(name string) stats.Interval {
		values := make([]float64, len(rounds))
		for i, round := range rounds {
			values[i] = round[name]
		}
		return stats.Mean(values)
	}
	for name := range rounds[0] {
		metrics[name] = mean(name).Estimate
	}
	for _, nodes := range o.nodes {
		of := fmt.Sprintf("_%d_nodes", nodes)
		for _, g := range goals {
			in := mean(g.name + of)
			metrics[g.name+of+"_low"], metrics[g.name+of+"_high"] = in.Low, in.High
			verdict := "no goal"
			if nodes <= mostNodes {
				verdict = fmt.Sprintf("%s: %s", g.goal, stats.Said(g.goal.Absolute(in)))
			}
			say("%d node(s), %s: %.4g (%.4g to %.4g); %s", nodes, g.what, in.Estimate, in.Low, in.High, verdict)
		}
		metrics[fmt.Sprintf("nodes_%d_invocations_per_s", nodes)] = metrics["invocations_per_s"+of]
		for _, round := range rounds {
			metrics["redis_mib"] = max(metrics["redis_mib"], round["followed_redis_mib"+of])
		}
		// The number of nodes with the worst result counts.
		metrics["begin_p99_ms"] = max(metrics["begin_p99_ms"], metrics["begin_p99_ms"+of])
		if least, ok := metrics["invocations_per_s"]; !ok || metrics["invocations_per_s"+of] < least {
			metrics["invocations_per_s"] = metrics["invocations_per_s"+of]
		}
	}
	memory := stats.Goal{Bound: limitMiB}
	say("memory of Redis, the most at any time: %.1f MiB; %s: %s", metrics["redis_mib"], memory, stats.Said(memory.Absolute(stats.Exactly(metrics["redis_mib"]))))
	return metrics
}

// measured is the result for one number of nodes.
type measured struct {
	closed, open, followed *loop
	without, with          memory // without and with agents
}

// run measures one number of nodes, on a Redis of its own.
func run(ctx context.Context, o options, as shipped, nodes int, pinned bool) (m measured, err error) {
	s, err := startServer(ctx, as, pinned)
	if err != nil {
		return m, err
	}
	defer func() { err = errors.Join(err, s.stop()) }()
	l, err := newLoad(ctx, o, s.addr, nodes)
	if err != nil {
		return m, err
	}
	defer func() { err = errors.Join(err, l.close()) }()
	if m.closed, err = l.loop(ctx, s, 0); err != nil {
		return m, err
	}
	if m.open, err = l.loop(ctx, s, o.rate); err != nil {
		return m, err
	}
	if m.without, err = s.memory(ctx); err != nil {
		return m, err
	}
	f, err := l.follow(ctx)
	if err != nil {
		return m, err
	}
	defer func() { err = errors.Join(err, f.close()) }()
	if m.followed, err = l.loop(ctx, s, o.followed); err != nil {
		return m, err
	}
	m.with, err = s.memory(ctx)
	return m, err
}

func (m memory) into(metrics map[string]float64, of, prefix string) {
	metrics[prefix+"redis_mib"+of] = float64(m.most) / mib
	metrics[prefix+"redis_data_mib"+of] = float64(m.data) / mib
	metrics[prefix+"redis_functions_mib"+of] = float64(m.functions) / mib
	metrics[prefix+"redis_connections_mib"+of] = float64(m.connections) / mib
	metrics[prefix+"redis_connections"+of] = float64(m.clients)
}
