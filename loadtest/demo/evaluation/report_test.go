package evaluation

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"libra.dev/libra/loadtest/demo/report"
	"libra.dev/libra/pkg/api"
)

// full has every policy and workload, with all that is measured of a run.
func full() Data {
	d := dataOf()
	d.Elapsed, d.Learned, d.Alerts = 90*time.Minute, 240, []string{"LibraExample"}
	for _, p := range []string{Stock, Again, Libra, NoSafeguard, NoPredictor, NoBoth, Freyr, "no_limits", "vpa"} {
		d.Policies = append(d.Policies, Policy{Name: p, Title: "The " + p, About: "What " + p + " is."})
	}
	for _, w := range []string{Mixed, Related, Unrelated} {
		for round := 1; round <= 3; round++ {
			for i, p := range d.Policies {
				ms := 100 + float64(10*i+round)
				r := run(p.Name, w, round, ms, 2*ms, 3*ms, 4*ms)
				r.Samples = []Sample{look(0, 0, 50, 1000), look(2000, time.Second, 60, 500), look(5000, 2*time.Second, 40, 0)}
				r.Parts = map[string]Part{PartActivator: {Cores: 0.1, Memory: 100 * mebibyte}}
				if slices.Contains([]string{Libra, NoSafeguard, NoPredictor, NoBoth, Freyr}, p.Name) {
					r = lending(r, 0, 1)
					borrowed := r.Outcomes[r.Results[2].RequestID]
					borrowed.Borrowed = api.Resources{CPUMilli: 500, MemoryBytes: mebibyte}
					r.Outcomes[r.Results[2].RequestID] = borrowed
					r.Parts["agent"] = Part{Cores: 0.02, Memory: 30 * mebibyte}
					r.Stages = []Stage{{Name: "predict", Count: 10, P50: 0.001, P99: none}}
				}
				d.Runs = append(d.Runs, r)
			}
		}
	}
	return d
}

func minimal() Data {
	d := dataOf(run(Stock, Mixed, 1, 100), run(Libra, Mixed, 1, 50))
	return d
}

// written is the page, the Markdown, the table and the metrics of the data.
func written(t *testing.T, d Data) (page, markdown, table string, metrics map[string]float64) {
	t.Helper()
	dir := t.TempDir()
	c := Compare(d)
	heading := Heading{Title: "What <it> is", Table: "a table & its cells"}
	var out strings.Builder
	for _, err := range []error{WritePage(dir, heading, d, c), WriteMarkdown(dir, heading, d, c), WriteTable(&out, d, c), ResultsOf(d, c).Write(dir)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	read := func(name string) []byte {
		data, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	var results report.Results
	if err := json.Unmarshal(read(report.ResultsFile), &results); err != nil {
		t.Fatal(err)
	}
	return string(read(PageFile)), string(read(MarkdownFile)), out.String(), results.Metrics
}

func TestReportsOfMuchLittleAndNothing(t *testing.T) {
	for name, c := range map[string]struct {
		data  Data
		plots int
	}{
		// Response times and speed-ups of three workloads, two of utilisation and one of
		// limits, two of what was reassigned for each of five policies.
		"full": {full(), 3 + 3 + 3 + 10}, "minimal": {minimal(), 2}, "empty": {Data{}, 0},
		"runs without results": {dataOf(Run{Policy: Stock, Workload: Mixed, Round: 1}, Run{Policy: Libra, Workload: Mixed, Round: 1}), 0},
	} {
		page, markdown, table, _ := written(t, c.data)
		if got := strings.Count(page, "<svg"); got != c.plots {
			t.Errorf("%s: %d plots, want %d", name, got, c.plots)
		}
		if !strings.Contains(page, "<h1>What &lt;it&gt; is</h1>\n<pre>a table &amp; its cells</pre>") || !strings.HasPrefix(markdown, "# What <it> is\n") {
			t.Errorf("%s: does not begin with its heading", name)
		}
		for _, text := range []string{page, markdown, table} {
			for _, unwanted := range []string{"NaN", "Inf", "<?xml", "src=", "href=\"http", "@import", "%!"} {
				if strings.Contains(text, unwanted) {
					t.Errorf("%s: has %q", name, unwanted)
				}
			}
		}
	}
}

func TestReportHasEverySectionFigureByFigure(t *testing.T) {
	page, markdown, _, _ := written(t, full())
	for _, want := range []string{
		"figures 6(a) and 13", "figures 6(b) and 13", "figure 7", "figure 8", "figure 15", "section 8.10",
		"Where it does not hold", "3.82", "2.09", "new to the models", "The vpa", "harvest resource pool", "abc123", "LibraExample",
	} {
		if !strings.Contains(page, want) || !strings.Contains(markdown, want) {
			t.Errorf("page or Markdown lacks %q", want)
		}
	}
}

func TestMetricsOfTheIssue(t *testing.T) {
	_, _, _, metrics := written(t, full())
	for _, p := range []string{Again, Libra, NoSafeguard, NoPredictor, NoBoth, Freyr, "no_limits", "vpa"} {
		for _, w := range []string{Mixed, Related, Unrelated} {
			for _, name := range []string{"p99_ratio", "p50_ratio", "slowdown_p99", "worst_slowdown", "cpu_util_ratio", "mem_util_ratio", "completion_ratio"} {
				if _, ok := metrics[name+"_"+p+"_"+w]; !ok {
					t.Errorf("%s_%s_%s is missing", name, p, w)
				}
			}
		}
	}
	for name, want := range map[string]float64{
		"runs": 3, "failed_requests": 0, "late_requests": 0, "seconds_total": 5400, "learned_requests": 240, "alerts_fired": 1,
		"overhead_cpu_activator": 0, "overhead_mem_mib_agent": 30,
	} {
		if got, ok := metrics[name]; !ok || !approximately(got, want) {
			t.Errorf("%s: got %v, %v; want %v", name, got, ok, want)
		}
	}
	_, _, _, metrics = written(t, minimal())
	for _, name := range []string{"p99_ratio_again_mixed", "p99_ratio_libra_related", "slowdown_p99_libra_mixed", "cpu_util_ratio_libra_mixed", "overhead_cpu_activator"} {
		if v, ok := metrics[name]; ok {
			t.Errorf("%s is %v; it was not measured", name, v)
		}
	}
}

func TestAFailureIsInEveryReport(t *testing.T) {
	d := minimal()
	d.Runs[1].Results[0].Error = "status 503 | <b>"
	page, markdown, table, metrics := written(t, d)
	for name, text := range map[string]string{"page": page, "Markdown": markdown, "table": table} {
		if !strings.Contains(text, "status 503") {
			t.Errorf("%s lacks the failure", name)
		}
	}
	if metrics["failed_requests"] != 1 || strings.Contains(page, "<b>") || !strings.Contains(markdown, `\|`) {
		t.Errorf("failed_requests %v, or the error is not escaped", metrics["failed_requests"])
	}
}
