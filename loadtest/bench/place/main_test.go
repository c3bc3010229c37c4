package main

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"libra.dev/libra/loadtest/demo/report"
	"libra.dev/libra/pkg/apiservertest"
)

func TestQuick(t *testing.T) {
	dir := t.TempDir()
	cmd := newRoot()
	pool := filepath.Join(dir, "bench-pool")
	build := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-o", pool, "../pool")
	build.Env = append(os.Environ(), "CGO_ENABLED=0") // as make builds it: otherwise Go compiles all of it once more
	if said, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, said)
	}
	t.Chdir("../../..") // as make runs it
	cmd.SetArgs([]string{"--quick", "--out", dir, "--pool", pool, "--seed", "7", "--commit", "abc"})
	var out bytes.Buffer
	cmd.SetOut(&out)
	if err := cmd.ExecuteContext(t.Context()); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	data, err := os.ReadFile(filepath.Join(dir, report.ResultsFile))
	if err != nil {
		t.Fatal(err)
	}
	var got report.Results
	if err := json.Unmarshal(data, &got); err != nil {
		t.Fatal(err)
	}
	if got.Machine == "" || got.Commit != "abc" || got.Seed != 7 {
		t.Errorf("results of machine %q, commit %q and seed %d", got.Machine, got.Commit, got.Seed)
	}
	for _, name := range []string{
		"place_p99_us", "place_p99_us_low", "place_p99_us_high", "place_allocs", "policy_p99_us", "policy_p99_us_high", "plenty_placement_policy_p99_us", "plenty_stock_p99_us", "plenty_hash_p99_us", "scarce_coverage_p99_us",
		"redis_share", "staleness_p99_ms", "granted_over_promised", "share_with_choice", "scarce_join_shortest_queue_p99_us", "plenty_minimum_worker_set_p99_us", "clock_p50_us",
	} {
		if _, ok := got.Metrics[name]; !ok {
			t.Errorf("the results have no %s: %v", name, got.Metrics)
		}
	}
	// Without a picture, this would measure hash.
	if got.Metrics["choices_covered"] < 1 {
		t.Errorf("%v of the choices by default were by what nodes cover, want all", got.Metrics["choices_covered"])
	}
}

// All activators see every edit, and no request is without the policy meanwhile.
func TestReload(t *testing.T) {
	if os.Getenv("KUBEBUILDER_ASSETS") != "" {
		t.Skip("The bench wants Kubernetes in one binary")
	}
	assets := apiservertest.Binaries(t)
	t.Chdir("../../..") // as make runs it
	o := options{quick: true, kubelite: filepath.Join(assets, "kube-apiserver")}
	metrics := map[string]float64{}
	if err := o.reload(t.Context(), metrics, func(format string, args ...any) { t.Logf(format, args...) }); err != nil {
		t.Fatal(err)
	}
	if metrics["reload_edits"] != 10 || !(metrics["reload_p99_ms"] > 0) || metrics["reload_requests"] == 0 || metrics["reload_failed_requests"] != 0 {
		t.Errorf("it measured %v", metrics)
	}
}

func TestReloadWithoutAnAPIServer(t *testing.T) {
	o := options{quick: true, kubelite: filepath.Join(t.TempDir(), "none")}
	err := o.reload(t.Context(), map[string]float64{}, func(string, ...any) {})
	if err == nil || !strings.Contains(err.Error(), "--kubelite") || !strings.Contains(err.Error(), "bin/box build") {
		t.Errorf("got error %v, want one that says how to have an API server", err)
	}
}
