package evaluation

import (
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"libra.dev/libra/loadtest/demo/report"
)

var update = flag.Bool("update", false, "rewrite the golden reports")

// written is everything that a report writes.
type written struct {
	page, markdown, text string
	glance               string // empty if nothing was drawn
	metrics              map[string]float64
}

func write(t *testing.T, d Data) written {
	t.Helper()
	return writeBy(t, WriteReport, d)
}

func writeBy(t *testing.T, by func(dir string, out io.Writer, title string, d Data) error, d Data) written {
	t.Helper()
	dir := t.TempDir()
	var out strings.Builder
	if err := by(dir, &out, "What <it> is", d); err != nil {
		t.Fatal(err)
	}
	read := func(name string) string {
		data, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	w := written{page: read(PageFile), markdown: read(MarkdownFile), text: strings.ReplaceAll(out.String(), dir, "out")}
	if _, err := os.Stat(filepath.Join(dir, GlanceFile)); err == nil {
		w.glance = read(GlanceFile)
	}
	var results report.Results
	if err := json.Unmarshal([]byte(read(report.ResultsFile)), &results); err != nil {
		t.Fatal(err)
	}
	w.metrics = results.Metrics
	return w
}

// small is an evaluation whose report a person can read.
func small() Data {
	d := synthetic{seed: 5, blocks: 2, requests: 60, noise: 0.1,
		arms: map[string]float64{Stock: 1, Again: 1.01, Libra: 0.6, NoLimits: 0.8, Fits: 0.9}}.data(
		busy, combination{PartRequests, 15, 10}, combination{PartBystanders, 90, 10}, combination{PartMemory, 15, 1}, combination{PartCost, 40, 0})
	d.Unmeasured, d.Alerts = []string{"requests with 40 pods: there was no time."}, []string{"LibraExample"}
	return d
}

func TestTheReportIsAsItWas(t *testing.T) {
	w := write(t, small())
	demo := writeBy(t, WriteDemo, demoOf(0.6, 1.02, 0.1))
	for name, got := range map[string]string{"report.md": w.markdown, "terminal.txt": w.text, "demo.txt": demo.text} {
		file := filepath.Join("testdata", name)
		if *update {
			if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), got); diff != "" {
			t.Errorf("%s (go test -update writes it anew): %s", file, diff)
		}
	}
}

func TestReportsOfMuchLittleAndNothing(t *testing.T) {
	alone := synthetic{seed: 1, blocks: 1, requests: 20, arms: map[string]float64{Libra: 1}}.data(busy)
	unknown := small()
	unknown.Alone, unknown.Arms = nil, nil
	everyoneFailed := synthetic{seed: 1, blocks: 2, requests: 20, arms: map[string]float64{Stock: 1, Libra: 1}}.data(busy)
	for _, b := range everyoneFailed.Blocks {
		for n := range b.Requests {
			b.Requests[n].Error = "status 503"
		}
	}
	for name, c := range map[string]struct {
		data  Data
		plots int
	}{
		// One at a glance; two of each load, and of the ablations; two figures by load with 10 pods and two with 40.
		"everything": {everything(synthetic{seed: 1, blocks: 2, requests: 60, arms: allArms(), noise: 0.1}), 1 + 2*6 + 2 + 4},
		"small":      {small(), 1 + 2*2 + 2},
		"one arm":    {alone, 2 + 2},
		"nothing":    {Data{}, 0},
		"all failed": {everyoneFailed, 1 + 2 + 2},
		// Without slow-downs and titles there is P99 at a glance, but no arm to draw it for by load.
		"nothing is known of functions": {unknown, 1},
	} {
		w := write(t, c.data)
		if got := strings.Count(w.page, "<svg"); got != c.plots {
			t.Errorf("%s: %d plots, want %d", name, got, c.plots)
		}
		if !strings.Contains(w.page, "<h1>What &lt;it&gt; is</h1>") || !strings.HasPrefix(w.markdown, "# What <it> is\n") {
			t.Errorf("%s: does not begin with its title", name)
		}
		for _, text := range []string{w.page, w.markdown, w.text} {
			for _, unwanted := range []string{"NaN", "Inf", "<?xml", "src=", "href=\"http", "@import", "%!"} {
				if at := strings.Index(text, unwanted); at >= 0 {
					t.Errorf("%s: has %q: %s", name, unwanted, text[max(0, at-100):at])
				}
			}
		}
	}
}

func TestMetricsOfTheIssue(t *testing.T) {
	d := everything(synthetic{seed: 1, blocks: 3, requests: 200, arms: allArms(), noise: 0.1})
	got := write(t, d).metrics
	want := map[string]bool{"undecided": true, "failed_requests": true}
	add := func(name string) { want[name], want[name+"_low"], want[name+"_high"] = true, true, true }
	addPaper := func(prefix, arm, of string) {
		want[fmt.Sprintf("%spaper_utilisation_%s_%s", prefix, arm, of)] = true
		if arm != Stock {
			want[fmt.Sprintf("%spaper_worst_speedup_%s_%s", prefix, arm, of)] = true
			add(fmt.Sprintf("%spaper_speedup_%s_%s", prefix, arm, of))
			add(fmt.Sprintf("%spaper_p99_reduction_%s_%s", prefix, arm, of))
		}
		if arm == Owners {
			want[fmt.Sprintf("%spaper_safeguarded_%s_%s", prefix, arm, of)] = true
			for _, f := range []string{"harvested_core_seconds", "harvested_mb_seconds", "accelerated_core_seconds", "accelerated_mb_seconds"} {
				add(fmt.Sprintf("%spaper_%s_%s_%s", prefix, f, arm, of))
			}
		}
	}
	add("ablation_p99_computing_libra_fifo_40_10")
	add("ablation_mean_slowdown_libra_fifo_40_10")
	for arm := range allArms() {
		for _, of := range []string{"15_10", "40_10", "90_10", "120_10", "90_40", "120_40"} {
			if arm != NoLimits {
				for _, f := range []string{"p99_computing", "p95_computing", "p50_short", "mean_slowdown", "worst_function_p99"} {
					add(fmt.Sprintf("%s_%s_%s", f, arm, of))
				}
			}
			if arm != Stock {
				add(fmt.Sprintf("p99_stock_%s_%s", arm, of))
			}
			addPaper("", arm, of)
			want["libra_cores_"+arm+"_"+of], want["agent_cores_"+arm+"_"+of] = true, true
			if arm == Libra {
				for _, f := range []string{"weighed", "weighed_within_5ms", "weighed_within_10ms"} {
					want[f+"_libra_"+of] = true
				}
			}
		}
		addPaper("ablation_", arm, "40_10")
		if arm != Stock {
			for _, load := range []int{40, 90} {
				add(fmt.Sprintf("bystander_p95_%s_%d", arm, load))
				add(fmt.Sprintf("bystander_cpu_%s_%d", arm, load))
			}
		}
		add("oom_kills_" + arm)
		add("oom_failed_" + arm)
		add("pod_seconds_" + arm)
	}
	for name := range want {
		if _, ok := got[name]; !ok {
			t.Errorf("%s is missing", name)
		}
	}
	for name := range got {
		if !want[name] {
			t.Errorf("%s is not in the issue", name)
		}
	}
	for name, want := range map[string]float64{
		"mean_slowdown_libra_90_10": 0.5 / 0.75, "p99_stock_libra_15_10": 0.5, "p99_stock_again_40_10": 1,
		"paper_p99_reduction_libra_15_10": 0.5, "paper_speedup_libra_15_10": 0.5, "paper_safeguarded_owners_90_10": 0.1,
		"paper_harvested_core_seconds_owners_40_10": 12, "paper_accelerated_mb_seconds_owners_40_10": 2800,
		// 20 core-seconds in 20 s, of 2 cores less the platform's 0.25.
		"paper_utilisation_stock_40_10": 1 / 1.75, "ablation_mean_slowdown_libra_fifo_40_10": 0.6 / 0.5,
		"bystander_cpu_libra_40": 2.1, "pod_seconds_libra": 50,
		"agent_cores_libra_90_40": 0.01, "weighed_libra_90_10": 150, "weighed_within_5ms_libra_90_10": 0.96,
		// Two kills and two failed requests in each of three blocks.
		"oom_kills_stock": 6, "oom_failed_stock": 6, "oom_kills_libra": 0, "oom_failed_libra": 0, "failed_requests": 0,
	} {
		if v := got[name]; math.Abs(v-want) > 0.1*want {
			t.Errorf("%s is %v, want about %v", name, v, want)
		}
	}
}

func TestWhatWasNotMeasuredIsAbsent(t *testing.T) {
	got := write(t, synthetic{seed: 1, blocks: 2, requests: 60, arms: map[string]float64{Stock: 1, Libra: 0.5}}.data(busy)).metrics
	measured := regexp.MustCompile(`^(undecided|failed_requests|p99_stock_libra_90_10.*|paper_.*|(libra|agent)_cores_(stock|libra)_90_10|weighed.*_libra_90_10)$`)
	for name := range got {
		if !measured.MatchString(name) {
			t.Errorf("%s is %v; it was not measured", name, got[name])
		}
	}
	want := 0
	for _, g := range goals {
		if g.without == "" {
			want++
		}
	}
	if got["undecided"] != float64(want) {
		t.Errorf("%v goals are undecided; want all %d", got["undecided"], want)
	}
}

func TestAFailureIsInEveryReport(t *testing.T) {
	d := small()
	d.Blocks[0].Requests[0].Error = "status 503 | <b>"
	w := write(t, d)
	if !strings.Contains(w.page, "status 503") || strings.Contains(w.page, "<b>") || !strings.Contains(w.markdown, `503 \| &lt;b>`) {
		t.Error("the failure is missing, or not escaped")
	}
	if w.metrics["failed_requests"] != 1 {
		t.Errorf("failed_requests is %v", w.metrics["failed_requests"])
	}
}

// Data that is read back makes the same report.
func TestDataIsReadAgain(t *testing.T) {
	file := filepath.Join(t.TempDir(), DataFile)
	d := small()
	if err := d.WriteFile(file); err != nil {
		t.Fatal(err)
	}
	again, err := ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(write(t, d), write(t, again), cmp.AllowUnexported(written{})); diff != "" {
		t.Error(diff)
	}
}
