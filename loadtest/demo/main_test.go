package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestAnotherClusterIsTouchedOnlyAfterItsNameIsTyped(t *testing.T) {
	for answer, allowed := range map[string]bool{
		"production\n":   true,
		" production \n": true,
		"production":     true,
		"yes\n":          false,
		"\n":             false,
		"":               false,
	} {
		var said strings.Builder
		err := ask(strings.NewReader(answer), &said, "production", "libra-demo", "a while")
		if (err == nil) != allowed {
			t.Errorf("answer %q: got %v", answer, err)
		}
		if !strings.Contains(said.String(), "libra-demo") || !strings.Contains(said.String(), "for a while") {
			t.Errorf("the question does not say what changes: %s", said.String())
		}
	}
}

func TestNobodyAtATerminalIsNoConfirmation(t *testing.T) {
	pipe, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer pipe.Close()
	if _, err := w.WriteString("production\n"); err != nil {
		t.Fatal(err)
	}
	w.Close()
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	for _, in := range []*os.File{pipe, null} {
		if err := confirm(in, &strings.Builder{}, "production", "libra-demo", "a while"); err == nil {
			t.Errorf("%s: confirmed", in.Name())
		}
	}
}

func TestFlagsThatDoNotGoTogether(t *testing.T) {
	tool := filepath.Join(t.TempDir(), "tool")
	if err := os.WriteFile(tool, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		change func(o *options)
		want   []string // in the error; empty if there is none
	}{
		"the box":         {func(*options) {}, nil},
		"another cluster": {func(o *options) { o.kubeconfig, o.context = "", "production" }, nil},
		"no kubeconfig":   {func(o *options) { o.kubeconfig = "" }, []string{"--kubeconfig"}},
		"no images":       {func(o *options) { o.imagesFile = "" }, []string{"--images", "--push-to"}},
		"push to the box": {func(o *options) { o.imagesFile, o.pushTo = "", "example.org/libra" }, []string{"--push-to"}},
		"all at once":     {func(o *options) { o.kubeconfig, o.imagesFile = "", "" }, []string{"--kubeconfig", "--images"}},
		"no such tool":    {func(o *options) { o.kubectlPath = "/no/such/kubectl" }, []string{"/no/such/kubectl"}},
	} {
		o := options{kubeconfig: "box.kubeconfig", kubectlPath: tool, imagesFile: "images.json"}
		c.change(&o)
		d := newDemo(o, &strings.Builder{})
		err := d.resolve()
		if (err != nil) != (c.want != nil) {
			t.Errorf("%s: got %v", name, err)
		}
		for _, want := range c.want {
			if err != nil && !strings.Contains(err.Error(), want) {
				t.Errorf("%s: got %v, want an error that names %s", name, err, want)
			}
		}
	}
}

func TestTheEvaluationSaysWhatIsWrongWithItsFlags(t *testing.T) {
	for name, c := range map[string]struct {
		change func(o *options, e *evaluateOptions)
		want   []string // in the error; empty if there is none
	}{
		"as it is":        {func(*options, *evaluateOptions) {}, nil},
		"quick":           {func(_ *options, e *evaluateOptions) { e.quick = true }, nil},
		"ablations":       {func(_ *options, e *evaluateOptions) { e.ablations = true }, nil},
		"another cluster": {func(o *options, _ *evaluateOptions) { o.context = "production" }, []string{"--context", "box"}},
		"all at once": {func(_ *options, e *evaluateOptions) {
			e.parts, e.without, e.limit = []string{"speed"}, []string{"magic"}, time.Minute
		}, []string{"--parts", "speed", "bystanders", "--without", "magic", "no_limits", "--limit"}},
		"nothing":     {func(_ *options, e *evaluateOptions) { e.parts = nil }, []string{"nothing to measure"}},
		"one load":    {func(_ *options, e *evaluateOptions) { e.loads, e.blocks = []int{90}, 6 }, nil},
		"some pods":   {func(_ *options, e *evaluateOptions) { e.pods = []int{10, 20} }, []string{"--pods", "20", "[10 40]"}},
		"half a load": {func(_ *options, e *evaluateOptions) { e.loads, e.blocks = []int{50}, -1 }, []string{"--loads", "50", "[15 40 90 120]", "--blocks"}},
	} {
		o, eo := options{}, evaluateOptions{parts: evaluationParts, loads: evaluationLoads, pods: evaluationPods}
		c.change(&o, &eo)
		e := &evaluate{demo: newDemo(o, &strings.Builder{}), evaluateOptions: eo}
		err := e.check()
		if (err != nil) != (c.want != nil) {
			t.Errorf("%s: got %v", name, err)
		}
		for _, want := range c.want {
			if err != nil && !strings.Contains(err.Error(), want) {
				t.Errorf("%s: got %v, want an error that names %s", name, err, want)
			}
		}
	}
}

func TestTheBoxIsReachedWhateverTheEnvironmentSays(t *testing.T) {
	got := withoutMisleading([]string{"PATH=/bin", "KUBECONFIG=/production", "https_proxy=http://proxy", "HTTP_PROXY=http://proxy"})
	if len(got) != 1 || got[0] != "PATH=/bin" {
		t.Errorf("got %v", got)
	}
}
