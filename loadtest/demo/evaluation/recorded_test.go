package evaluation

import (
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"libra.dev/libra/loadtest/demo/report"
)

// The figures that the docs quote can be computed again from the data recorded beside them.
func TestRecordedRuns(t *testing.T) {
	const recorded = "../../../docs/evaluation"
	for run, by := range map[string]func(dir string, out io.Writer, title string, d Data) error{
		recorded: WriteReport, filepath.Join(recorded, "full-node"): WriteReport, filepath.Join(recorded, "idle"): WriteReport, filepath.Join(recorded, "memory"): WriteReport,
		filepath.Join(recorded, "nodes"): WritePlacements,
	} {
		t.Run(filepath.Base(run), func(t *testing.T) {
			data, err := ReadFile(filepath.Join(run, DataFile))
			if err != nil {
				t.Fatal(err)
			}
			text, err := os.ReadFile(filepath.Join(run, report.ResultsFile))
			if err != nil {
				t.Fatal(err)
			}
			drawn, err := os.ReadFile(filepath.Join(run, GlanceFile))
			if err != nil && !os.IsNotExist(err) {
				t.Fatal(err)
			}
			var results report.Results
			if err := json.Unmarshal(text, &results); err != nil {
				t.Fatal(err)
			}
			w := writeBy(t, by, data)
			if len(drawn) > 0 && string(drawn) != w.glance {
				t.Errorf("%s is another than what is worked out: bin/demo evaluate --report-only writes it", GlanceFile)
			}
			if diff := cmp.Diff(results.Metrics, w.metrics, cmpopts.EquateApprox(0, 1e-9)); diff != "" {
				t.Errorf("recorded (-) and worked out (+):\n%s", diff)
			}
		})
	}
}
