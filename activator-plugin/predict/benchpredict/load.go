package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/types"

	"libra.dev/libra/activator-plugin/predict"
	"libra.dev/libra/loadtest/bench/stats"
)

type loadOptions struct {
	address          string
	models           []string
	rate             float64 // per second; 0 asks again as soon as there is an answer
	connections      int
	duration, warmUp time.Duration
	timeout          time.Duration
	maxSize          int64
	seed             uint64
}

type loadResult struct {
	Mode        string  `json:"mode"` // open or closed loop
	Connections int     `json:"connections"`
	TargetRate  float64 `json:"target_rps,omitempty"`
	Requests    int     `json:"requests"` // answered
	Errors      int     `json:"errors"`
	FirstError  string  `json:"first_error,omitempty"`
	Rate        float64 `json:"achieved_rps"`
	P50         float64 `json:"p50_ms"`
	P90         float64 `json:"p90_ms"`
	P99         float64 `json:"p99_ms"`
	// P99Low and P99High are the ends of the 95 % interval of P99, by seconds; nil if there
	// are fewer than two.
	P99Low  *float64 `json:"p99_low_ms,omitempty"`
	P99High *float64 `json:"p99_high_ms,omitempty"`
	P999    float64  `json:"p999_ms"`
	Max     float64  `json:"max_ms"`
}

func newLoad() *cobra.Command {
	var o loadOptions
	cmd := &cobra.Command{
		Use:   "load",
		Short: "Query a predictor at a fixed rate, or as fast as it answers",
		Long: `Query a predictor for random sizes over the Open Inference Protocol v2.

With --rate the loop is open: each request has a due time. A request that finds every
connection busy at its due time is timed from then. Without --rate the loop is closed:
each connection sends its next request as soon as it has an answer, so the result is the
most that the predictor can do.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			result, err := load(cmd.Context(), o)
			if err != nil {
				return err
			}
			return printJSON(cmd.OutOrStdout(), result)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.address, "address", "", "address of the predictor, HOST:PORT")
	f.StringSliceVar(&o.models, "model", nil, "model to query, as namespace.revision; several are queried in turn")
	f.Float64Var(&o.rate, "rate", 0, "requests per second; 0: as fast as the predictor answers")
	f.IntVar(&o.connections, "connections", 1, "connections, each with one request at a time")
	f.DurationVar(&o.duration, "duration", 10*time.Second, "how long to measure")
	f.DurationVar(&o.warmUp, "warm-up", time.Second, "how long to send requests before measuring")
	f.DurationVar(&o.timeout, "timeout", time.Second, "timeout of a request")
	f.Int64Var(&o.maxSize, "max-size", 1<<30, "largest size to query, in bytes")
	f.Uint64Var(&o.seed, "seed", 1, "random seed for the sizes")
	return cmd
}

func (o loadOptions) check() error {
	var errs []error
	if o.address == "" {
		errs = append(errs, errors.New("--address is missing, want HOST:PORT"))
	}
	if len(o.models) == 0 {
		errs = append(errs, errors.New("--model is missing, want namespace.revision"))
	}
	if o.rate < 0 || o.rate > 1e6 {
		errs = append(errs, fmt.Errorf("--rate is %v, want 0 to 1000000", o.rate))
	}
	if o.connections < 1 || o.connections > 1024 {
		errs = append(errs, fmt.Errorf("--connections is %d, want 1 to 1024", o.connections))
	}
	if o.duration <= 0 || o.warmUp < 0 || o.timeout <= 0 {
		errs = append(errs, fmt.Errorf("--duration is %v, --warm-up %v and --timeout %v, want positive times, or 0 for --warm-up",
			o.duration, o.warmUp, o.timeout))
	}
	if o.maxSize < 1 {
		errs = append(errs, fmt.Errorf("--max-size is %d, want at least 1", o.maxSize))
	}
	return errors.Join(errs...)
}

// worker is a connection and what was measured on it.
type worker struct {
	client *http.Client
	rng    *rand.Rand
	times  []time.Duration
	dues   []time.Time // when their requests were due
	last   time.Time   // when its last answer came
	errors int
	first  error
}

func load(ctx context.Context, o loadOptions) (loadResult, error) {
	if err := o.check(); err != nil {
		return loadResult{}, err
	}
	workers := make([]*worker, o.connections)
	for i := range workers {
		client := &http.Client{Transport: &http.Transport{MaxConnsPerHost: 1}}
		defer client.CloseIdleConnections()
		workers[i] = &worker{client: client, rng: rand.New(rand.NewPCG(o.seed, uint64(i)))}
	}

	started := time.Now()
	measured := started.Add(o.warmUp)
	end := measured.Add(o.duration)
	// A predictor that stalls delays the end by one request at most.
	ctx, cancel := context.WithDeadline(ctx, end.Add(o.timeout))
	defer cancel()
	var turn atomic.Int64
	var wg sync.WaitGroup
	for _, w := range workers {
		wg.Go(func() {
			for ctx.Err() == nil {
				i := turn.Add(1) - 1
				due := time.Now()
				if o.rate > 0 {
					due = started.Add(time.Duration(float64(i) / o.rate * float64(time.Second)))
				}
				if !due.Before(end) {
					return
				}
				w.askOnce(ctx, o, i, waitUntil(ctx, due), due.Before(measured))
			}
		})
	}
	wg.Wait()
	if err := context.Cause(ctx); errors.Is(err, context.Canceled) {
		return loadResult{}, err
	}
	return summarize(o, workers, measured), nil
}

// waitUntil waits until due. It returns due if that is past already, and otherwise when
// the wait ended: how late timers fire is not the predictor's fault.
func waitUntil(ctx context.Context, due time.Time) time.Time {
	left := time.Until(due)
	if left <= 0 {
		return due
	}
	timer := time.NewTimer(left)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
	return time.Now()
}

func (w *worker) askOnce(ctx context.Context, o loadOptions, turn int64, due time.Time, warmingUp bool) {
	ctx, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	namespace, revision, _ := strings.Cut(o.models[turn%int64(len(o.models))], ".")
	_, err := predict.Ask(ctx, w.client, &url.URL{Scheme: "http", Host: o.address},
		types.NamespacedName{Namespace: namespace, Name: revision}, w.rng.Int64N(o.maxSize)+1)
	answered := time.Now()
	if warmingUp {
		return
	}
	if err != nil {
		w.errors++
		if w.first == nil {
			w.first = err
		}
		return
	}
	w.times = append(w.times, answered.Sub(due))
	w.dues = append(w.dues, due)
	w.last = answered
}

func summarize(o loadOptions, workers []*worker, measured time.Time) loadResult {
	r := loadResult{Mode: "closed", Connections: o.connections, TargetRate: o.rate}
	if o.rate > 0 {
		r.Mode = "open"
	}
	var times []time.Duration
	seconds := make([][]float64, max(1, int(o.duration/time.Second)))
	last := measured
	for _, w := range workers {
		times = append(times, w.times...)
		for i, took := range w.times {
			second := min(int(w.dues[i].Sub(measured)/time.Second), len(seconds)-1)
			seconds[second] = append(seconds[second], milliseconds(took))
		}
		r.Errors += w.errors
		if w.first != nil && r.FirstError == "" {
			r.FirstError = w.first.Error()
		}
		if w.last.After(last) {
			last = w.last
		}
	}
	r.Requests = len(times)
	// Late answers count, and so does the time that they took.
	r.Rate = float64(r.Requests) / max(last.Sub(measured), o.duration).Seconds()
	q := quantiles(times, .5, .9, .99, .999, 1)
	r.P50, r.P90, r.P99 = milliseconds(q[0]), milliseconds(q[1]), milliseconds(q[2])
	r.P999, r.Max = milliseconds(q[3]), milliseconds(q[4])
	pooled := stats.Pool(seconds)
	r.P99Low, r.P99High = ends(stats.Bootstrap(len(seconds), o.seed, func(counts []int) float64 { return pooled.Percentile(counts, 99) }))
	return r
}

// ends returns the ends of an interval, or nil if it has none.
func ends(in stats.Interval) (low, high *float64) {
	if math.IsNaN(in.Low) || math.IsNaN(in.High) {
		return nil, nil
	}
	return &in.Low, &in.High
}
