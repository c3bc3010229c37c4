// Command activator compares Libra's activator with the stock one: it sends the same
// requests to three activators beside each other, two of them stock, in blocks.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"libra.dev/libra/loadtest/bench/machine"
	"libra.dev/libra/loadtest/bench/rig"
	"libra.dev/libra/loadtest/bench/stats"
	"libra.dev/libra/pkg/api"
)

const (
	optedOut = "opted_out"
	optedIn  = "opted_in"

	warmAnswers    = 50
	warmLength     = 3 * time.Second
	cleanUpTimeout = 3 * time.Minute
	// The activator under load before still works off what its requests left.
	settle = 100 * time.Millisecond
)

var (
	revisions = []string{optedOut, optedIn}
	functions = map[string]string{optedOut: "bench-out", optedIn: "bench-in"}

	// A pod with one request at a time does not exhaust these.
	functionLimits = api.Resources{CPUMilli: 500, MemoryBytes: 64 << 20}
)

// load describes the load of each block.
type load struct {
	blocks, pods  int
	rate          float64
	paced, closed time.Duration
}

func main() { machine.Main(newRoot()) }

func newRoot() *cobra.Command {
	var o rig.Options
	var l load
	cmd := &cobra.Command{
		Use:   "bench-activator",
		Short: "Compare Libra's activator with the stock one, on the box",
		Long: `bench-activator runs three copies of the installed activator beside it on the box,
two unchanged and one with Libra, and two copies of a function that does nothing, one
opted in to Libra and one not. In each block it sends each activator the same load, in
a different order each time: requests at a fixed rate, for the response times, and then
as many as a few connections can, for the throughput.

The box needs Libra and the stock activator: "demo install". Run it from the root of
the repository. It removes everything that it installed.`,
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return bench(cmd.Context(), o, l, cmd.OutOrStdout())
		},
	}
	o.Bind(cmd, "out/bench-activator")
	f := cmd.Flags()
	f.IntVar(&l.blocks, "blocks", 24, "blocks, each of all activators and both revisions once")
	f.IntVar(&l.pods, "pods", 4, "pods of each revision, and connections of the load")
	f.Float64Var(&l.rate, "rate", 400, "requests per second of the paced load")
	f.DurationVar(&l.paced, "paced", 3*time.Second, "length of the paced load in each block")
	f.DurationVar(&l.closed, "closed", 1500*time.Millisecond, "length of the load without pauses in each block")
	return cmd
}

func (l load) check() error {
	var errs []error
	if l.blocks < 2 || l.blocks > 1000 {
		errs = append(errs, fmt.Errorf("--blocks is %d; it must be 2 to 1000", l.blocks))
	}
	if l.pods < 1 || l.pods > 8 {
		errs = append(errs, fmt.Errorf("--pods is %d; it must be 1 to 8", l.pods))
	}
	if l.rate < 1 || l.rate > 10_000 {
		errs = append(errs, fmt.Errorf("--rate is %v; it must be 1 to 10000", l.rate))
	}
	for flag, length := range map[string]time.Duration{"--paced": l.paced, "--closed": l.closed} {
		if length < 100*time.Millisecond || length > time.Minute {
			errs = append(errs, fmt.Errorf("%s is %v; it must be 100ms to 1m", flag, length))
		}
	}
	return errors.Join(errs...)
}

// comparison is one run of the command.
type comparison struct {
	load
	*rig.Rig
	arms     []*arm
	requests map[string][]byte // by revision
	redis    *redis.Client
	// calls counts the pool's calls in Redis while Libra's activator was under load.
	calls  map[string]int64
	series map[string]series
}

func bench(ctx context.Context, o rig.Options, l load, out io.Writer) (err error) {
	if o.Quick {
		l.blocks, l.paced, l.closed = 2, time.Second, 500*time.Millisecond
	}
	if err := l.check(); err != nil {
		return err
	}
	r, err := rig.Connect(ctx, o, out)
	if err != nil {
		return err
	}
	c := &comparison{load: l, Rig: r, requests: map[string][]byte{}, calls: map[string]int64{}, series: map[string]series{}}
	for i, name := range armNames {
		c.arms = append(c.arms, &arm{name: name, libra: i == libra})
	}
	defer func() { err = errors.Join(err, c.cleanUp(context.WithoutCancel(ctx))) }()
	if err := c.start(ctx); err != nil {
		return err
	}
	if err := c.measure(ctx); err != nil {
		return err
	}
	return c.report(ctx, out)
}

// start starts the functions and the activators on the box and warms them up.
func (c *comparison) start(ctx context.Context) error {
	addr, err := c.RedisAddr(ctx)
	if err != nil {
		return err
	}
	c.redis = redis.NewClient(&redis.Options{Addr: addr})
	for _, revision := range revisions {
		d, err := c.Deploy(ctx, rig.Function{Name: functions[revision], OptedIn: revision == optedIn, Pods: c.pods, Limits: functionLimits})
		if err != nil {
			return err
		}
		d.Close() // nobody looks into its containers
		c.requests[revision] = requestTo(d.Revision, d.Host)
	}
	for _, a := range c.arms {
		c.Say("starting activator %s", a.name)
		if err := a.start(ctx, c.Rig); err != nil {
			return err
		}
	}
	for _, a := range c.arms {
		for _, revision := range revisions {
			if err := c.warm(ctx, target{a.addr, c.requests[revision]}); err != nil {
				return fmt.Errorf("activator %s, revision %s: %w", a.name, revision, err)
			}
		}
	}
	return nil
}

// warm sends requests until they are answered, and then the load itself.
func (c *comparison) warm(ctx context.Context, t target) error {
	err := rig.Eventually(ctx, startTimeout, func(ctx context.Context) error {
		client, err := dial(ctx, t)
		if err != nil {
			return err
		}
		defer client.conn.Close()
		for range warmAnswers {
			if err := client.do(); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	_, err = closed(ctx, t, c.pods, warmLength)
	return err
}

func (c *comparison) measure(ctx context.Context) error {
	for _, revision := range revisions {
		c.series[revision] = make(series, len(c.arms))
		for arm := range c.arms {
			c.series[revision][arm] = make([]measured, c.blocks)
		}
	}
	for block, order := range stats.Orders(c.blocks, len(c.arms), c.Seed) {
		c.Say("block %d of %d", block+1, c.blocks)
		for i := range revisions {
			revision := revisions[(i+block)%len(revisions)]
			for _, arm := range order {
				m, err := c.measureOne(ctx, arm, revision)
				if err != nil {
					return err
				}
				c.series[revision][arm][block] = m
			}
		}
	}
	return nil
}

func (c *comparison) measureOne(ctx context.Context, index int, revision string) (m measured, err error) {
	a := c.arms[index]
	t := target{a.addr, c.requests[revision]}
	if err := rig.Pause(ctx, settle); err != nil {
		return m, err
	}
	var before int64
	if a.libra {
		if before, err = c.poolCalls(ctx); err != nil {
			return m, err
		}
	}
	if m.paced, err = paced(ctx, t, c.pods, c.rate, c.paced); err != nil {
		return m, err
	}
	cpuBefore, err := a.cpu()
	if err != nil {
		return m, err
	}
	if m.closed, err = closed(ctx, t, c.pods, c.closed); err != nil {
		return m, err
	}
	cpuAfter, err := a.cpu()
	if err != nil {
		return m, err
	}
	m.cpu = cpuAfter - cpuBefore
	if a.libra {
		after, err := c.poolCalls(ctx)
		if err != nil {
			return m, err
		}
		c.calls[revision] += after - before
	}
	return m, nil
}

// poolCalls returns how often a function of the pool was called in Redis.
func (c *comparison) poolCalls(ctx context.Context) (int64, error) {
	text, err := c.redis.Info(ctx, "commandstats").Result()
	if err != nil {
		return 0, fmt.Errorf("ask Redis for its calls: %w", err)
	}
	return fcalls(text)
}

// fcalls reads the number of calls of FCALL from Redis's command statistics.
func fcalls(text string) (int64, error) {
	_, rest, ok := strings.Cut(text, "cmdstat_fcall:calls=")
	if !ok {
		return 0, nil
	}
	number, _, _ := strings.Cut(rest, ",")
	n, err := strconv.ParseInt(number, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("the calls of FCALL in Redis are %q, not a number", number)
	}
	return n, nil
}

func (c *comparison) report(ctx context.Context, out io.Writer) error {
	metrics := map[string]float64{"blocks": float64(c.blocks), "rate": c.rate, "connections": float64(c.pods)}
	comparisons := map[string][]compared{}
	var failed int
	var failure error
	for _, revision := range revisions {
		s := c.series[revision]
		comparisons[revision] = s.compare(c.Seed)
		note(metrics, revision, comparisons[revision])
		for _, blocks := range s {
			for _, m := range blocks {
				failed += m.paced.failed + m.closed.failed
				failure = cmp.Or(failure, m.paced.failure, m.closed.failure)
			}
		}
		var requests int
		for _, m := range s[libra] {
			requests += len(m.paced.latencies) + len(m.closed.latencies)
		}
		metrics["pool_calls_per_request_"+revision] = float64(c.calls[revision]) / float64(requests)
	}
	metrics["failed_requests"] = float64(failed)
	if err := c.Write(ctx, metrics); err != nil {
		return err
	}
	fmt.Fprintf(out, "\np50 and p99 are in ms, at %g requests a second; rps and cpu_us, the activator's CPU time for a request, are of %d connections without pauses. %d blocks, seed %d.\n\n", c.rate, c.pods, c.blocks, c.Seed)
	if err := writeTable(out, comparisons); err != nil {
		return err
	}
	if failed > 0 {
		return fmt.Errorf("failed requests: %d, the first: %w", failed, failure)
	}
	// Few requests call it: such short ones neither lend nor borrow, and are sampled.
	if c.calls[optedIn] == 0 {
		return errors.New("the pool was never called for the revision that opted in: its activator did not work as Libra's")
	}
	return nil
}

// cleanUp removes everything that start made, however far it got.
func (c *comparison) cleanUp(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, cleanUpTimeout)
	defer cancel()
	c.Say("removing the activators and the functions")
	var errs []error
	for _, a := range c.arms {
		errs = append(errs, a.remove(ctx, c.Rig))
	}
	for _, name := range functions {
		errs = append(errs, c.Remove(ctx, name))
	}
	if c.redis != nil {
		errs = append(errs, c.redis.Close())
	}
	return errors.Join(errs...)
}
