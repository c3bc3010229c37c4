package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestResults(t *testing.T) {
	found := map[string][]outcome{
		"1.36": {{Case: "nothing", AwaySecs: 1.5, Answered: 3}, {Case: "reboot", AwaySecs: 4, Failed: "why", OOMKills: 1}},
		"1.35": {{Case: "nothing", AwaySecs: 2, Restarts: 2}},
	}
	r := resultsOf(found)
	want := results{Cases: 3, Failed: 1, OOMKills: 1, Restarts: 2, LongestAwayS: 4, Kubelets: []string{"1.35", "1.36"}}
	if diff := cmp.Diff(want, r); diff != "" {
		t.Errorf("resultsOf() (-want +got):\n%s", diff)
	}
	path := filepath.Join(t.TempDir(), "out", "results.json")
	var table strings.Builder
	if err := r.write(&table, path, found); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(path)
	if err != nil || !strings.Contains(string(data), `"longest_away_s": 4`) {
		t.Errorf("the file is %s, %v", data, err)
	}
	for _, line := range []string{"1.35     nothing", "FAILED: why"} {
		if !strings.Contains(table.String(), line) {
			t.Errorf("the table has no %q:\n%s", line, table.String())
		}
	}
	if err := r.judge(); err == nil || !strings.Contains(err.Error(), "1 of 3") {
		t.Errorf("judge() = %v", err)
	}
	if err := resultsOf(nil).judge(); err == nil {
		t.Error("no case at all is as good as all")
	}
	if err := complete(found, nodes); err == nil || !strings.Contains(err.Error(), "kubelet 1.35: 1 of") {
		t.Errorf("complete() = %v", err)
	}
}

func TestChoose(t *testing.T) {
	if chosen, err := choose([]string{"1.35"}); err != nil || len(chosen) != 1 || chosen[0].kubelet != "1.35" {
		t.Errorf("choose() = %v, %v", chosen, err)
	}
	if _, err := choose([]string{"1.30"}); err == nil || !strings.Contains(err.Error(), "1.36") {
		t.Errorf("a kubelet that is not there is taken: %v", err)
	}
}
