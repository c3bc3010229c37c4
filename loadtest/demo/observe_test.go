package main

import (
	"context"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"

	"libra.dev/libra/loadtest/demo/report"
	"libra.dev/libra/loadtest/demo/schedule"
	"libra.dev/libra/pkg/api"
)

func TestObservationsAreJoinedByRequest(t *testing.T) {
	// As redis-cli --json prints a stream.
	const page = `[
["1-0",["v","1","data","{\"id\":\"libra-1-0\",\"lent\":{\"cpu_milli\":400,\"memory_bytes\":0},\"borrowed\":{\"cpu_milli\":0,\"memory_bytes\":0}}"]],
["2-0",["v","1","data","{\"id\":\"libra-1-1.x8k2\",\"borrowed\":{\"cpu_milli\":300}}"]],
["3-0",["v","1","data","{\"id\":\"libra-1-1\",\"borrowed\":{\"cpu_milli\":100}}"]],
["4-0",["v","1","data","{\"id\":\"somebody-else\",\"lent\":{\"cpu_milli\":900}}"]],
["5-0",["v","99","shape","unknown"]]
]`
	var entries []entry
	if err := json.Unmarshal([]byte(page), &entries); err != nil {
		t.Fatal(err)
	}
	found := map[string]api.Observation{}
	for _, e := range entries {
		if err := note(found, map[string]bool{"libra-1-0": true, "libra-1-1": true, "libra-1-2": true}, e); err != nil {
			t.Fatal(err)
		}
	}
	got := map[string]api.Resources{}
	for request, o := range found {
		got[request] = api.Resources{CPUMilli: o.Lent.CPUMilli - o.Borrowed.CPUMilli}
	}
	want := map[string]api.Resources{"libra-1-0": {CPUMilli: 400}, "libra-1-1": {CPUMilli: -300}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if entries[4].id != "5-0" {
		t.Errorf("the last entry is %s", entries[4].id)
	}
}

func TestAnObservationThatIsNoneIsAnError(t *testing.T) {
	err := note(nil, nil, entry{id: "7-0", fields: map[string]string{"v": "1", "data": "{"}})
	if err == nil || !strings.Contains(err.Error(), "7-0") {
		t.Errorf("got %v, want an error that names the entry", err)
	}
	var e entry
	if err := json.Unmarshal([]byte(`["8-0",["v"]]`), &e); err == nil || !strings.Contains(err.Error(), "8-0") {
		t.Errorf("got %v, want an error that names the entry", err)
	}
}

func TestLimitChanges(t *testing.T) {
	pod := func(name, function, limit string) string {
		return `{"type":"MODIFIED","object":{"metadata":{"name":"` + name + `","labels":{"serving.knative.dev/service":"` + function + `"}},
"spec":{"containers":[{"name":"queue-proxy"},{"name":"user-container","resources":{"limits":{"cpu":"` + limit + `"}}}]}}}`
	}
	events := strings.Join([]string{
		pod("u-1", "uploader", "700m"),
		pod("c-1", "compression", "500m"),
		pod("u-1", "uploader", "700m"), // something else changed
		pod("u-1", "uploader", "300m"),
		pod("c-1", "compression", "0.9"),
	}, "\n") + `{"type":"MODI` // stopped in the middle
	at := time.Unix(0, 0)
	got := limitChanges(strings.NewReader(events), func() time.Time { return at })
	want := []report.LimitChange{
		{At: at, Function: "uploader", Pod: "u-1", Limit: api.Resources{CPUMilli: 700}},
		{At: at, Function: "compression", Pod: "c-1", Limit: api.Resources{CPUMilli: 500}},
		{At: at, Function: "uploader", Pod: "u-1", Limit: api.Resources{CPUMilli: 300}},
		{At: at, Function: "compression", Pod: "c-1", Limit: api.Resources{CPUMilli: 900}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestRestartsSince(t *testing.T) {
	before := map[string]int{"a": 1, "gone": 3}
	after := map[string]int{"a": 2, "new": 1}
	if got := restartsSince(before, after); got != 2 {
		t.Errorf("got %d, want 2", got)
	}
}

func TestOwnLimits(t *testing.T) {
	container := func(name, cpu string) string {
		return `{"name":"` + name + `","resources":{"limits":{"cpu":"` + cpu + `","memory":"256Mi"}}}`
	}
	for name, c := range map[string]struct {
		asked, inForce string
		without        string   // the function without a pod
		want           []string // in the error; none when there is to be none
	}{
		"its own":            {asked: "700m", inForce: "0.7"},
		"asked for less":     {asked: "300m", inForce: "700m", want: []string{"uploader-1-pod", "300m", "700m"}},
		"not in force again": {asked: "700m", inForce: "900m", want: []string{"uploader-1-pod", "900m"}},
		"no pod":             {asked: "700m", inForce: "700m", without: "plain", want: []string{"plain has no pod"}},
	} {
		var revisions []servingv1.Revision
		var pods []corev1.Pod
		for _, f := range schedule.All {
			if f == c.without {
				continue
			}
			var revision servingv1.Revision
			var pod corev1.Pod
			if err := json.Unmarshal([]byte(`{"metadata":{"name":"`+f+`-1"},"spec":{"containers":[`+container("", "700m")+`]}}`), &revision); err != nil {
				t.Fatal(err)
			}
			asked, inForce := "700m", "700m"
			if f == "uploader" {
				asked, inForce = c.asked, c.inForce
			}
			if err := json.Unmarshal([]byte(`{"metadata":{"name":"`+f+`-1-pod","labels":{"serving.knative.dev/service":"`+f+`","serving.knative.dev/revision":"`+f+`-1"}},
				"spec":{"containers":[`+container("user-container", asked)+`,`+container("queue-proxy", "1")+`]},
				"status":{"containerStatuses":[`+container("user-container", inForce)+`]}}`), &pod); err != nil {
				t.Fatal(err)
			}
			revisions, pods = append(revisions, revision), append(pods, pod)
		}
		err := four.ownLimits(revisions, pods)
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

// fakeKubectl is a kubectl that logs its arguments and goes on with the script.
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
		keys      string // of Redis that there were to delete
		explain   string // what the predictor says of its functions
		restarted bool
		failed    bool
	}{
		"a new cluster":                            {"0", "exit 1", false, false},
		"observations of an earlier demo":          {"1", "exit 1", true, false},
		"functions that are known and not learned": {"2", `echo '{"functions":[{"name":"default/mst-1","stage":"profiling"}]}'`, true, false},
		"models, and they do not go":               {"2", `echo '{"functions":[{"name":"default/mst-1","stage":"modelled"}]}'`, true, true},
	} {
		k, log := fakeKubectl(t, `case "$*" in *redis-cli*) echo `+c.keys+`;; *--raw*) `+c.explain+`;; esac`)
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

func TestAWatchThatEndsTooEarlyIsAnError(t *testing.T) {
	const pod = `{"object":{"metadata":{"name":"u-1"},"spec":{"containers":[{"name":"user-container","resources":{"limits":{"cpu":"1"}}}]}}}`
	wait := func(path string) func() error {
		return func() error {
			return eventually(t.Context(), time.Minute, func(context.Context) error {
				_, err := os.Stat(path)
				return err
			})
		}
	}
	started := filepath.Join(t.TempDir(), "started")
	k, _ := fakeKubectl(t, "echo '"+pod+"'; touch "+started+"; exec sleep 60")
	d := demo{services: four, kubectl: k, out: io.Discard}
	changes, err := d.watchingLimits(t.Context(), wait(started))
	if err != nil || len(changes) != 1 {
		t.Errorf("got %v, %v; want one limit", changes, err)
	}
	refused := filepath.Join(t.TempDir(), "refused")
	d.kubectl, _ = fakeKubectl(t, "echo refused >&2; touch "+refused+"; exit 1")
	if _, err := d.watchingLimits(t.Context(), wait(refused)); err == nil || !strings.Contains(err.Error(), "refused") {
		t.Errorf("got %v, want an error that says why", err)
	}
}
