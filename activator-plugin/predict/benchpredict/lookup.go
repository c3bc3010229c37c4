package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/spf13/cobra"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.uber.org/zap"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"libra.dev/libra/activator-plugin/predict"
	"libra.dev/libra/loadtest/bench/stats"
)

// atOnce is how many successive look-ups form one block of an interval.
const atOnce = 1000

type lookupResult struct {
	Functions int `json:"functions"`
	Lookups   int `json:"lookups"`
	// Each look-up is timed by itself, with the two readings of the clock.
	P50 float64 `json:"p50_us"`
	P99 float64 `json:"p99_us"`
	// P99Low and P99High are the ends of the 95 % interval of P99, by a thousand successive look-ups;
	// nil if there are fewer than two thousand.
	P99Low  *float64 `json:"p99_low_us,omitempty"`
	P99High *float64 `json:"p99_high_us,omitempty"`
	P999    float64  `json:"p999_us"`
	Max     float64  `json:"max_us"`
	Clock   float64  `json:"clock_p50_us"` // of two readings with nothing between them
	// Mean is of all look-ups timed together, without the clock.
	Mean float64 `json:"mean_us"`
}

func newLookup() *cobra.Command {
	var (
		lookups int
		timeout time.Duration
		seed    uint64
	)
	cmd := &cobra.Command{
		Use:   "lookup FILE|-",
		Short: "Time predictions from the activator's tables",
		Long: "Time predictions as the request path makes them: function map, look-ups, offset and\n" +
			"metrics. The tables come from a predictor in this process, and are fetched again while\n" +
			"it runs. Functions and sizes are drawn evenly.\n\n" + inputHelp + " \"expected\" is not used.",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
			defer cancel()
			result, err := measureLookups(ctx, args[0], lookups, seed)
			if err != nil {
				return err
			}
			return printJSON(cmd.OutOrStdout(), result)
		},
	}
	cmd.Flags().IntVar(&lookups, "lookups", 1_000_000, "number of look-ups to time")
	cmd.Flags().DurationVar(&timeout, "timeout", time.Minute, "time limit for the whole run")
	cmd.Flags().Uint64Var(&seed, "seed", 1, "random seed for the functions and sizes")
	return cmd
}

// query is one look-up.
type query struct {
	name types.NamespacedName
	size int64
}

func measureLookups(ctx context.Context, input string, lookups int, seed uint64) (r lookupResult, err error) {
	if lookups < 1 {
		return r, fmt.Errorf("--lookups is %d, want at least 1", lookups)
	}
	var names []types.NamespacedName
	sizes := map[types.NamespacedName][]int64{}
	answers := map[string][]byte{}
	err = eachFunction(input, func(in functionInput) error {
		namespace, revision, ok := strings.Cut(in.Function, "/")
		if !ok || namespace == "" || revision == "" || len(in.Sizes) == 0 {
			return errors.New("want namespace/revision with at least one size")
		}
		name := types.NamespacedName{Namespace: namespace, Name: revision}
		names, sizes[name] = append(names, name), in.Sizes
		answers["/v2/models/"+namespace+"."+revision+"/infer"] = in.Answer
		return nil
	})
	if err != nil {
		return r, err
	}
	if len(names) == 0 {
		return r, fmt.Errorf("%s has no function", input)
	}

	url, closeServer, err := serve(answers)
	if err != nil {
		return r, err
	}
	defer closeServer()
	client, err := predict.New(predict.Options{
		URL: url, Clock: clock.RealClock{}, Logger: zap.NewNop().Sugar(),
		MeterProvider: sdkmetric.NewMeterProvider(sdkmetric.WithReader(sdkmetric.NewManualReader())),
	})
	if err != nil {
		return r, err
	}
	defer client.Close()
	for _, name := range names {
		if err := fetched(ctx, client, name, sizes[name]); err != nil {
			return r, err
		}
	}

	rng := rand.New(rand.NewPCG(seed, 0))
	queries := make([]query, lookups)
	for i := range queries {
		name := names[rng.IntN(len(names))]
		queries[i] = query{name: name, size: sizes[name][rng.IntN(len(sizes[name]))]}
	}
	r = lookupResult{Functions: len(names), Lookups: lookups}
	times := make([]time.Duration, lookups)
	for i, q := range queries {
		started := time.Now()
		client.Predict(ctx, q.name, q.size)
		times[i] = time.Since(started)
	}
	took := make([]float64, len(times))
	for i, t := range times {
		took[i] = microseconds(t)
	}
	r.P99Low, r.P99High = ends(stats.Percentile(took, 99, atOnce, seed))
	q := quantiles(times, .5, .99, .999, 1)
	r.P50, r.P99, r.P999, r.Max = microseconds(q[0]), microseconds(q[1]), microseconds(q[2]), microseconds(q[3])

	for i := range times {
		started := time.Now()
		times[i] = time.Since(started)
	}
	r.Clock = microseconds(quantiles(times, .5)[0])

	started := time.Now()
	for _, q := range queries {
		client.Predict(ctx, q.name, q.size)
	}
	r.Mean = microseconds(time.Since(started)) / float64(lookups)
	return r, ctx.Err()
}

// fetched asks for predictions until the function's table is there.
func fetched(ctx context.Context, client *predict.Client, name types.NamespacedName, sizes []int64) error {
	retry := time.NewTicker(time.Millisecond)
	defer retry.Stop()
	for i := 0; ; i++ {
		if _, ok := client.Predict(ctx, name, sizes[i%len(sizes)]); ok {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("function %s: no prediction for any of its sizes: %w", name, ctx.Err())
		case <-retry.C:
		}
	}
}

// serve starts a server that answers each path with its entry in answers.
func serve(answers map[string][]byte) (url string, stop func(), err error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	server := &http.Server{
		ReadHeaderTimeout: time.Minute,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			answer, ok := answers[r.URL.Path]
			if !ok {
				http.NotFound(w, r)
				return
			}
			_, _ = w.Write(answer) // the client may have gone away
		}),
	}
	done := make(chan struct{})
	go func() {
		_ = server.Serve(listener) // until it is closed
		close(done)
	}()
	return "http://" + listener.Addr().String(), func() {
		_ = server.Close()
		<-done
	}, nil
}
