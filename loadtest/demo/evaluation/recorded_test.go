package evaluation

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"libra.dev/libra/loadtest/demo/report"
)

// The figures that the docs quote can be worked out again from what is recorded beside them.
func TestRecordedRuns(t *testing.T) {
	const recorded = "../../../docs/evaluation"
	for _, run := range []string{recorded, filepath.Join(recorded, "idle"), filepath.Join(recorded, "memory")} {
		t.Run(filepath.Base(run), func(t *testing.T) {
			data, err := ReadFile(filepath.Join(run, DataFile))
			if err != nil {
				t.Fatal(err)
			}
			text, err := os.ReadFile(filepath.Join(run, report.ResultsFile))
			if err != nil {
				t.Fatal(err)
			}
			var results report.Results
			if err := json.Unmarshal(text, &results); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(results.Metrics, write(t, data).metrics, cmpopts.EquateApprox(0, 1e-9)); diff != "" {
				t.Errorf("recorded (-) and worked out (+):\n%s", diff)
			}
		})
	}
}
