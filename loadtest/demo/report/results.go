// Package report has what all measuring commands share: percentiles, number formats, and
// the results for machines.
package report

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
)

// ResultsFile is the name of the file with the results for machines, in a command's
// folder.
const ResultsFile = "results.json"

// Results is what every measuring command leaves for machines.
type Results struct {
	Machine string `json:"machine"`
	Commit  string `json:"commit"`
	Seed    uint64 `json:"seed"`
	// Metrics is flat. Durations are in milliseconds unless the name says
	// otherwise; shares, ratios and slow-downs are fractions.
	Metrics map[string]float64 `json:"metrics"`
}

// Write writes the results into dir. A metric that could not be measured is
// left out: JSON has no NaN.
func (r Results) Write(dir string) error {
	metrics := make(map[string]float64, len(r.Metrics))
	for name, v := range r.Metrics {
		if !math.IsNaN(v) && !math.IsInf(v, 0) {
			metrics[name] = v
		}
	}
	r.Metrics = metrics
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("encode the results: %w", err)
	}
	return os.WriteFile(filepath.Join(dir, ResultsFile), append(data, '\n'), 0o644)
}
