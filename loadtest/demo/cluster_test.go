package main

import (
	"io"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestTheBoxIsKnownByItsNodes(t *testing.T) {
	for name, c := range map[string]struct {
		nodes   []string
		workers []string
		ok      bool
	}{
		"the box":                 {[]string{"box"}, nil, true},
		"the box of three nodes":  {[]string{"w2", "box", "w1"}, []string{"w1", "w2"}, true},
		"another cluster":         {[]string{"node-1"}, nil, false},
		"others that have a box":  {[]string{"box", "node-1"}, nil, false},
		"workers without a box":   {[]string{"w1", "w2"}, nil, false},
		"a cluster without nodes": {nil, nil, false},
	} {
		var items []string
		for _, n := range c.nodes {
			items = append(items, `{"metadata":{"name":"`+n+`"}}`)
		}
		d := demo{out: io.Discard}
		d.kubectl, _ = fakeKubectl(t, `echo '{"items":[`+strings.Join(items, ",")+`]}'`)
		err := d.checkBox(t.Context())
		if (err == nil) != c.ok {
			t.Errorf("%s: got %v", name, err)
		}
		if diff := cmp.Diff(c.workers, d.workers); err == nil && diff != "" {
			t.Errorf("%s: workers (-want +got):\n%s", name, diff)
		}
	}
}

// On a box of one node, workers change nothing.
func TestFunctionsOfTestsAreKeptOnOneOfSeveralWorkers(t *testing.T) {
	for workers, want := range map[string]string{"": "", "w1 w2": "annotate --overwrite namespace default " + nodeSelectorAnnotation + "=kubernetes.io/hostname=w1\n"} {
		k, log := fakeKubectl(t, "")
		d := demo{namespace: "default", kubectl: k, workers: strings.Fields(workers)}
		if err := d.keepTogether(t.Context()); err != nil {
			t.Fatal(err)
		}
		calls, _ := os.ReadFile(log)
		if string(calls) != want {
			t.Errorf("with the workers %q: %q, want %q", workers, calls, want)
		}
		if patched := len(d.agentPatches()); (patched == 2) != (workers != "") {
			t.Errorf("with the workers %q the agents have %d patches", workers, patched)
		}
	}
}
