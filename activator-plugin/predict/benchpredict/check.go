package main

import (
	"bytes"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"libra.dev/libra/activator-plugin/predict"
)

const inputHelp = `The input is a sequence of JSON objects, one for each function:

  {"function": "namespace/revision", "answer": {...}, "sizes": [...], "expected": [[...], ...]}

"answer" is the predictor's answer over REST in the Open Inference Protocol v2;
"sizes" are in bytes, with -1 for the unknown size; "expected" has, for each size,
cpu_milli, memory_bytes and duration_ms, with the offset, and cpu_time_us.`

// maxShown is how many mismatches are printed one by one.
const maxShown = 20

type checkResult struct {
	Functions   int        `json:"functions"`
	Comparisons int        `json:"comparisons"` // sizes × 4
	Mismatches  int        `json:"mismatches"`
	First       []mismatch `json:"first_mismatches"`
}

type mismatch struct {
	Function string   `json:"function"`
	Size     int64    `json:"size"`
	Expected [4]int64 `json:"expected"`
	Got      [4]int64 `json:"got"`
}

func newCheck() *cobra.Command {
	return &cobra.Command{
		Use:   "check FILE|-",
		Short: "Compare the activator's look-ups with the expected answers",
		Long: "Compare the activator's look-ups in step tables with the expected answers.\n" +
			"The command prints its result, then fails if there are mismatches.\n\n" + inputHelp,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			result := checkResult{First: []mismatch{}}
			if err := eachFunction(args[0], result.add); err != nil {
				return err
			}
			if err := printJSON(cmd.OutOrStdout(), result); err != nil {
				return err
			}
			if result.Mismatches > 0 {
				return fmt.Errorf("%d of %d looked-up values differ from those expected", result.Mismatches, result.Comparisons)
			}
			return nil
		},
	}
}

func (r *checkResult) add(in functionInput) error {
	if len(in.Sizes) != len(in.Expected) {
		return fmt.Errorf("%d sizes with %d expected answers, want an answer for each size", len(in.Sizes), len(in.Expected))
	}
	table, err := predict.ParseTable(bytes.NewReader(in.Answer))
	if err != nil {
		return err
	}
	r.Functions++
	for i, size := range in.Sizes {
		p := table.Lookup(size)
		got := [4]int64{p.Demand.CPUMilli, p.Demand.MemoryBytes, int64(p.Duration / time.Millisecond), int64(p.CPUTime / time.Microsecond)}
		for k := range got {
			r.Comparisons++
			if got[k] != in.Expected[i][k] {
				r.Mismatches++
			}
		}
		if got != in.Expected[i] && len(r.First) < maxShown {
			r.First = append(r.First, mismatch{Function: in.Function, Size: size, Expected: in.Expected[i], Got: got})
		}
	}
	return nil
}
