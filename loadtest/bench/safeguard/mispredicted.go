package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"time"

	"libra.dev/libra/loadtest/bench/rig"
	"libra.dev/libra/loadtest/demo/report"
	"libra.dev/libra/pkg/api"
)

// longSpin takes a donor 1.5 s with all that it is owed.
const longSpin = 1500 * time.Millisecond

// half of what a donor needs, of which a wrong prediction says that it may be lent.
var half = api.Resources{CPUMilli: limits.CPUMilli / 2}

// mispredictions are requests to one donor that needs all of its CPU.
type mispredictions struct {
	// right has the milliseconds of those that lent nothing, wrong of those predicted
	// to need half, and unsuspended of the same, each of a function that had not lent
	// before: what the safeguard does without the suspension.
	right, wrong, unsuspended []float64
	// lent counts those of wrong that lent, and lentLate those of its second half.
	lent, lentLate, unsuspendedLent int
}

// mispredict sends requests of each kind, in an order of chance.
func (g *guarding) mispredict(ctx context.Context, each int) error {
	g.Say("wrong predictions: %d requests of %v, and twice as many to compare them with", each, longSpin)
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

// timed sends one request to the donor, and adds its milliseconds. Its invocation is
// one of that function and lends half of the donor's CPU to the borrower; without a
// name it lends nothing. It returns 1 when that was lent.
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

func (m *mispredictions) metrics() map[string]float64 {
	return map[string]float64{
		"wrong_requests":             float64(len(m.wrong)),
		"wrong_slowdown":             slowdown(m.wrong, m.right),
		"wrong_lent":                 float64(m.lent),
		"wrong_lent_late":            float64(m.lentLate),
		"wrong_unsuspended_slowdown": slowdown(m.unsuspended, m.right),
		"wrong_unsuspended_lent":     float64(m.unsuspendedLent),
		"wrong_right_p50_ms":         report.Percentile(m.right, 50),
		"wrong_p50_ms":               report.Percentile(m.wrong, 50),
		"wrong_unsuspended_p50_ms":   report.Percentile(m.unsuspended, 50),
	}
}

// slowdown is by how much of it times are longer than base, overall.
func slowdown(times, base []float64) float64 {
	return sum(times)/sum(base)*float64(len(base))/float64(len(times)) - 1
}

func sum(of []float64) (all float64) {
	for v := range slices.Values(of) {
		all += v
	}
	return all
}

func (m *mispredictions) print(out io.Writer, metrics map[string]float64) {
	fmt.Fprintf(out, "\nPredicted to need half of what they need, requests of %v, each kind %d times:\n", longSpin, len(m.wrong))
	fmt.Fprintf(out, "%-52s %6s %9s %10s\n", "", "lent", "P50 ms", "slow-down")
	fmt.Fprintf(out, "%-52s %6d %9.0f\n", "predicted rightly: nothing to lend", 0, metrics["wrong_right_p50_ms"])
	fmt.Fprintf(out, "%-52s %6d %9.0f %+9.1f %%\n", "predicted wrongly, one function", m.lent, metrics["wrong_p50_ms"], 100*metrics["wrong_slowdown"])
	fmt.Fprintf(out, "%-52s %6d %9.0f %+9.1f %%\n", "predicted wrongly, each of a function not yet known", m.unsuspendedLent, metrics["wrong_unsuspended_p50_ms"], 100*metrics["wrong_unsuspended_slowdown"])
	fmt.Fprintf(out, "Of the one function, %d of the last %d lent.\n", m.lentLate, len(m.wrong)-len(m.wrong)/2)
}
