package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"text/tabwriter"
)

// results sums up all cases on all machines.
type results struct {
	Cases        int      `json:"cases"`
	Failed       int      `json:"failed"`
	OOMKills     int64    `json:"oom_kills"`
	Restarts     int64    `json:"restarts"`
	LongestAwayS float64  `json:"longest_away_s"`
	Kubelets     []string `json:"kubelets"`
}

func resultsOf(found map[string][]outcome) results {
	r := results{Kubelets: slices.Sorted(maps.Keys(found))}
	for _, outcomes := range found {
		for _, o := range outcomes {
			r.Cases++
			if o.Failed != "" {
				r.Failed++
			}
			r.OOMKills += o.OOMKills
			r.Restarts += o.Restarts
			r.LongestAwayS = max(r.LongestAwayS, o.AwaySecs)
		}
	}
	return r
}

// write writes the results to a file, and prints all cases.
func (r results) write(out io.Writer, path string, found map[string][]outcome) error {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "kubelet\tcase\tOOM kills\trestarts\twhole after\tanswered\tnot\t")
	for _, k := range r.Kubelets {
		for _, o := range found[k] {
			said := "passed"
			if o.Failed != "" {
				said = "FAILED: " + o.Failed
			}
			fmt.Fprintf(table, "%s\t%s\t%d\t%d\t%.1f s\t%d\t%d\t%s\n", k, o.Case, o.OOMKills, o.Restarts, o.AwaySecs, o.Answered, o.Unanswered, said)
		}
	}
	if err := table.Flush(); err != nil {
		return err
	}
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, append(data, '\n'), 0o644)
}

func (r results) judge() error {
	if r.Cases == 0 {
		return errors.New("no case was run")
	}
	if r.Failed > 0 {
		return fmt.Errorf("%d of %d cases failed", r.Failed, r.Cases)
	}
	return nil
}
