package main

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"libra.dev/libra/loadtest/demo/evaluation"
	"libra.dev/libra/loadtest/functions/inputs"
)

func TestAutoscalersNameTheRevisionsDeployments(t *testing.T) {
	t.Chdir("../..")
	own := newDemo(options{}, io.Discard)
	own.namespace = "evaluation-vpa"
	own.services = services{optedIn: []string{"mst", "bfs"}}
	own.targets.revisions = map[string]string{"mst": "evaluation-vpa/mst-00001", "bfs": "evaluation-vpa/bfs-00007"}
	got, err := autoscalers(own)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"name: mst-00001-deployment", "name: bfs-00007-deployment", "namespace: evaluation-vpa", "updateMode: InPlace", "containerName: queue-proxy"} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in:\n%s", want, got)
		}
	}
	if strings.Contains(got, "pagerank") {
		t.Errorf("the example's own name is left:\n%s", got)
	}
}

// VPA would resize other arms' pods meanwhile.
func TestTheAutoscalerIsStoppedWhereItDoesNotStart(t *testing.T) {
	s := &scene{functions: []string{"mst"}, sets: 1, pool: pool{"mst": make([]inputs.Input, 1)}, capacity: capacity{cores: 2, function: time.Millisecond}}
	for name, use := range map[string]func(*evaluate) error{
		"to learn": func(e *evaluate) error { return e.learnVPA(t.Context(), nil, time.Minute) },
		"a block": func(e *evaluate) error {
			s.places = map[string]*demo{evaluation.VPA: e.demo}
			_, err := e.block(t.Context(), s, combination{part: evaluation.PartRequests, load: 40, length: time.Second}, armNamed(evaluation.VPA), 1, 1)
			return err
		},
	} {
		k, log := fakeKubectl(t, `case "$*" in *rollout*) exit 1;; *) echo "{}";; esac`)
		e := newEvaluation(newDemo(options{}, io.Discard), "")
		e.kubectl, e.services = k, services{}
		if err := use(e); err == nil {
			t.Errorf("%s: no error", name)
		}
		calls, err := os.ReadFile(log)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(calls), "--replicas=1") || !strings.Contains(string(calls), "--replicas=0") {
			t.Errorf("%s: it was not started and stopped:\n%s", name, calls)
		}
	}
}

func TestVPAWithoutItsImagesSaysHowToMakeThem(t *testing.T) {
	dir := t.TempDir()
	d := newDemo(options{imagesFile: filepath.Join(dir, "images.json")}, io.Discard)
	d.images = images{"vpa-updater": "x", "metrics-server": "y"}
	err := d.checkVPA()
	if err == nil || !strings.Contains(err.Error(), "vpa-recommender") || !strings.Contains(err.Error(), "--with vpa") {
		t.Errorf("got %v, want an error that says what is missing and how to make it", err)
	}
	d.images["vpa-recommender"] = "z"
	if err := os.WriteFile(d.upstreamPath(), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := d.checkVPA(); err != nil {
		t.Error(err)
	}
}
