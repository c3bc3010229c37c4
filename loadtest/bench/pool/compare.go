package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"libra.dev/libra/loadtest/bench/stats"
	"libra.dev/libra/loadtest/demo/report"
)

const (
	// this and again are both this command: what they differ by is noise.
	this, again = "this", "again"

	// runTimeout is for a run of one arm, beside what its three loops take.
	runTimeout = 2 * time.Minute
)

// compared are the figures that compare prints, by the start of their names in the results.
var compared = []string{"redis_us_per_invocation", "invocations_per_s", "begin_p99_ms"}

type comparison struct {
	shared
	with   map[string]string // commands, by the names of their arms
	nodes  int
	rounds int
	length time.Duration
}

func newCompare() *cobra.Command {
	var c comparison
	cmd := &cobra.Command{
		Use:   "compare --with name=command,...",
		Short: "Measure the pool of this bench against those of others, in turn",
		Long: `compare runs this bench and others, which were built from other code, in turn and in random order, round after
round. It prints what each takes as a ratio to what this one takes in the same round, with its 95 % interval, and
beside them this one once more, whose ratio is the noise.`,
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.run(cmd.Context(), cmd.OutOrStdout())
		},
	}
	f := cmd.Flags()
	c.flags(f, "out/bench-pool-compare")
	f.StringToStringVar(&c.with, "with", nil, "bench-pool commands of other code, by name")
	f.IntVar(&c.nodes, "nodes", 1000, "how many nodes' pools")
	f.IntVar(&c.rounds, "rounds", 8, "how often each is run")
	f.DurationVar(&c.length, "length", 4*time.Second, "length of each of a run's three loops")
	return cmd
}

func (c comparison) check() error {
	var errs []error
	if len(c.with) == 0 {
		errs = append(errs, errors.New("--with names no command; give at least one, as base=bin/bench-pool-base"))
	}
	for name, command := range c.with {
		if name == "" || name == this || name == again {
			errs = append(errs, fmt.Errorf("--with has the name %q; it must be another than %q and %q, and not empty", name, this, again))
		}
		if _, err := exec.LookPath(command); err != nil {
			errs = append(errs, fmt.Errorf("--with %s: %w", name, err))
		}
	}
	if c.rounds < 2 || c.rounds > 1000 {
		errs = append(errs, fmt.Errorf("--rounds is %d; it must be 2 to 1000: one has no interval", c.rounds))
	}
	return errors.Join(errs...)
}

func (c comparison) run(ctx context.Context, out io.Writer) error {
	if err := c.check(); err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	arms := map[string]string{this: self, again: self}
	maps.Copy(arms, c.with)
	names := slices.Sorted(maps.Keys(arms))
	start := time.Now()
	random := rand.New(rand.NewPCG(c.seed, 0))
	measured := map[string][]map[string]float64{} // by arm and round
	for round := range c.rounds {
		random.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
		for _, name := range names {
			metrics, err := c.measure(ctx, arms[name], c.seed+uint64(round))
			if err != nil {
				return fmt.Errorf("round %d, %s: %w", round+1, name, err)
			}
			measured[name] = append(measured[name], metrics)
			fmt.Fprintf(out, "[%4.0f s] round %d of %d, %s: %.1f µs of Redis per invocation, %.0f invocations/s\n", time.Since(start).Seconds(),
				round+1, c.rounds, name, metrics[c.nameOf("redis_us_per_invocation")], metrics[c.nameOf("invocations_per_s")])
		}
	}
	return c.report(out, measured)
}

// nameOf is the name that a figure has in the results of an arm.
func (c comparison) nameOf(figure string) string { return fmt.Sprintf("%s_%d_nodes", figure, c.nodes) }

// measure runs an arm once, and returns its metrics.
func (c comparison) measure(ctx context.Context, command string, seed uint64) (map[string]float64, error) {
	dir, err := os.MkdirTemp("", "bench-pool-compare")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	ctx, cancel := context.WithTimeout(ctx, runTimeout+3*c.length)
	defer cancel()
	var said bytes.Buffer
	cmd := exec.CommandContext(ctx, command, "--redis", c.redis, "--rounds", "1", "--nodes", strconv.Itoa(c.nodes), "--length", c.length.String(),
		"--seed", strconv.FormatUint(seed, 10), "--out", dir)
	cmd.Stdout, cmd.Stderr = &said, &said
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = callTimeout
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("%w; it printed:\n%s", err, said.String())
	}
	data, err := os.ReadFile(filepath.Join(dir, report.ResultsFile))
	if err != nil {
		return nil, err
	}
	var results report.Results
	if err := json.Unmarshal(data, &results); err != nil {
		return nil, err
	}
	for _, figure := range compared {
		if _, ok := results.Metrics[c.nameOf(figure)]; !ok {
			return nil, fmt.Errorf("its results have no %s", c.nameOf(figure))
		}
	}
	return results.Metrics, nil
}

func (c comparison) report(out io.Writer, measured map[string][]map[string]float64) error {
	metrics := map[string]float64{}
	for _, figure := range compared {
		name := c.nameOf(figure)
		own := make([]float64, c.rounds)
		for round, m := range measured[this] {
			own[round] = m[name]
		}
		mean := stats.Mean(own, c.seed)
		metrics[name] = mean.Estimate
		fmt.Fprintf(out, "%s: %.4g (%.4g to %.4g)\n", figure, mean.Estimate, mean.Low, mean.High)
		for _, arm := range slices.Sorted(maps.Keys(measured)) {
			if arm == this {
				continue
			}
			ratios := make([]float64, c.rounds)
			for round, m := range measured[arm] {
				ratios[round] = m[name] / own[round]
			}
			ratio := stats.Mean(ratios, c.seed)
			metrics[figure+"_ratio_"+arm] = ratio.Estimate
			metrics[figure+"_ratio_low_"+arm], metrics[figure+"_ratio_high_"+arm] = ratio.Low, ratio.High
			fmt.Fprintf(out, "  %-12s %.3f of it (%.3f to %.3f)\n", arm, ratio.Estimate, ratio.Low, ratio.High)
		}
	}
	if err := os.MkdirAll(c.out, 0o755); err != nil {
		return err
	}
	results := report.Results{Machine: machine(), Commit: c.commit, Seed: c.seed, Metrics: metrics}
	return results.Write(c.out)
}
