// Command benchpredict checks and measures predictions from the activator's side: whether
// its step tables are those of the predictor, how long a look-up takes, and how a
// predictor answers under load. Each subcommand prints one JSON object to the standard
// output.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"github.com/spf13/cobra"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := newRoot().ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "benchpredict:", err)
		os.Exit(1)
	}
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:           "benchpredict",
		Short:         "Measure predictions from the activator's side",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.AddCommand(newCheck(), newLookup(), newLoad())
	return root
}

func printJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	if err := e.Encode(v); err != nil {
		return fmt.Errorf("printing the result: %w", err)
	}
	return nil
}

// openInput opens a file, or the standard input by the name "-".
func openInput(name string) (io.ReadCloser, error) {
	if name == "-" {
		return io.NopCloser(os.Stdin), nil
	}
	return os.Open(name)
}

// functionInput is one of the JSON objects that follow one another in a file.
type functionInput struct {
	Function string          `json:"function"` // namespace/revision
	Answer   json.RawMessage `json:"answer"`   // of the predictor, in the Open Inference Protocol v2
	Sizes    []int64         `json:"sizes"`    // bytes; -1 is the unknown size
	// Expected is, for each of Sizes, cpu_milli, memory_bytes, duration_ms and cpu_time_us.
	Expected [][4]int64 `json:"expected"`
}

// eachFunction calls f with each function of a file.
func eachFunction(input string, f func(functionInput) error) error {
	file, err := openInput(input)
	if err != nil {
		return err
	}
	defer file.Close()
	decoder := json.NewDecoder(file)
	for n := 1; ; n++ {
		var in functionInput
		if err := decoder.Decode(&in); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("%s: object %d: %w", input, n, err)
		}
		if err := f(in); err != nil {
			return fmt.Errorf("%s: object %d: function %q: %w", input, n, in.Function, err)
		}
	}
}

// quantiles sorts times. Each quantile is a time that at least that share of them does
// not exceed.
func quantiles(times []time.Duration, shares ...float64) []time.Duration {
	slices.Sort(times)
	found := make([]time.Duration, len(shares))
	for i, share := range shares {
		if len(times) > 0 {
			found[i] = times[min(int(share*float64(len(times))), len(times)-1)]
		}
	}
	return found
}

func microseconds(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }
func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
