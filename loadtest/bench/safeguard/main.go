// Command safeguard measures how soon a donor gets back what it lent: when it comes to need it,
// when its invocation ends, and when one begins in an idle donor.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"libra.dev/libra/loadtest/bench/machine"
	"libra.dev/libra/loadtest/bench/rig"
	"libra.dev/libra/loadtest/bench/stats"
	"libra.dev/libra/loadtest/demo/report"
	"libra.dev/libra/pkg/api"
)

const (
	donor    = "bench-donor"
	borrower = "bench-borrower"

	sampleEvery = time.Millisecond
	// blurredAfter is a pause between samples that took more than sampling.
	blurredAfter = 4 * time.Millisecond
	pollEvery    = 100 * time.Microsecond
	// spin is enough CPU time to cross the threshold of any lowered limit.
	spin           = 150 * time.Millisecond
	restoreTimeout = 5 * time.Second
	cleanUpTimeout = 2 * time.Minute
	requestTimeout = 20 * time.Second

	// A donor lends from leastLoan to leastLoan + loanSteps x 100m of its CPU.
	leastLoan = 500
	loanSteps = 3

	// atOnce is the number of successive loans in one block of an interval.
	atOnce = 20
)

// One thread of spin can use all of the CPU.
var limits = api.Resources{CPUMilli: 1000, MemoryBytes: 64 << 20}

func main() { machine.Main(newRoot()) }

func newRoot() *cobra.Command {
	var o rig.Options
	cmd := &cobra.Command{
		Use:   "bench-safeguard",
		Short: "Measure how soon a donor gets back what it lent, on the box",
		Long: `bench-safeguard lends CPU of one real pod on the box to another through the real
pool and node agent, and then, repeatedly,

  - makes the donor use CPU: from when it has used 80 % of what its lowered limit
    allows within 100 ms until its limit is back (the safeguard),
  - or ends the donor's invocation: from the End until its limit is back,
  - or ends it so that its pod keeps lending, and begins another there: from that Begin
    until its limit is back.

It reads the pods' cgroups every millisecond. Then it predicts wrongly, on purpose:
a donor that needs all of its CPU for 1.5 s lends half of it, and the bench compares what
that costs with the same request when nothing is lent. Libra must be on the box: "demo install".`,
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return bench(cmd.Context(), o, cmd.OutOrStdout())
		},
	}
	o.Bind(cmd, "out/bench-safeguard")
	return cmd
}

// guarding is one run of the command.
type guarding struct {
	*rig.Rig
	lender          *rig.Lender
	random          *rand.Rand
	gives, takes    rig.Pod
	http            *http.Client
	times           map[string][]float64 // milliseconds
	wrong           mispredictions
	refused, missed int
	early, blurred  int // restored before the bench saw a reason, or while it did not look
}

func bench(ctx context.Context, o rig.Options, out io.Writer) (err error) {
	// Loans of each of the three kinds, and requests predicted to need half of what they do, with as many of each kind
	// to compare with.
	repetitions, wrong := 400, 40
	if o.Quick {
		repetitions, wrong = 20, 4
	}
	r, err := rig.Connect(ctx, o, out)
	if err != nil {
		return err
	}
	g := &guarding{
		Rig:    r,
		random: rand.New(rand.NewPCG(o.Seed, 0)),
		// Straight to the pod, which is on this machine.
		http:  &http.Client{Timeout: requestTimeout, Transport: &http.Transport{}},
		times: map[string][]float64{},
	}
	defer func() { err = errors.Join(err, g.cleanUp(context.WithoutCancel(ctx))) }()
	for name, pod := range map[string]*rig.Pod{donor: &g.gives, borrower: &g.takes} {
		d, err := g.Deploy(ctx, rig.Function{Name: name, OptedIn: true, Pods: 1, Limits: limits})
		if err != nil {
			return err
		}
		*pod = d.Pods[0]
	}
	if g.lender, err = r.NewLender(ctx); err != nil {
		return err
	}
	// Alternate, so that each kind meets the same conditions.
	for n := range repetitions {
		if n%50 == 0 {
			g.Say("loans %d to %d of %d, of each kind", n+1, min(n+50, repetitions), repetitions)
		}
		for _, then := range []func(context.Context, loan) error{g.useIt, g.endIt, g.wakeIt} {
			if err := g.lend(ctx, then); err != nil {
				return err
			}
		}
	}
	if err := g.mispredict(ctx, wrong); err != nil {
		return err
	}
	return g.report(ctx, out)
}

// loan is a loan that is in force in the donor's cgroup.
type loan struct {
	rig.Loan
	limitMilli int64 // the donor's lowered limit
}

// lend makes a loan, calls then with it, and ends the rest of it.
func (g *guarding) lend(ctx context.Context, then func(context.Context, loan) error) error {
	if err := rig.AwaitWhole(ctx, g.gives, g.takes); err != nil {
		return err
	}
	// Vary the distance from the agent's rounds.
	if err := rig.Pause(ctx, g.between(50*time.Millisecond, 100*time.Millisecond)); err != nil {
		return err
	}
	volume := api.Resources{CPUMilli: leastLoan + 100*g.random.Int64N(loanSteps+1)}
	made, refused, err := g.lender.Loan(ctx, g.gives, g.takes, volume, leastLoan)
	if err != nil {
		return err
	}
	g.refused += refused
	l := loan{made, limits.CPUMilli - made.Volume.CPUMilli}
	if _, err := rig.AwaitCPULimit(ctx, g.gives, pollEvery, restoreTimeout, func(milli int64) bool { return milli == l.limitMilli }); err != nil {
		return fmt.Errorf("after a loan of %dm: %w", l.Volume.CPUMilli, err)
	}
	if err := then(ctx, l); err != nil {
		return err
	}
	return g.lender.End(ctx, l.Borrower, l.Donor)
}

func (g *guarding) between(least, most time.Duration) time.Duration {
	return least + time.Duration(g.random.Int64N(int64(most-least)))
}

func (g *guarding) note(name string, took time.Duration) {
	g.times[name] = append(g.times[name], rig.Milliseconds(took))
}

// endIt ends the donor's invocation and waits until the donor is whole.
func (g *guarding) endIt(ctx context.Context, l loan) error {
	if err := rig.Pause(ctx, g.between(20*time.Millisecond, 120*time.Millisecond)); err != nil {
		return err
	}
	began := time.Now()
	if err := g.lender.End(ctx, l.Donor); err != nil {
		return err
	}
	whole, err := rig.AwaitCPULimit(ctx, g.gives, pollEvery, restoreTimeout, g.gives.IsWhole)
	if err != nil {
		return fmt.Errorf("after the donor's End: %w", err)
	}
	g.note("donor_whole", whole.Sub(began))
	return nil
}

// wakeIt ends the donor's invocation, which leaves its pod an idle donor, begins another that needs
// everything, and waits until the donor is whole.
func (g *guarding) wakeIt(ctx context.Context, l loan) error {
	if err := g.lender.EndIdle(ctx, l.Donor); err != nil {
		return err
	}
	if err := rig.Pause(ctx, g.between(50*time.Millisecond, 150*time.Millisecond)); err != nil {
		return err
	}
	if reading, err := g.gives.Container.Read(); err != nil || reading.Limit.CPUMilli != l.limitMilli {
		return errors.Join(err, fmt.Errorf("the donor's limit is %dm while it idles, want %dm as before its End", reading.Limit.CPUMilli, l.limitMilli))
	}
	began := time.Now()
	next, _, err := g.lender.Begin(ctx, g.gives, api.Resources{}, api.Resources{})
	if err != nil {
		return err
	}
	whole, err := rig.AwaitCPULimit(ctx, g.gives, pollEvery, restoreTimeout, g.gives.IsWhole)
	if err != nil {
		return fmt.Errorf("after a Begin in the idle donor: %w", err)
	}
	g.note("idle_whole", whole.Sub(began))
	return g.lender.End(ctx, next)
}

// useIt makes the donor use CPU and waits until the donor is whole and the borrower has given the
// CPU back.
func (g *guarding) useIt(ctx context.Context, l loan) error {
	pause := g.between(window+10*time.Millisecond, 2*window)
	var w watched
	if err := rig.Promptly(func() (err error) {
		w, err = g.watch(ctx, pause)
		return err
	}); err != nil {
		return err
	}
	if w.blurred {
		g.blurred++
	}
	at, seen, crossed := crossing(w.samples, l.limitMilli)
	switch {
	case !crossed:
		return fmt.Errorf("the donor used %v, but never reached 80 %% of its lowered limit, %dm", spin, l.limitMilli)
	case w.restored.IsZero():
		g.missed++
		g.note("restore", restoreTimeout)
		return nil
	case w.restored.Before(at):
		g.early++
	}
	g.note("restore", max(0, w.restored.Sub(at)))
	g.note("restore_as_seen", max(0, w.restored.Sub(seen)))
	g.note("donor_throttled", w.throttled)
	if !w.shrunk.IsZero() {
		g.note("overlap", max(0, w.shrunk.Sub(w.restored)))
	}
	return nil
}

// watched is what was seen of a donor that came to need what it had lent. A zero time means that it
// did not happen.
type watched struct {
	samples          []sample
	restored, shrunk time.Time
	throttled        time.Duration // of the donor, over all CPUs
	// blurred means that the sample before the one that showed the donor restored was long ago, so
	// that the restore may have been long before, too.
	blurred bool
}

// watch samples both pods, sends the donor its request after a pause, and goes on until the
// response is there and the loan is undone.
func (g *guarding) watch(ctx context.Context, pause time.Duration) (w watched, err error) {
	var answered chan error
	start := time.Now()
	last := start // the sample before
	var throttledBefore time.Duration
	for {
		donor, err := g.gives.Container.Read()
		now := time.Now()
		if err != nil {
			return w, err
		}
		borrower, err := g.takes.Container.Read()
		if err != nil {
			return w, err
		}
		if n := len(w.samples); n > 0 {
			last = w.samples[n-1].at
		}
		if w.samples = append(w.samples, sample{now, donor.CPU}); len(w.samples) == 1 {
			throttledBefore = donor.Throttled
		}
		if w.restored.IsZero() && g.gives.IsWhole(donor.Limit.CPUMilli) {
			w.restored, w.blurred = now, now.Sub(last) > blurredAfter
			if answered == nil {
				return w, fmt.Errorf("the donor got its limit back %v after it was lowered, before it needed it", now.Sub(start))
			}
		}
		if w.shrunk.IsZero() && g.takes.IsWhole(borrower.Limit.CPUMilli) {
			w.shrunk = time.Now()
		}
		switch {
		case answered == nil && now.Sub(start) >= pause:
			answered = make(chan error, 1)
			go func() { answered <- g.request(ctx, spin) }()
		case now.Sub(start) >= restoreTimeout || !w.restored.IsZero() && !w.shrunk.IsZero() && len(answered) == 1:
			w.throttled = donor.Throttled - throttledBefore
			return w, <-answered
		}
		rig.Sleep(sampleEvery)
	}
}

// request makes the donor use cpu.
func (g *guarding) request(ctx context.Context, cpu time.Duration) error {
	url := "http://" + g.gives.IP + ":" + strconv.Itoa(rig.SpinPort)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(cpu.String()))
	if err != nil {
		return err
	}
	resp, err := g.http.Do(req)
	if err != nil {
		return fmt.Errorf("ask the donor: %w", err)
	}
	defer resp.Body.Close()
	said, err := io.ReadAll(io.LimitReader(resp.Body, 1<<10))
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("the donor answers %s: %s", resp.Status, said)
	}
	return err
}

// goals are for the P99s, in milliseconds.
var goals = map[string]stats.Goal{"restore": {Bound: 20}, "donor_whole": {Bound: 10}, "idle_whole": {Bound: 10}}

func (g *guarding) report(ctx context.Context, out io.Writer) error {
	metrics := map[string]float64{"loans_refused": float64(g.refused), "restores_missed": float64(g.missed), "restores_early": float64(g.early), "restores_blurred": float64(g.blurred)}
	p99 := map[string]stats.Interval{}
	for name, times := range g.times {
		metrics[name+"_count"] = float64(len(times))
		for percent, suffix := range map[float64]string{50: "_p50_ms", 99: "_p99_ms", 100: "_worst_ms"} {
			metrics[name+suffix] = report.Percentile(times, percent)
		}
		p99[name] = stats.Percentile(times, 99, atOnce, g.Seed)
		metrics[name+"_p99_low_ms"], metrics[name+"_p99_high_ms"] = p99[name].Low, p99[name].High
	}
	wrong := g.wrong.figures(g.Seed)
	maps.Copy(metrics, wrong.metrics())
	if err := g.Write(ctx, metrics); err != nil {
		return err
	}
	fmt.Fprintf(out, "\n%-52s %6s %9s %9s %18s %9s  %s\n", "", "times", "P50 ms", "P99 ms", "95 % interval", "worst ms", "P99 goal")
	for _, row := range []struct{ name, what string }{
		{"restore", "usage at the threshold, to limit back"},
		{"restore_as_seen", "the same, from when the kernel's counters showed it"},
		{"donor_throttled", "time the donor was throttled meanwhile"},
		{"overlap", "limit back, to the borrower's taken back"},
		{"donor_whole", "End of the donor, to limit back"},
		{"idle_whole", "Begin in an idle donor, to limit back"},
	} {
		said := ""
		if goal, ok := goals[row.name]; ok && len(g.times[row.name]) > 0 {
			said = fmt.Sprintf("%s: %s", goal, stats.Said(goal.Absolute(p99[row.name])))
		}
		fmt.Fprintf(out, "%-52s %6.0f %9.3f %9.3f %18s %9.3f  %s\n", row.what, metrics[row.name+"_count"],
			metrics[row.name+"_p50_ms"], metrics[row.name+"_p99_ms"], fmt.Sprintf("%.3f to %.3f", p99[row.name].Low, p99[row.name].High), metrics[row.name+"_worst_ms"], said)
	}
	fmt.Fprintf(out, "Loans that the node had no room for: %d; restores before the threshold: %d, never: %d, seen late by the bench itself: %d.\n", g.refused, g.early, g.missed, g.blurred)
	wrong.print(out)
	if g.missed > 0 {
		return fmt.Errorf("%d of %d donors that needed their CPU were not restored within %v", g.missed, len(g.times["restore"]), restoreTimeout)
	}
	return nil
}

func (g *guarding) cleanUp(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, cleanUpTimeout)
	defer cancel()
	g.Say("removing the functions")
	var errs []error
	if g.lender != nil {
		errs = append(errs, g.lender.Close())
	}
	for _, p := range []rig.Pod{g.gives, g.takes} {
		if p.Container != nil {
			p.Container.Close() //nolint:errcheck // the pod goes
		}
	}
	return errors.Join(append(errs, g.Remove(ctx, donor), g.Remove(ctx, borrower))...)
}
