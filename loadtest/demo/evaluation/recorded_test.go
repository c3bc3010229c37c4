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
func TestRecordedRun(t *testing.T) {
	const recorded = "../../../docs/evaluation"
	data, err := ReadFile(filepath.Join(recorded, DataFile))
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(recorded, report.ResultsFile))
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
}
