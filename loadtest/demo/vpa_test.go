package main

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
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
