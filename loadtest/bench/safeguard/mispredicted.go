package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"libra.dev/libra/loadtest/bench/rig"
	"libra.dev/libra/loadtest/bench/stats"
	"libra.dev/libra/loadtest/demo/report"
	"libra.dev/libra/pkg/api"
)

// longSpin takes a donor 1.5 s with all the CPU that it is owed.
const longSpin = 1500 * time.Millisecond

// half of a donor's need, which a wrong prediction says that the donor can lend.
var half = api.Resources{CPUMilli: limits.CPUMilli / 2}

// mispredictions has the results of requests to one donor that needs all of its CPU.
type mispredictions struct {
	// right has the milliseconds of requests that lent nothing, and wrong of requests predicted to
	// need half. unsuspended is like wrong, but each request is of a function that had not lent
	// before: it shows the safeguard without the suspension.
	right, wrong, unsuspended []float64
	// lent counts the requests in wrong that lent, and lentLate those in its second half.
	lent, lentLate, unsuspendedLent int
}

// mispredict sends requests of each kind, in random order.
func (g *guarding) mispredict(ctx context.Context, each int) error {
	g.Say("wrong predictions: sending %d requests of %v, and twice as many for comparison", each, longSpin)
	for n := range each {
		kinds := []func() error{
			func() (err error) {
				g.wrong.right, _, err = g.timed(ctx, g.wrong.right, "")
				return err
			},
			func() (err error) {
				var lent int
				g.wrong.wrong, lent, err = g.timed(ctx, g.wrong.wrong, "wrong")
				g.wrong.lent += lent
				if n >= each/2 {
					g.wrong.lentLate += lent
				}
				return err
			},
			func() (err error) {
				var lent int
				g.wrong.unsuspended, lent, err = g.timed(ctx, g.wrong.unsuspended, fmt.Sprintf("unsuspended-%d", n))
				g.wrong.unsuspendedLent += lent
				return err
			},
		}
		g.random.Shuffle(len(kinds), func(i, j int) { kinds[i], kinds[j] = kinds[j], kinds[i] })
		for _, send := range kinds {
			if err := send(); err != nil {
				return fmt.Errorf("wrong predictions: %w", err)
			}
		}
	}
	return nil
}

// timed sends one request to the donor, and appends its milliseconds to times. The request's
// invocation is of the given function and lends half of the donor's CPU to the borrower; without a
// function it lends nothing. lent is 1 if that was lent.
func (g *guarding) timed(ctx context.Context, times []float64, function string) (_ []float64, lent int, err error) {
	if err := rig.AwaitWhole(ctx, g.gives, g.takes); err != nil {
		return times, 0, err
	}
	if err := rig.Pause(ctx, g.between(50*time.Millisecond, 150*time.Millisecond)); err != nil {
		return times, 0, err
	}
	var ids []string
	if function != "" {
		donor, _, err := g.lender.BeginOf(ctx, function, g.gives, half, api.Resources{})
		if err != nil {
			return times, 0, err
		}
		borrower, borrowed, err := g.lender.Begin(ctx, g.takes, api.Resources{}, half)
		if err != nil {
			return times, 0, err
		}
		ids = append(ids, borrower, donor)
		if !borrowed.IsZero() {
			lent = 1
		}
	}
	began := time.Now()
	if err := g.request(ctx, longSpin); err != nil {
		return times, 0, err
	}
	took := time.Since(began)
	return append(times, rig.Milliseconds(took)), lent, g.lender.End(ctx, ids...)
}

// figures are the results of the requests: how much longer those with a wrong prediction took,
// overall, than those with a right one. A round of all kinds is one block of an interval.
type figures struct {
	*mispredictions
	slower, unsuspendedSlower stats.Interval
}

func (m *mispredictions) figures(seed uint64) figures {
	return figures{m, slowdown(m.wrong, m.right, seed), slowdown(m.unsuspended, m.right, seed)}
}

// slowdown returns by what share times are longer than base, overall; both have one value per round.
func slowdown(times, base []float64, seed uint64) stats.Interval {
	return stats.Bootstrap(len(times), seed, func(counts []int) float64 {
		var all, of float64
		for round, n := range counts {
			all += float64(n) * times[round]
			of += float64(n) * base[round]
		}
		return all/of - 1
	})
}

func (f figures) metrics() map[string]float64 {
	return map[string]float64{
		"wrong_requests":                  float64(len(f.wrong)),
		"wrong_slowdown":                  f.slower.Estimate,
		"wrong_slowdown_low":              f.slower.Low,
		"wrong_slowdown_high":             f.slower.High,
		"wrong_lent":                      float64(f.lent),
		"wrong_lent_late":                 float64(f.lentLate),
		"wrong_unsuspended_slowdown":      f.unsuspendedSlower.Estimate,
		"wrong_unsuspended_slowdown_low":  f.unsuspendedSlower.Low,
		"wrong_unsuspended_slowdown_high": f.unsuspendedSlower.High,
		"wrong_unsuspended_lent":          float64(f.unsuspendedLent),
		"wrong_right_p50_ms":              report.Percentile(f.right, 50),
		"wrong_p50_ms":                    report.Percentile(f.wrong, 50),
		"wrong_unsuspended_p50_ms":        report.Percentile(f.unsuspended, 50),
	}
}

func (f figures) print(out io.Writer) {
	fmt.Fprintf(out, "\nRequests of %v, %d of each kind; a wrong prediction is half of what they need:\n", longSpin, len(f.wrong))
	fmt.Fprintf(out, "%-52s %6s %9s %10s %22s\n", "", "lent", "P50 ms", "slow-down", "95 % interval")
	fmt.Fprintf(out, "%-52s %6d %9.0f\n", "predicted correctly: nothing to lend", 0, report.Percentile(f.right, 50))
	row := func(what string, lent int, times []float64, by stats.Interval) {
		fmt.Fprintf(out, "%-52s %6d %9.0f %+8.1f %% %22s\n", what, lent, report.Percentile(times, 50), 100*by.Estimate, fmt.Sprintf("%+.1f to %+.1f %%", 100*by.Low, 100*by.High))
	}
	row("predicted wrongly, one function", f.lent, f.wrong, f.slower)
	row("predicted wrongly, each of a function not yet known", f.unsuspendedLent, f.unsuspended, f.unsuspendedSlower)
	fmt.Fprintf(out, "The one function lent in %d of its last %d requests.\n", f.lentLate, len(f.wrong)-len(f.wrong)/2)
}
