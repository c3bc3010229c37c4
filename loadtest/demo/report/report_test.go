package report

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"libra.dev/libra/loadtest/demo/schedule"
	"libra.dev/libra/pkg/api"
)

// sample is a demo of two requests to each function: with Libra, compression
// takes half as long, and each function that lends as long as in stock.
func sample() Data {
	var requests []schedule.Request
	for i, f := range slices.Concat(schedule.All, schedule.All) {
		requests = append(requests, schedule.Request{N: i, Function: f})
	}
	run := func(name string, factor func(function string) float64) Run {
		r := Run{Name: name, Schedule: requests}
		for _, q := range requests {
			r.Results = append(r.Results, Result{
				N: q.N, Function: q.Function, RequestID: fmt.Sprintf("%s-%d", name, q.N), Status: 200,
				DurationMS: float64(100*(q.N+1)) * factor(q.Function), Answer: fmt.Sprint(q.N),
			})
		}
		return r
	}
	same := func(string) float64 { return 1 }
	d := Data{
		Machine: "a machine", Commit: "abc123", Seed: 7,
		Stock: run("stock", same), Again: run("again", same), Learn: run("learn", same),
		Libra: run("libra", func(f string) float64 {
			if f == "compression" {
				return 0.5
			}
			return 1
		}),
		Outcomes: map[string]Outcome{
			"libra-0": {Lent: api.Resources{CPUMilli: 300}},
			"libra-2": {Borrowed: api.Resources{CPUMilli: 300}},
		},
		Elapsed: 90 * time.Second,
	}
	start := time.Unix(1000, 0)
	for i, milli := range []int64{700, 400, 700} {
		d.Limits = append(d.Limits, LimitChange{At: start.Add(time.Duration(i) * time.Second), Function: "uploader", Pod: "u-1", Limit: api.Resources{CPUMilli: milli}})
	}
	return d
}

func TestCompare(t *testing.T) {
	c := Compare(sample())
	var compression, uploader Row
	for _, r := range c.Functions {
		switch r.Name {
		case "compression":
			compression = r
		case "uploader":
			uploader = r
		}
	}
	if diff := cmp.Diff(Row{
		Name: "compression", Requests: 2, Observed: 1, Accelerated: 1,
		Stock: Latency{300, 800, 800}, Again: Latency{300, 800, 800}, Libra: Latency{150, 400, 400},
	}, compression); diff != "" {
		t.Errorf("compression (-want +got):\n%s", diff)
	}
	if uploader.Harvested != 1 || uploader.Resizes != 2 {
		t.Errorf("uploader: harvested %d, resizes %d; want 1 and 2", uploader.Harvested, uploader.Resizes)
	}
	if c.Overall.Requests != 8 || c.Overall.Harvested != 1 || c.Overall.Accelerated != 1 {
		t.Errorf("overall: %+v", c.Overall)
	}
	if len(c.Failures) != 0 {
		t.Errorf("failures: %v", c.Failures)
	}
}

func TestSlowdownIsOfHarvestedRequestsOverTheFirstStockRun(t *testing.T) {
	d := sample()
	d.Stock.Results[0].DurationMS = 100
	d.Again.Results[0].DurationMS = 110
	d.Libra.Results[0].DurationMS = 103
	d.Libra.Results[1].DurationMS *= 5 // of nobody's surplus
	c := Compare(d)
	if got := c.Slowdown.String(); !strings.Contains(got, "+3.0 % (uploader, request 0)") {
		t.Errorf("slow-down: %s", got)
	}
	if got := c.SlowdownAgain.String(); !strings.Contains(got, "+10.0 % (uploader, request 0)") {
		t.Errorf("slow-down of stock against stock: %s", got)
	}
	d.Outcomes = nil
	if got := Compare(d).Slowdown.String(); got != "none" {
		t.Errorf("slow-down of no harvested request: %s", got)
	}
}

func TestARequestThatFindsItsPodBelowItsLimitIsAVictim(t *testing.T) {
	// The pod of uploader is below its limit from 1001 s to 1002 s.
	for name, c := range map[string]struct {
		function           string
		sentMS, durationMS int64
		want               bool
	}{
		"before":              {"uploader", 1_000_100, 800, false},
		"from before to then": {"uploader", 1_000_100, 1000, true},
		"then":                {"uploader", 1_001_100, 100, true},
		"from then to after":  {"uploader", 1_001_900, 1000, true},
		"before, then, after": {"uploader", 1_000_100, 5000, true},
		"after":               {"uploader", 1_002_000, 1000, false},
		"of somebody else":    {"compression", 1_001_100, 100, false},
	} {
		got := sample().victim(Result{Function: c.function, SentMS: c.sentMS, DurationMS: float64(c.durationMS)})
		if got != c.want {
			t.Errorf("%s: got %v", name, got)
		}
	}
}

func TestLimitsThatChangeInStockAreAnError(t *testing.T) {
	d := sample()
	for _, pod := range []string{"u-1", "u-2", "u-2"} {
		d.StockLimits = append(d.StockLimits, LimitChange{Function: "uploader", Pod: pod})
	}
	c := Compare(d)
	var table strings.Builder
	if err := WriteTable(&table, d, c); err != nil {
		t.Fatal(err)
	}
	if got := ResultsOf(d, c).Metrics["resizes_stock"]; got != 1 || !strings.Contains(table.String(), "not stock") {
		t.Errorf("resizes in stock: %v, in the table:\n%s", got, table.String())
	}
}

func TestEveryKindOfFailureCounts(t *testing.T) {
	for name, spoil := range map[string]func(d *Data){
		"an error":                           func(d *Data) { d.Libra.Results[3].Error = "status 503" },
		"a missing result":                   func(d *Data) { d.Stock.Results = d.Stock.Results[1:] },
		"another answer than in stock":       func(d *Data) { d.Again.Results[4].Answer = "something else" },
		"an error while Libra was learning ": func(d *Data) { d.Learn.Results[0].Error = "status 503" },
	} {
		d := sample()
		spoil(&d)
		c := Compare(d)
		if len(c.Failures) != 1 || ResultsOf(d, c).Metrics["failed_requests"] != 1 {
			t.Errorf("%s: failures %v", name, c.Failures)
		}
		var table strings.Builder
		if err := WriteTable(&table, d, c); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(table.String(), c.Failures[0].Error) {
			t.Errorf("%s: not in the table:\n%s", name, table.String())
		}
	}
}

func TestTable(t *testing.T) {
	d := sample()
	var table strings.Builder
	if err := WriteTable(&table, d, Compare(d)); err != nil {
		t.Fatal(err)
	}
	lines := map[string][]string{}
	for l := range strings.Lines(table.String()) {
		if fields := strings.Fields(l); len(fields) > 0 {
			lines[fields[0]] = fields
		}
	}
	want := strings.Fields("compression 2 0 0 300 150 0.50 1.00 800 400 0.50 1.00 800 400 0.50 0 % 50 % 0")
	if diff := cmp.Diff(want, lines["compression"]); diff != "" {
		t.Errorf("compression (-want +got):\n%s\n%s", diff, table.String())
	}
	if lines["plain"] == nil || lines["all"] == nil {
		t.Errorf("the table lacks a row:\n%s", table.String())
	}
}

func TestTheTableIsNotTooWide(t *testing.T) {
	d := sample()
	for _, run := range []*Run{&d.Stock, &d.Again, &d.Libra} {
		for i := range run.Results {
			run.Results[i].DurationMS = 50_000 // k6 waits no longer
		}
	}
	d.Libra.Results[0].Error = "status 503"
	var table strings.Builder
	if err := WriteTable(&table, d, Compare(d)); err != nil {
		t.Fatal(err)
	}
	for l := range strings.Lines(table.String()) {
		if columns := len(strings.TrimSuffix(l, "\n")); columns > 150 {
			t.Errorf("%d columns: %s", columns, l)
		}
	}
	if !strings.Contains(strings.Join(strings.Fields(table.String()), " "), " uploader 2 0 1 50000 ") {
		t.Errorf("the failure with Libra is not in its column:\n%s", table.String())
	}
}

func TestResults(t *testing.T) {
	dir := t.TempDir()
	d := sample()
	d.Outcomes = nil // so that there is no slow-down to report
	if err := ResultsOf(d, Compare(d)).Write(dir); err != nil {
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
	if got.Machine != "a machine" || got.Commit != "abc123" || got.Seed != 7 {
		t.Errorf("got %+v", got)
	}
	for name, want := range map[string]float64{
		"failed_requests": 0, "p99_ratio_overall": 1, "p99_ratio_compression": 0.5,
		"harvested_share": 0, "accelerated_share": 0, "resizes": 2, "container_restarts": 0, "seconds_total": 90,
	} {
		v, ok := got.Metrics[name]
		if !ok || v != want {
			t.Errorf("%s: got %v, %v; want %v", name, v, ok, want)
		}
	}
	if v, ok := got.Metrics["worst_slowdown_harvested"]; ok {
		t.Errorf("no request was harvested and the worst slow-down is %v", v)
	}
}
