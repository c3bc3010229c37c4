// Command trace makes schedules for loadtest/k6 from traces.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"libra.dev/libra/loadtest/functions/inputs"
	"libra.dev/libra/loadtest/trace"
)

// Names of the files that the command schedule writes.
const (
	scheduleFile = "schedule.json"
	corpusFile   = "corpus.bin"
)

// source has the flags that choose the trace.
type source struct {
	invocations, durations, memory string
	functions, minutes             int
	seed                           uint64
}

func main() {
	if err := newRoot().Execute(); err != nil {
		fmt.Fprintln(os.Stderr, "trace:", err)
		os.Exit(1)
	}
}

func newRoot() *cobra.Command {
	var s source
	root := &cobra.Command{
		Use:   "trace",
		Short: "Make load from the Azure Functions 2019 data set, or from a trace with its statistics",
		Long: `trace reads one day of the Azure Functions 2019 data set from the files that
--invocations, --durations and --memory name. Without these flags it generates
a trace with the statistics of such a day.`,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.CompletionOptions.DisableDefaultCmd = true
	f := root.PersistentFlags()
	f.StringVar(&s.invocations, "invocations", "", "invocations_per_function_md.anon.d<day>.csv of the data set")
	f.StringVar(&s.durations, "durations", "", "function_durations_percentiles.anon.d<day>.csv of the data set")
	f.StringVar(&s.memory, "memory", "", "app_memory_percentiles.anon.d<day>.csv of the data set")
	f.IntVar(&s.functions, "generate-functions", 100, "functions of the generated trace")
	f.IntVar(&s.minutes, "generate-minutes", 480, "length of the generated trace, in minutes")
	f.Uint64Var(&s.seed, "seed", 1, "random seed")
	root.AddCommand(newSchedule(&s), newStats(&s))
	return root
}

func newStats(s *source) *cobra.Command {
	return &cobra.Command{
		Use:   "stats",
		Short: "Print a trace's statistics as JSON",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			t, err := s.load(cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			out := json.NewEncoder(cmd.OutOrStdout())
			out.SetIndent("", "  ")
			return out.Encode(trace.Measure(t))
		},
	}
}

func newSchedule(s *source) *cobra.Command {
	var (
		o           trace.Options
		perFunction int
		out         string
	)
	cmd := &cobra.Command{
		Use:   "schedule",
		Short: "Write a schedule for the scripts in loadtest/k6, and its inputs",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.Seed = s.seed
			o.Functions = functions(o.Functions)
			t, err := s.load(cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			plan, err := trace.Plan(t, o)
			if err != nil {
				return err
			}
			draw := func(function string, n int) (inputs.Input, error) { return inputs.Draw(function, s.seed, uint64(n)) }
			entries, corpus, err := trace.Fill(plan, perFunction, draw, inputs.Corpus())
			if err != nil {
				return err
			}
			if err := write(out, entries, corpus); err != nil {
				return err
			}
			describe(cmd.OutOrStdout(), out, entries, o.Functions)
			return nil
		},
	}
	f := cmd.Flags()
	f.Float64Var(&o.PerMinute, "rpm", 120, fmt.Sprintf("requests per minute on average, %d to %d", trace.MinPerMinute, trace.MaxPerMinute))
	f.DurationVar(&o.Length, "length", 5*time.Minute, "length of the schedule")
	f.IntVar(&o.From, "from", 0, "first minute of the trace to compress into the schedule")
	f.IntVar(&o.Minutes, "minutes", 0, "minutes of the trace to compress into the schedule (0: all that follow)")
	f.StringSliceVar(&o.Functions, "functions", []string{"mixed"}, "functions to call: mixed (all ten), related or unrelated to the size of the input, or names")
	f.IntVar(&o.Sample, "sample", 100, "functions of the trace to use, drawn at random (0: all)")
	f.Float64Var(&o.Skew, "skew", 0.5, "how the functions share the rate: 1 as in the trace, 0 equally")
	f.IntVar(&perFunction, "inputs", 100, "different inputs for each function")
	f.StringVar(&out, "out", "out/trace", "folder for "+scheduleFile+" and "+corpusFile)
	return cmd
}

// functions expands the names of workloads to those of functions.
func functions(names []string) []string {
	workloads := map[string][]string{"mixed": trace.Mixed, "related": trace.Related, "unrelated": trace.Unrelated}
	var all []string
	for _, name := range names {
		if of, ok := workloads[name]; ok {
			all = append(all, of...)
			continue
		}
		all = append(all, name)
	}
	return all
}

func (s *source) load(log io.Writer) (trace.Trace, error) {
	paths := []string{s.invocations, s.durations, s.memory}
	given := 0
	for _, path := range paths {
		if path != "" {
			given++
		}
	}
	if given == 0 {
		return trace.Generate(s.seed, trace.Azure2019, s.functions, s.minutes)
	}
	if given < len(paths) {
		return trace.Trace{}, errors.New("--invocations, --durations and --memory go together: name all three files of a day, or none")
	}
	var sources [3]trace.Source
	for i, path := range paths {
		f, err := os.Open(path)
		if err != nil {
			return trace.Trace{}, err
		}
		defer f.Close()
		sources[i] = trace.Source{Name: path, Reader: f}
	}
	t, err := trace.Load(sources[0], sources[1], sources[2])
	for reason, n := range t.Dropped {
		fmt.Fprintf(log, "functions left out: %d, %s\n", n, reason)
	}
	return t, err
}

func write(dir string, entries []trace.Entry, corpus []byte) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	// One entry per line, for people and for diff.
	var b bytes.Buffer
	for i, e := range entries {
		line, err := json.Marshal(e)
		if err != nil {
			return fmt.Errorf("entry %d: %w", i, err)
		}
		b.WriteString(map[bool]string{true: "[", false: ",\n"}[i == 0])
		b.Write(line)
	}
	b.WriteString("]\n")
	return errors.Join(
		os.WriteFile(filepath.Join(dir, scheduleFile), b.Bytes(), 0o644),
		os.WriteFile(filepath.Join(dir, corpusFile), corpus, 0o644))
}

// describe prints how many requests of which size each function gets.
func describe(w io.Writer, dir string, entries []trace.Entry, functions []string) {
	classes := []trace.SizeClass{trace.Small, trace.Medium, trace.Large, trace.Any}
	requests := map[string]map[trace.SizeClass]int{}
	for _, e := range entries {
		if requests[e.Function] == nil {
			requests[e.Function] = map[trace.SizeClass]int{}
		}
		requests[e.Function][e.SizeClass]++
	}
	fmt.Fprintf(w, "%-22s", "requests")
	for _, c := range classes {
		fmt.Fprintf(w, "%8s", c)
	}
	fmt.Fprintln(w)
	for _, f := range functions {
		fmt.Fprintf(w, "%-22s", f)
		for _, c := range classes {
			fmt.Fprintf(w, "%8d", requests[f][c])
		}
		fmt.Fprintln(w)
	}
	fmt.Fprintf(w, "%d requests, written to %s\n", len(entries), strings.Join([]string{
		filepath.Join(dir, scheduleFile), filepath.Join(dir, corpusFile)}, " and "))
}
