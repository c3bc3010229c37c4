package main

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestRestartsSince(t *testing.T) {
	before := map[string]int{"a": 1, "gone": 3}
	after := map[string]int{"a": 2, "new": 1}
	if got := restartsSince(before, after); got != 2 {
		t.Errorf("got %d, want 2", got)
	}
}

// fakeKubectl returns a kubectl that logs its arguments and then runs script.
func fakeKubectl(t *testing.T, script string) (k kubectl, log string) {
	t.Helper()
	dir := t.TempDir()
	path, log := filepath.Join(dir, "kubectl"), filepath.Join(dir, "log")
	if err := os.WriteFile(path, []byte("#!/bin/sh\necho \"$*\" >>"+log+"\n"+script), 0o755); err != nil {
		t.Fatal(err)
	}
	return kubectl{path: path}, log
}

func TestForgetStartsAPredictorAnewThatHasLearned(t *testing.T) {
	for name, c := range map[string]struct {
		keys      string // number of keys that Redis deleted
		explain   string // the predictor's answer about its functions
		restarted bool
		failed    bool
	}{
		"a new cluster":                            {"0", "exit 1", false, false},
		"observations of an earlier demo":          {"1", "exit 1", true, false},
		"functions that are known and not learned": {"2", `echo '{"functions":[{"name":"default/mst-1","stage":"profiling"}]}'`, true, false},
		"models, and they do not go":               {"2", `echo '{"functions":[{"name":"default/mst-1","stage":"modelled"}]}'`, true, true},
	} {
		k, log := fakeKubectl(t, `case "$*" in *redis-cli*) echo `+c.keys+`;; */libra/v1/functions*) `+c.explain+`;; esac`)
		d := demo{services: services{optedIn: []string{"mst"}}, kubectl: k, out: io.Discard, targets: targets{revisions: map[string]string{"mst": "default/mst-1"}}}
		if err := d.forget(t.Context()); (err != nil) != c.failed {
			t.Errorf("%s: got %v", name, err)
		}
		calls, err := os.ReadFile(log)
		if err != nil {
			t.Fatal(err)
		}
		if restarted := strings.Contains(string(calls), "delete pods"); restarted != c.restarted {
			t.Errorf("%s: restarted: %v, want %v:\n%s", name, restarted, c.restarted, calls)
		}
	}
}
