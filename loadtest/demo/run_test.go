package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"libra.dev/libra/loadtest/demo/evaluation"
	"libra.dev/libra/loadtest/functions/inputs"
	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/kubectl/swap"
)

// Each load is measured under each arm at least twice if there is time, and the plan fits
// into the time.
func TestADemoFitsIntoItsTime(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limit := time.Duration(rapid.Int64Range(int64(demoTime), int64(demoLonger)).Draw(t, "limit"))
		p := demoPlan(limit)
		if takes := demoPace.opening + p.takes() + demoPace.closing; takes > limit+p.takes()/demoBlocks {
			t.Errorf("%v of %v", takes, limit)
		}
		for _, c := range p[0].combinations {
			if c.length%(2*burstPhase) != 0 {
				t.Errorf("blocks of %v have not as much of rest as of burst", c.length)
			}
			for _, turn := range c.arms {
				if turn.blocks < demoBlocks {
					t.Errorf("%s has %d blocks under %s", c, turn.blocks, turn.arm)
				}
			}
		}
	})
	takes := demoPace.opening + demoPlan(demoTime).takes() + demoPace.closing
	if t.Logf("a demo takes %v", takes); takes > demoTime+30*time.Second {
		t.Errorf("a demo takes %v; what it has no time for should be the exception", takes)
	}
}

// A demo that is slower than expected has fewer blocks of everything. It leaves out a load
// only if there is no time for one more block of it.
func TestADemoThatIsShortOfTimeHasFewerBlocks(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		whole := demoPlan(demoLonger)[0]
		number := rapid.IntRange(1, whole.most()).Draw(t, "number")
		left := time.Duration(rapid.Int64Range(0, int64(demoLonger)).Draw(t, "left"))
		before := whole.from(number).takes()
		got := whole.from(number).shortened(left)
		if whole.from(number).takes() != before {
			t.Error("the plan has changed, too")
		}
		if takes := got.takes(); takes > left && got.most() > number || takes > before {
			t.Errorf("%d blocks more take %v of %v", got.most()-number+1, takes, left)
		}
		for _, c := range got.combinations {
			for _, turn := range c.arms {
				if turn.blocks < number || turn.blocks != got.most() {
					t.Errorf("from block %d on, %s has %d under %s, and others %d", number, c, turn.blocks, turn.arm, got.most())
				}
			}
		}
	})
}

// The demo lends what the node has idle, as an installed Libra does: its functions have the
// default source.
func TestTheDemoIsOfLibraAsItIsInstalled(t *testing.T) {
	ph := demoPlan(demoTime)[0]
	var names []string
	for _, a := range ph.arms() {
		names = append(names, a.Name)
		if a.source != "" || a.parts != (parts{}) || a.queue != "" {
			t.Errorf("%s is not as it is installed: %+v", a.Name, a)
		}
	}
	if !slices.Equal(names, []string{evaluation.Stock, evaluation.Again, evaluation.Libra, evaluation.NoLimits}) {
		t.Errorf("it compares %q", names)
	}
	for name, s := range render(t, phaseDemo, armNamed(evaluation.Libra), "") {
		if got := s.Spec.Template.Annotations[api.ModeAnnotation]; got != string(api.ModeFull) {
			t.Errorf("%s has the mode %q: without the cluster's, nothing would be lent", name, got)
		}
	}
}

func TestTheDemosNamespacesAreItsOwn(t *testing.T) {
	all := demoNamespaces()
	if !slices.Equal(all, []string{"libra-demo-stock", "libra-demo", "libra-demo-no-limits", "libra-demo-bystander"}) {
		t.Errorf("got %q", all)
	}
	for namespace, want := range map[string]bool{
		"evaluation-stock": true, "evaluation-memory-vpa": true, "libra-demo": true, "libra-demo-stock": true,
		"default": false, "libra-system": false, "libra-demonstration": false, "knative-serving": false,
	} {
		if isPlace(namespace) != want {
			t.Errorf("%s may be removed: %v", namespace, !want)
		}
	}
}

// A repeated demo finds Libra's functions of the one before.
func TestOnlyWhatIsNotKeptIsRemoved(t *testing.T) {
	const list = `{"items":[{"metadata":{"name":"default"}},{"metadata":{"name":"evaluation-stock"}},{"metadata":{"name":"libra-demo"}},{"metadata":{"name":"libra-system"}}]}`
	for name, c := range map[string]struct {
		keep []string
		want []string
	}{
		"a demo":        {demoNamespaces(), []string{"evaluation-stock"}},
		"an evaluation": {nil, []string{"evaluation-stock", "libra-demo"}},
	} {
		k, log := fakeKubectl(t, `case "$*" in *" namespaces") echo '`+list+`';; *pods*) echo '{"items":[]}';; esac`)
		d := demo{kubectl: k, out: io.Discard}
		if err := d.clear(t.Context(), c.keep...); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		calls, err := os.ReadFile(log)
		if err != nil {
			t.Fatal(err)
		}
		var removed []string
		for l := range strings.Lines(string(calls)) {
			if strings.HasPrefix(l, "delete ") {
				removed = append(removed, strings.TrimSpace(l[strings.LastIndex(l, "/")+1:]))
			}
		}
		if !slices.Equal(removed, c.want) {
			t.Errorf("%s removes %q, want %q", name, removed, c.want)
		}
	}
}

func TestTheDemoLeavesTheBoxWithLibraAndAnotherClusterAsItWas(t *testing.T) {
	stock := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: swap.Namespace, Name: swap.Name}}
	stock.Spec.Template.Spec.Containers = []corev1.Container{{Name: swap.Container, Image: "stock"}}
	for name, c := range map[string]struct {
		context        string
		removed, stays []string
	}{
		"the box":         {"", []string{"libra-demo-stock", "libra-demo-bystander"}, []string{"namespace/libra-demo\n", "manifests"}},
		"another cluster": {"production", []string{"libra-demo-stock", "libra-demo-bystander", "libra-demo\n", "manifests/base", "manifests/activator"}, nil},
	} {
		k, log := fakeKubectl(t, `case "$*" in *"get "*) echo '{"items":[]}';; esac`)
		d := newDemo(options{context: c.context}, io.Discard)
		d.kube = fake.NewClientBuilder().WithObjects(stock).Build()
		e := newEvaluation(d, namespaceOf(phaseDemo, evaluation.Libra))
		e.kubectl = k
		for _, namespace := range demoNamespaces() {
			own := *d
			own.namespace, own.kubectl = namespace, k
			e.places[namespace] = &own
		}
		if err := e.leave(t.Context()); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		calls, err := os.ReadFile(log)
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range c.removed {
			if !strings.Contains(string(calls), want) {
				t.Errorf("%s: %q stays:\n%s", name, want, calls)
			}
		}
		for _, unwanted := range c.stays {
			if strings.Contains(string(calls), unwanted) {
				t.Errorf("%s: %q does not stay:\n%s", name, unwanted, calls)
			}
		}
	}
}

// On another cluster a namespace may be stuck, and the activator that was there may take minutes to drain.
// Libra is removed all the same.
func TestTheDemoLeavesNoLibraOnAStuckCluster(t *testing.T) {
	stock := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: swap.Namespace, Name: swap.Name}}
	stock.Spec.Template.Spec.Containers = []corev1.Container{{Name: swap.Container, Image: "stock"}}
	k, log := fakeKubectl(t, `case "$*" in
*"get "*) echo '{"items":[{"metadata":{"name":"activator-1","deletionTimestamp":"2026-01-01T00:00:00Z"}}]}';;
*--wait=false*) ;;
*namespace/*) exit 1;;
esac`)
	d := newDemo(options{context: "production"}, io.Discard)
	d.kube = fake.NewClientBuilder().WithObjects(stock).Build()
	e := newEvaluation(d, namespaceOf(phaseDemo, evaluation.Libra))
	e.kubectl = k
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if err := e.cleanUp(ctx); err == nil {
		t.Error("the namespaces are stuck, and nobody is told")
	}
	calls, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	for _, namespace := range demoNamespaces() {
		want = append(want, "delete --ignore-not-found --wait=false namespace/"+namespace+"\n")
	}
	at := -1
	for _, call := range append(want, "delete --ignore-not-found -k "+libraManifests, "wait --for=delete namespace/"+strings.Join(demoNamespaces(), " namespace/")) {
		next := strings.Index(string(calls), call)
		if next <= at {
			t.Errorf("%q comes too early, or not at all:\n%s", call, calls)
		}
		at = next
	}
}

func TestTheTimeOfADemoIsBounded(t *testing.T) {
	for limit, ok := range map[time.Duration]bool{time.Minute: false, demoTime: true, time.Hour: true, 2 * time.Hour: false} {
		if err := checkDemoLimit(limit); (err == nil) != ok || err != nil && !strings.Contains(err.Error(), "--limit") {
			t.Errorf("%v: got %v", limit, err)
		}
	}
}

// answering starts a gateway whose functions answer right, and returns its URL.
func answering(t *testing.T, p pool) string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		for _, in := range p[r.Host] {
			if bytes.Equal(in.Body, body) {
				fmt.Fprintf(w, `{"did":{"n":%d}}`, in.Expect["n"])
				return
			}
		}
		w.WriteHeader(http.StatusNotFound)
	}))
	t.Cleanup(server.Close)
	return server.URL
}

// On another cluster, whose cgroups are not on this machine, blocks are measured without
// them, beside somebody else's service.
func TestABlockOnAnotherCluster(t *testing.T) {
	p := pool{}
	for _, f := range []string{"mst", plainFunction} {
		for n := range 3 {
			p[f] = append(p[f], inputs.Input{Body: fmt.Appendf(nil, "%s %d", f, n), Expect: map[string]int64{"n": int64(n)}})
		}
	}
	gateway := answering(t, p)
	d := newDemo(options{context: "production"}, io.Discard)
	d.targets = targets{gateway: gateway, hosts: map[string]string{"mst": "mst", plainFunction: plainFunction}}
	e := newEvaluation(d, "libra-demo")
	alone, err := e.measureAlone(t.Context(), d, p, []string{"mst"})
	if err != nil {
		t.Fatal(err)
	}
	if len(alone) != 3 || alone[0].Milliseconds <= 0 || alone[0].CPUMilliseconds != 0 {
		t.Errorf("alone: %+v", alone)
	}
	m, err := d.openMeter(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer m.close()
	s := &scene{functions: []string{"mst"}, sets: 1, pool: p, plain: p[plainFunction], bystander: d}
	c := combination{part: evaluation.PartDemo, load: 40, pods: 10, length: time.Second}
	var b evaluation.Block
	schedule := arrivals(1, 50, c.length, callees{s.functions, 1, 3})
	if err := e.send(t.Context(), s, c, d, m, schedule, &b); err != nil {
		t.Fatal(err)
	}
	if len(b.Requests) != len(schedule) || failures(b.Requests) > 0 {
		t.Errorf("%d of %d requests, the first error: %s", len(b.Requests), len(schedule), firstError(b.Requests))
	}
	if b.Bystander == nil || len(b.Bystander.Requests) == 0 || failures(b.Bystander.Requests) > 0 {
		t.Errorf("bystander: %+v", b.Bystander)
	}
	if b.CPU != (evaluation.Usage{}) {
		t.Errorf("it has read %+v, which is this machine's", b.CPU)
	}
}

// The report of the measurements can be written again, with the failures.
func TestTheDemosReportIsWrittenAgain(t *testing.T) {
	dir := t.TempDir()
	data := evaluation.Data{Arms: []evaluation.Arm{{Name: evaluation.Stock, Title: "stock"}, {Name: evaluation.Libra, Title: "Libra"}}}
	for _, arm := range []string{evaluation.Stock, evaluation.Libra} {
		data.Blocks = append(data.Blocks, evaluation.Block{Part: evaluation.PartDemo, Load: 40, Pods: 10, Number: 1, Arm: arm, Length: demoBlock,
			Requests: []evaluation.Request{{Function: "mst", Milliseconds: 5, Status: 200}}, Bystander: &evaluation.Bystander{Requests: []evaluation.Request{{Error: "status 503"}}}})
	}
	if err := data.WriteFile(filepath.Join(dir, evaluation.DataFile)); err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	d := newDemo(options{outDir: dir}, &out)
	if err := reportAgain(d, writeDemo); err != nil || !strings.Contains(out.String(), "40 % busy") {
		t.Errorf("got %v, and:\n%s", err, out.String())
	}
	e := newEvaluation(d, "libra-demo")
	e.data = data
	if err := e.lastWords(); err == nil || !strings.Contains(err.Error(), "failed requests: 2") {
		t.Errorf("got %v", err)
	}
}

// Libra learns the four functions from inputs that no test sends them.
func TestTheFourAreTaught(t *testing.T) {
	d := newDemo(options{}, io.Discard)
	lessons := d.fourLessons()
	if len(lessons) != len(four.optedIn) {
		t.Fatalf("%d lessons", len(lessons))
	}
	p := pool{}
	for _, l := range lessons {
		if len(l.inputs) < 15 {
			t.Errorf("%s has %d inputs", l.service, len(l.inputs))
		}
		for n, in := range l.inputs {
			if len(in.Body) == 0 || len(in.Expect) == 0 {
				t.Errorf("input %d of %s is empty", n, l.service)
			}
		}
		p[l.service] = []inputs.Input{{Body: l.inputs[0].Body, Expect: map[string]int64{"n": 1}}}
	}
	d.targets = targets{gateway: answering(t, p), hosts: map[string]string{}}
	for i := range lessons {
		d.targets.hosts[lessons[i].service] = lessons[i].service
		lessons[i].inputs = p[lessons[i].service]
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if n, failed, err := teach(ctx, lessons, learnAtOnce); err != nil || int(n) != len(lessons) || failed != 0 {
		t.Errorf("%d were answered, and %d failed: %v", n, failed, err)
	}
}
