package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"time"

	"github.com/spf13/cobra"

	"libra.dev/libra/loadtest/bench/machine"
	"libra.dev/libra/loadtest/demo/report"
)

// picturing has the user's choices.
type picturing struct {
	options
	activators int
	placed     float64 // invocations a second
}

func newPictures() *cobra.Command {
	p := picturing{options: options{connections: 8, revisions: 10_000}}
	var nodes int
	cmd := &cobra.Command{
		Use:   "pictures",
		Short: "Measure what activators' pictures of the nodes cost Redis, and what activators make of them",
		Long: `pictures begins and ends invocations at a fixed rate in the pools of many nodes, with and without an activator that keeps
a picture of all nodes, in turn and in random order. It prints what share of a core Redis uses more with it, and how long
after a Begin was sent the picture has it.

Then several activators, each with its own picture and pods, place invocations under the source owners: half of them lend
what they do not need, and half borrow, and are placed where the most of that can be had. It prints how much they borrowed until
they ended, out of the CPU that their nodes had for them when they were placed.`,
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			p.nodes = []int{nodes}
			return p.run(cmd.Context(), cmd.OutOrStdout())
		},
	}
	f := cmd.Flags()
	p.flags(f, "out/bench-pool-pictures")
	f.BoolVar(&p.quick, "quick", false, quickUsage)
	f.IntVar(&nodes, "nodes", 1000, "number of nodes, each with two pods of each activator that places")
	f.IntVar(&p.standing, "standing", 10, "invocations always in flight on each node, all with something to lend, where the cost is measured")
	f.Float64Var(&p.rate, "rate", 5_000, "invocations per second, where the cost is measured")
	f.Float64Var(&p.placed, "placed", 1_000, "invocations per second that all activators place")
	f.IntVar(&p.activators, "activators", 4, "number of activators that place")
	f.DurationVar(&p.length, "length", 5*time.Second, "length of a round or, where the cost is measured, of each half of it")
	f.IntVar(&p.rounds, "rounds", 6, "number of rounds of both measurements")
	return cmd
}

func (p picturing) check() error {
	p.followed = p.rate // not used here
	err := p.options.check()
	if p.placed < 1 || p.placed > 1e6 {
		err = errors.Join(err, fmt.Errorf("--placed is %v; it must be 1 to 1000000", p.placed))
	}
	if p.activators < 1 || p.activators > mostPlacing {
		err = errors.Join(err, fmt.Errorf("--activators is %d; it must be 1 to %d", p.activators, mostPlacing))
	}
	return err
}

func (p picturing) run(ctx context.Context, out io.Writer) error {
	if p.quick {
		p.nodes, p.length, p.rate, p.placed, p.rounds = []int{20}, 500*time.Millisecond, 500, 100, 3
	}
	if err := p.check(); err != nil {
		return err
	}
	as, err := readShipped(p.redis)
	if err != nil {
		return err
	}
	pinned, err := leaveCore()
	if err != nil {
		return err
	}
	m, err := p.measure(ctx, as, pinned, out)
	if err != nil {
		return err
	}
	metrics := m.summary(p, out)
	placed, err := p.measurePlaced(ctx, as, pinned, out)
	if err != nil {
		return err
	}
	maps.Copy(metrics, placed)
	metrics["nodes"] = float64(p.nodes[0])
	if err := os.MkdirAll(p.out, 0o755); err != nil {
		return err
	}
	return report.Results{Machine: machine.About(), Commit: p.commit, Seed: p.seed, Metrics: metrics}.Write(p.out)
}
