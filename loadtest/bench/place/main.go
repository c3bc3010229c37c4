// Command place measures how long each policy takes to choose the pod of a request.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"libra.dev/libra/loadtest/bench/machine"
	"libra.dev/libra/loadtest/bench/stats"
	"libra.dev/libra/loadtest/demo/report"
	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/pool"
)

func main() { machine.Main(newRoot()) }

// options are the user's choices.
type options struct {
	out, commit string
	pool        string
	kubelite    string
	// schedulerOut is the folder of bench-scheduler's results.
	schedulerOut string
	seed         uint64
	quick        bool
	size
}

// size is how much is measured.
type size struct {
	nodes    int     // each with one pod
	steps    int     // moments at which what a node can lend changes
	changing int     // nodes that change between two refreshes of the picture
	busy     float64 // share of the pods that have a request at any time, with a containerConcurrency of 1
	rate     float64 // choices per second; the next refresh shows what they have given away
	choices  int     // per policy and block
	blocks   int     // each of all policies
}

var (
	full  = size{nodes: 1000, steps: pool.MostSteps, changing: 100, busy: 0.5, rate: 5000, choices: 500, blocks: 40}
	quick = size{nodes: 50, steps: pool.MostSteps, changing: 5, busy: 0.5, rate: 10_000, choices: 100, blocks: 3}
)

func newRoot() *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use:   "bench-place",
		Short: "Measure the choice of a pod",
		Long: `bench-place chooses pods of a function that has one on each of many nodes, as the activator
does on a request's path: it starts from Knative's pick, asks the policy, and takes the slot. It makes up
profiles of what the nodes can lend, some of which change all the time, so that the picture is
refreshed meanwhile as in an activator. It measures each policy, and Knative's own pick, in turn, in
random order, and each choice by itself, including a reading of the clock. Then bench-pool measures on a
real Redis what the pictures cost, how old they are, and how much of what they promise is granted. Last,
the bench edits a PlacementPolicy on a real API server while four activators place requests by it.`,
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return bench(cmd.Context(), o, cmd.OutOrStdout())
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.out, "out", "out/bench-place", "folder for the results")
	f.StringVar(&o.commit, "commit", "unknown", "commit to name in the results")
	f.Uint64Var(&o.seed, "seed", 1, "random seed")
	f.StringVar(&o.pool, "pool", "bin/bench-pool", "the bench-pool command")
	f.StringVar(&o.kubelite, "kubelite", "", "Kubernetes in one binary, as \"box build\" makes it (\"box path kubelite\" prints where), whose API server has the edited policy; without it, edits are not measured")
	f.StringVar(&o.schedulerOut, "scheduler", "out/bench-scheduler", "folder of bench-scheduler's results, whose throughput is included if it is from the same commit")
	f.BoolVar(&o.quick, "quick", false, "a smoke test: all steps in some seconds, with figures that mean little")
	return cmd
}

// measured has the times of one policy's choices, in microseconds, by block.
type measured struct {
	blocks [][]float64
	allocs []float64 // per choice, by block
}

// goals are for the policy default, and for a program.
var goals = []struct {
	name, what string
	goal       stats.Goal
}{
	{"place_p99_us", "a choice, P99, µs", stats.Goal{Bound: 50}},
	{"place_allocs", "allocations of a choice", stats.Goal{Bound: 0}},
	{"policy_p99_us", "what a PlacementPolicy adds to stock, P99, µs", stats.Goal{Bound: 2}},
	{"reload_p99_ms", "an edit of a PlacementPolicy in force in all activators, P99, ms", stats.Goal{Bound: 1000}},
}

func bench(ctx context.Context, o options, out io.Writer) error {
	o.size = full
	if o.quick {
		o.size = quick
	}
	if err := os.MkdirAll(o.out, 0o755); err != nil {
		return err
	}
	start := time.Now()
	say := func(format string, args ...any) {
		fmt.Fprintf(out, "[%4.0f s] %s\n", time.Since(start).Seconds(), fmt.Sprintf(format, args...))
	}
	say("%d nodes, of which %d change in 100 ms, at %d moments each; %.0f %% of the pods are busy", o.nodes, o.changing, o.steps, 100*o.busy)
	metrics := map[string]float64{"clock_p50_us": clockReading(), "choices_covered": 1}
	for _, k := range kinds {
		say("%s: nodes lend up to %.1f cores each", k.name, float64(k.mostMilli)/1000)
		if err := o.measure(ctx, k, metrics, say); err != nil {
			return err
		}
	}
	if err := o.pictures(ctx, metrics, out); err != nil {
		return err
	}
	if o.kubelite == "" {
		say("no --kubelite: not measuring how soon an edit of a policy is in force")
	} else if err := o.reload(ctx, metrics, say); err != nil {
		return err
	}
	if err := o.scheduler(metrics); err != nil {
		return err
	}
	for _, g := range goals {
		if _, measured := metrics[g.name]; !measured {
			continue
		}
		in := stats.Interval{Estimate: metrics[g.name], Low: metrics[g.name+"_low"], High: metrics[g.name+"_high"]}
		say("%s: %.4g (%.4g to %.4g); %s: %s", g.what, in.Estimate, in.Low, in.High, g.goal, stats.Said(g.goal.Absolute(in)))
	}
	metrics["seconds_total"] = time.Since(start).Seconds()
	say("a reading of the clock: %.2f µs; coverage decided %.0f %% of the choices by the default policy", metrics["clock_p50_us"], 100*metrics["choices_covered"])
	results := report.Results{Machine: machine.About(), Commit: o.commit, Seed: o.seed, Metrics: metrics}
	if err := results.Write(o.out); err != nil {
		return err
	}
	say("results: %s/%s", o.out, report.ResultsFile)
	return nil
}

type kind struct {
	name      string
	mostMilli int64
}

// kinds are kinds of clusters. If most nodes cover all of most demands, a policy soon finds one. Otherwise it
// looks at all of them.
var kinds = []kind{{"plenty", 8000}, {"scarce", 500}}

// measure measures all policies in one kind of cluster, into the metrics.
func (o options) measure(ctx context.Context, k kind, metrics map[string]float64, say func(string, ...any)) error {
	w, err := newWorld(ctx, o, k.mostMilli)
	if err != nil {
		return err
	}
	defer w.stop()
	arms := append(slices.Clone(api.Placements), byProgram)
	all := map[api.Placement]*measured{}
	for _, name := range arms {
		all[name] = &measured{}
	}
	for range o.blocks {
		for _, i := range w.random.Perm(len(arms)) {
			name := arms[i]
			if err := ctx.Err(); err != nil {
				return err
			}
			all[name].blocks = append(all[name].blocks, w.choose(name, o.choices))
			all[name].allocs = append(all[name].allocs, w.allocations(name))
		}
	}
	for _, name := range arms {
		o.summary(k, name, all[name], metrics, say)
	}
	program, stock := stats.Pool(all[byProgram].blocks), stats.Pool(all[api.PlacementStock].blocks)
	worst(metrics, goals[2].name, stats.Bootstrap(o.blocks, o.seed, func(counts []int) float64 {
		return program.Percentile(counts, 99) - stock.Percentile(counts, 99)
	}))
	metrics["choices_covered"] = min(metrics["choices_covered"], w.covered())
	return nil
}

// summary adds one policy's figures to the metrics and prints them.
func (o options) summary(k kind, name api.Placement, m *measured, metrics map[string]float64, say func(string, ...any)) {
	pooled := stats.Pool(m.blocks)
	of := func(percent float64) stats.Interval {
		return stats.Bootstrap(len(m.blocks), o.seed, func(counts []int) float64 { return pooled.Percentile(counts, percent) })
	}
	p50, p99, allocs := of(50), of(99), stats.Mean(m.allocs)
	say("  %-20s P50 %6.2f µs, P99 %6.2f µs (%.2f to %.2f), %.3f allocations", name, p50.Estimate, p99.Estimate, p99.Low, p99.High, allocs.Estimate)
	key := k.name + "_" + strings.ReplaceAll(string(name), "-", "_")
	metrics[key+"_p50_us"], metrics[key+"_p99_us"], metrics[key+"_allocs"] = p50.Estimate, p99.Estimate, allocs.Estimate
	metrics[key+"_p99_us_low"], metrics[key+"_p99_us_high"] = p99.Low, p99.High
	if name == api.PlacementDefault {
		worst(metrics, goals[0].name, p99)
		worst(metrics, goals[1].name, allocs)
	}
}

// worst keeps a figure of the kind of cluster with the worst result.
func worst(metrics map[string]float64, name string, in stats.Interval) {
	if last, ok := metrics[name]; !ok || in.Estimate > last {
		metrics[name], metrics[name+"_low"], metrics[name+"_high"] = in.Estimate, in.Low, in.High
	}
}

// clockReading returns the median time from one reading of the clock to the next, in microseconds.
func clockReading() float64 {
	times := make([]float64, 1000)
	for i := range times {
		started := time.Now()
		times[i] = microseconds(time.Since(started))
	}
	slices.Sort(times)
	return times[len(times)/2]
}

func microseconds(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }
