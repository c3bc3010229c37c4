package main

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"libra.dev/libra/loadtest/demo/report"
)

// quick runs the command for a few seconds, and returns its results and its output.
func quick(t *testing.T, args ...string) (results report.Results, printed string) {
	t.Helper()
	dir := t.TempDir()
	cmd := newRoot()
	cmd.SetArgs(append(args, "--quick", "--redis", "../../../manifests/base/redis/deployment.yaml", "--out", dir))
	var out bytes.Buffer
	cmd.SetOut(&out)
	if err := cmd.ExecuteContext(t.Context()); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	data, err := os.ReadFile(filepath.Join(dir, report.ResultsFile))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, &results); err != nil {
		t.Fatal(err)
	}
	return results, out.String()
}

func TestQuick(t *testing.T) {
	got, out := quick(t, "--seed", "7", "--commit", "abc")
	if got.Machine == "" || got.Commit != "abc" || got.Seed != 7 {
		t.Errorf("results of machine %q, commit %q and seed %d", got.Machine, got.Commit, got.Seed)
	}
	for _, name := range []string{
		"begin_p99_ms", "invocations_per_s", "begin_p99_ms_1_nodes", "invocations_per_s_10_nodes",
		"due_begin_p99_ms_10_nodes", "redis_core_share_1_nodes", "left_of_cpu0_1_nodes",
		"nodes_10_invocations_per_s", "redis_mib", "redis_limit_mib", "followed_begin_p99_ms_10_nodes", "followed_redis_connections_10_nodes",
	} {
		if _, ok := got.Metrics[name]; !ok {
			t.Errorf("the results have no %s: %v", name, got.Metrics)
		}
	}
	if least := min(got.Metrics["nodes_1_invocations_per_s"], got.Metrics["nodes_10_invocations_per_s"]); got.Metrics["invocations_per_s"] != least {
		t.Errorf("%v invocations a second, want the %v of the slower run", got.Metrics["invocations_per_s"], least)
	}
	if !strings.Contains(out, "closed loop") {
		t.Errorf("no progress is printed:\n%s", out)
	}
}

func TestQuickPictures(t *testing.T) {
	got, _ := quick(t, "pictures", "--activators", "2")
	for _, name := range []string{
		"redis_share", "redis_share_low", "redis_share_high", "staleness_p99_ms", "staleness_p99_ms_low", "staleness_p99_ms_high", "granted_over_promised", "granted_over_promised_low", "granted_over_promised_high",
	} {
		if _, ok := got.Metrics[name]; !ok {
			t.Errorf("the results have no %s: %v", name, got.Metrics)
		}
	}
	if got.Metrics["staleness_probes"] < 1 || got.Metrics["staleness_p50_ms"] <= 0 {
		t.Errorf("nothing was measured: %v", got.Metrics)
	}
	if got.Metrics["wanted"] < 1 || got.Metrics["activators"] != 2 || got.Metrics["share_with_choice"] <= 0 {
		t.Errorf("nothing was placed: %v", got.Metrics)
	}
}

// A P99 of few probes holds only if all of its interval does.
func TestStalenessIsJudgedByItsInterval(t *testing.T) {
	once := slices.Repeat([]float64{100}, 2000)
	for i := range 19 { // fewer than one in a hundred, but all at once
		once[500+i] = 400
	}
	for want, staleness := range map[string][]float64{"holds": slices.Repeat([]float64{100}, 2000), "not known": once} {
		var out bytes.Buffer
		m := profiled{staleness: staleness}.summary(picturing{options: options{nodes: []int{1000}}}, &out)
		if !strings.Contains(out.String(), "100 ms (P99, 100 to") || !strings.Contains(out.String(), stalenessGoal.String()+": "+want) {
			t.Errorf("want %s; it says %s", want, out.String())
		}
		if (m["staleness_p99_ms_high"] > stalenessGoal.Bound) != (want == "not known") {
			t.Errorf("the interval of what %s ends at %v", want, m["staleness_p99_ms_high"])
		}
	}
}

func TestRefused(t *testing.T) {
	for _, args := range []string{"--nodes=0", "--connections=33", "--standing=-1", "--rate=0", "--followed=0", "--revisions=0", "--length=1ms", "--rounds=0", "--redis=nowhere.yaml", "--colour=red"} {
		cmd := newRoot()
		cmd.SetArgs([]string{args})
		cmd.SetOut(&bytes.Buffer{})
		flag, _, _ := strings.Cut(args, "=")
		if err := cmd.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), flag) {
			t.Errorf("%s: got error %v, want one that names the flag", args, err)
		}
	}
}

// TestCompare runs this test's own command as the other.
func TestCompare(t *testing.T) {
	dir := t.TempDir()
	other := filepath.Join(dir, "bench-pool")
	build := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-o", other, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0") // as make builds it: otherwise Go compiles all of it once more
	if said, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, said)
	}
	cmd := exec.CommandContext(t.Context(), other, "compare", "--redis", "../../../manifests/base/redis/deployment.yaml",
		"--with", "other="+other, "--nodes", "2", "--rounds", "3", "--turns", "2", "--length", "100ms", "--out", dir)
	said, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, said)
	}
	data, err := os.ReadFile(filepath.Join(dir, report.ResultsFile))
	if err != nil {
		t.Fatal(err)
	}
	var got report.Results
	if err := json.Unmarshal(data, &got); err != nil {
		t.Fatal(err)
	}
	for _, arm := range []string{"again", "other"} {
		if got.Metrics["redis_us_per_invocation_ratio_"+arm] <= 0 {
			t.Errorf("no ratio of %s in %v; it printed:\n%s", arm, got.Metrics, said)
		}
	}
}

func TestCompareRefuses(t *testing.T) {
	for _, args := range [][]string{{"--with", "this=true"}, {"--with", "base=nowhere"}, {"--with", "base=true", "--rounds", "2"}, {"--with", "base=true", "--turns", "0"}, {}} {
		cmd := newRoot()
		cmd.SetArgs(append([]string{"compare"}, args...))
		cmd.SetOut(&bytes.Buffer{})
		flag := "--with"
		if len(args) > 2 {
			flag = args[2]
		}
		if err := cmd.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), flag) {
			t.Errorf("%v: got error %v, want one that names %s", args, err, flag)
		}
	}
}
