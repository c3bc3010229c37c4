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
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"libra.dev/libra/loadtest/bench/machine"
	"libra.dev/libra/loadtest/bench/stats"
	"libra.dev/libra/loadtest/demo/report"
)

const (
	// this and again both run this command: their difference is noise.
	this, again = "this", "again"

	// openTimeout bounds opening the pools of all arms at the same time. turnTimeout bounds a turn, beyond
	// its length.
	openTimeout, turnTimeout = 5 * time.Minute, 10 * time.Second
)

// compared are the figures that compare prints, by their names in an arm.
var compared = []string{"redis_us_per_invocation", "invocations_per_s", "begin_p99_ms"}

type comparison struct {
	shared
	with   map[string]string // commands, by arm name
	nodes  int
	rounds int // how often all arms are started
	turns  int // turns of each arm in a round
	length time.Duration
}

func newCompare() *cobra.Command {
	var c comparison
	cmd := &cobra.Command{
		Use:   "compare --with name=command,...",
		Short: "Measure the pool of this bench against those of others, in turn",
		Long: `compare runs this bench and others that were built from other code. Each has pools on its own Redis, and all take turns of a
quarter of a second, each time in another order: anything that disturbs the machine for longer disturbs them all. After some
turns all start anew, because one Redis is a little faster than another for as long as it runs. It prints the ratio of what
each takes to what this one takes in the same round, with its 95 % interval. It also runs this one a second time: that ratio
is the noise.`,
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
	f.IntVar(&c.nodes, "nodes", 1000, "number of nodes, each with a pool")
	f.IntVar(&c.rounds, "rounds", 8, "how often to start all")
	f.IntVar(&c.turns, "turns", 40, "turns of each in a round")
	f.DurationVar(&c.length, "length", 250*time.Millisecond, "length of a turn")
	return cmd
}

func (c comparison) check() error {
	var errs []error
	if len(c.with) == 0 {
		errs = append(errs, errors.New("--with names no command; give at least one, such as base=bin/bench-pool-base"))
	}
	for name, command := range c.with {
		if name == "" || name == this || name == again {
			errs = append(errs, fmt.Errorf("--with has the name %q; it must not be empty, %q or %q", name, this, again))
		}
		if _, err := exec.LookPath(command); err != nil {
			errs = append(errs, fmt.Errorf("--with %s: %w", name, err))
		}
	}
	if c.rounds < 3 || c.rounds > 1000 {
		errs = append(errs, fmt.Errorf("--rounds is %d; it must be 3 to 1000: fewer have no interval", c.rounds))
	}
	if c.turns < 1 || c.turns > 10_000 {
		errs = append(errs, fmt.Errorf("--turns is %d; it must be 1 to 10000", c.turns))
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
	commands := map[string]string{this: self, again: self}
	maps.Copy(commands, c.with)
	start := time.Now()
	random := rand.New(rand.NewPCG(c.seed, 0))
	measured := map[string][]map[string]float64{} // by arm and round
	for round := range c.rounds {
		fmt.Fprintf(out, "[%4.0f s] round %d of %d: each command opens the pools of %d nodes, and has %d turns\n",
			time.Since(start).Seconds(), round+1, c.rounds, c.nodes, c.turns)
		means, err := c.round(ctx, commands, random)
		if err != nil {
			return fmt.Errorf("round %d: %w", round+1, err)
		}
		for name, mean := range means {
			measured[name] = append(measured[name], mean)
		}
		c.seed++
	}
	return c.report(out, measured)
}

// round starts all arms, lets them take turns, and returns the mean of each arm's figures.
func (c comparison) round(ctx context.Context, commands map[string]string, random *rand.Rand) (means map[string]map[string]float64, err error) {
	names := slices.Sorted(maps.Keys(commands))
	ctx, cancel := context.WithTimeout(ctx, openTimeout+time.Duration(c.turns*len(names))*(c.length+turnTimeout))
	defer cancel()
	arms := map[string]*arm{}
	defer func() {
		for name, a := range arms {
			if stopErr := a.stop(); stopErr != nil {
				err = errors.Join(err, fmt.Errorf("%s: %w", name, stopErr))
			}
		}
	}()
	for _, name := range names {
		a, err := c.start(ctx, commands[name])
		if err != nil {
			return nil, fmt.Errorf("start %s: %w", name, err)
		}
		arms[name] = a
	}
	means = map[string]map[string]float64{}
	for _, name := range names {
		if _, err := arms[name].said(); err != nil {
			return nil, fmt.Errorf("open the pools of %s: %w", name, err)
		}
		means[name] = map[string]float64{}
	}
	for turn := range c.turns {
		random.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
		for _, name := range names {
			metrics, err := arms[name].turn()
			if err != nil {
				return nil, fmt.Errorf("turn %d of %s: %w", turn+1, name, err)
			}
			for _, figure := range compared {
				means[name][figure] += metrics[figure] / float64(c.turns)
			}
		}
	}
	return means, nil
}

// arm is a bench-pool process that waits for its turn.
type arm struct {
	process *exec.Cmd
	asks    io.WriteCloser
	answers *json.Decoder
	errors  bytes.Buffer
}

func (c comparison) start(ctx context.Context, command string) (*arm, error) {
	a := &arm{process: exec.CommandContext(ctx, command, "arm", "--redis", c.redis, "--nodes", strconv.Itoa(c.nodes),
		"--length", c.length.String(), "--seed", strconv.FormatUint(c.seed, 10))}
	a.process.Stderr = &a.errors
	a.process.Cancel = func() error { return a.process.Process.Signal(os.Interrupt) }
	a.process.WaitDelay = callTimeout
	var err error
	if a.asks, err = a.process.StdinPipe(); err != nil {
		return nil, err
	}
	answers, err := a.process.StdoutPipe()
	if err != nil {
		return nil, err
	}
	a.answers = json.NewDecoder(answers)
	return a, a.process.Start()
}

// turn makes the arm measure one turn.
func (a *arm) turn() (map[string]float64, error) {
	if _, err := io.WriteString(a.asks, "\n"); err != nil {
		return nil, err
	}
	return a.said()
}

// said reads the arm's next results.
func (a *arm) said() (map[string]float64, error) {
	var metrics map[string]float64
	if err := a.answers.Decode(&metrics); err != nil {
		return nil, fmt.Errorf("read the measurements: %w", err)
	}
	for _, figure := range compared {
		if _, ok := metrics[figure]; !ok {
			return nil, fmt.Errorf("it measured %v, but no %s", metrics, figure)
		}
	}
	return metrics, nil
}

// stop ends the arm, and returns an error with its output if it failed.
func (a *arm) stop() error {
	a.asks.Close() //nolint:errcheck // it may have ended before
	if err := a.process.Wait(); err != nil {
		return fmt.Errorf("%w; it printed:\n%s", err, a.errors.String())
	}
	return nil
}

func (c comparison) report(out io.Writer, measured map[string][]map[string]float64) error {
	metrics := map[string]float64{}
	for _, figure := range compared {
		own := make([]float64, c.rounds)
		for round, m := range measured[this] {
			own[round] = m[figure]
		}
		mean := stats.Mean(own)
		metrics[figure] = mean.Estimate
		fmt.Fprintf(out, "%s: %.4g (%.4g to %.4g)\n", figure, mean.Estimate, mean.Low, mean.High)
		for _, arm := range slices.Sorted(maps.Keys(measured)) {
			if arm == this {
				continue
			}
			ratios := make([]float64, c.rounds)
			for round, m := range measured[arm] {
				ratios[round] = m[figure] / own[round]
			}
			ratio := stats.Mean(ratios)
			metrics[figure+"_ratio_"+arm] = ratio.Estimate
			metrics[figure+"_ratio_low_"+arm], metrics[figure+"_ratio_high_"+arm] = ratio.Low, ratio.High
			fmt.Fprintf(out, "  %-12s %.3f of it (%.3f to %.3f)\n", arm, ratio.Estimate, ratio.Low, ratio.High)
		}
	}
	if err := os.MkdirAll(c.out, 0o755); err != nil {
		return err
	}
	results := report.Results{Machine: machine.About(), Commit: c.commit, Seed: c.seed - uint64(c.rounds), Metrics: metrics}
	return results.Write(c.out)
}
