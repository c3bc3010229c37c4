package report

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestWhatWasNotMeasuredIsNotInTheResults(t *testing.T) {
	dir := t.TempDir()
	want := Results{Machine: "a machine", Commit: "abc123", Seed: 7, Metrics: map[string]float64{"failed_requests": 0, "p95": 1.5}}
	with := want
	with.Metrics = map[string]float64{"failed_requests": 0, "p95": 1.5, "of_nothing": math.NaN(), "over_nothing": math.Inf(1)}
	if err := with.Write(dir); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(filepath.Join(dir, ResultsFile))
	if err != nil {
		t.Fatal(err)
	}
	var got Results
	if err := json.Unmarshal(data, &got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestNumbers(t *testing.T) {
	for _, c := range []struct{ got, want string }{
		{MS(3.14), "3.1"}, {MS(314.15), "314"}, {MS(math.NaN()), "-"}, {Ratio(0.666), "0.67"}, {Ratio(math.Inf(1)), "-"},
	} {
		if c.got != c.want {
			t.Errorf("got %s, want %s", c.got, c.want)
		}
	}
}
