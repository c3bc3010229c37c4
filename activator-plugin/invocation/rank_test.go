package invocation

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"go.opentelemetry.io/otel/attribute"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	v1 "knative.dev/serving/pkg/apis/serving/v1"
	"pgregory.net/rapid"

	"libra.dev/libra/activator-plugin/predict"
	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/pool"
	"libra.dev/libra/pkg/pool/pooltest"
	"libra.dev/libra/pkg/settings"
)

// Begin by mode and source, for an invocation that could lend CPU and would borrow memory.
func TestRankedByModeAndSource(t *testing.T) {
	const cpuTime = 1400 * time.Millisecond
	prediction := predict.Prediction{Demand: res(300, 600), Duration: 2 * time.Second, CPUTime: cpuTime}
	owners := pool.Invocation{Surplus: res(600, 0), Want: res(0, 88), IdleCPUMilli: 900}
	for _, tc := range []struct {
		mode   api.Mode
		source api.Source
		want   pool.Invocation // what differs
		count  string
		// Whether the surplus, and what is wanted, are withheld.
		surplus, wanted string
	}{
		{api.ModeObserve, api.SourceOwners, pool.Invocation{}, "mode observed", "surplus true", "want true"},
		{api.ModeObserve, api.SourceNode, pool.Invocation{}, "mode observed", "surplus true", "want true"},
		{api.ModeLend, api.SourceOwners, pool.Invocation{Surplus: owners.Surplus, IdleCPUMilli: owners.IdleCPUMilli}, "mode donor", "surplus false", "want true"},
		{api.ModeLend, api.SourceNode, pool.Invocation{Ranked: true, CPUTime: cpuTime}, "true mode neither", "surplus true", "want true"},
		{api.ModeFull, api.SourceOwners, owners, "donor_and_borrower", "surplus false", "want false"},
		{api.ModeFull, api.SourceNode, pool.Invocation{Ranked: true, CPUTime: cpuTime, Want: owners.Want}, "true borrower", "surplus true", "want false"},
	} {
		t.Run(string(tc.mode)+" "+string(tc.source), func(t *testing.T) {
			rec := &recorder{}
			c := newChain(t, chainOptions{pool: rec, mode: tc.mode, source: tc.source, predictions: predictions{revID: prediction}})
			c.send(t, "hello")
			drain(t, c.manager.lifecycle)

			want := tc.want
			want.Function, want.Configuration, want.Pod, want.Domain, want.Owner = "ns/rev-00001", "ns/rev", "ns/a", "ns", "owner"
			want.Size, want.Allocation, want.MinRemaining = 5, res(1000, 512), 300*time.Millisecond
			want.Predicted, want.Duration, want.WithoutLoan = prediction.Demand, prediction.Duration, prediction.Duration
			if diff := cmp.Diff([]pool.Invocation{want}, rec.begins, cmpopts.IgnoreFields(pool.Invocation{}, "ID", "Number")); diff != "" {
				t.Error("Begin (-want, +got):\n" + diff)
			}
			if diff := cmp.Diff(map[string]int64{tc.count: 1}, c.counts(t, "libra.invocations")); diff != "" {
				t.Error("libra.invocations (-want, +got):\n" + diff)
			}
			took := rec.ends[0].Duration.Seconds()
			for name, volumes := range map[string]map[string]float64{
				"libra.invocations.cpu":    {tc.surplus: .6 * took, tc.wanted: 0},
				"libra.invocations.memory": {tc.surplus: 0, tc.wanted: 88 * mi * took},
			} {
				if diff := cmp.Diff(volumes, c.volumes(t, name), nearly); diff != "" {
					t.Error(name + " (-want, +got):\n" + diff)
				}
			}
		})
	}
}

// An invocation that may not lend is ranked all the same, by a prediction where one says
// anything.
func TestRankedWhateverMayNotLend(t *testing.T) {
	const cpuTime = 400 * time.Millisecond
	known := predictions{revID: {Demand: res(300, 100), Duration: time.Second, CPUTime: cpuTime}}
	concurrency := func(n *int64) func() chainOptions {
		return func() chainOptions {
			rev := newRevision()
			rev.Spec.ContainerConcurrency = n
			return chainOptions{predictions: known, rev: rev}
		}
	}
	onPod := func(change podOption) func() chainOptions {
		return func() chainOptions { return chainOptions{predictions: known, pods: []podOption{change}} }
	}
	for _, tc := range []struct {
		name    string
		options func() chainOptions
		headers []string
		count   string
		begun   bool
		asked   bool
		want    pool.Invocation // what is not the same in all
	}{
		{"donor of memory", concurrency(ptr.To[int64](1)), nil, "true donor", true, true,
			pool.Invocation{Ranked: true, CPUTime: cpuTime, Surplus: res(0, 384)}},
		{"several at a time", concurrency(ptr.To[int64](2)), nil, "true neither", true, true,
			pool.Invocation{Ranked: true, CPUTime: cpuTime, Concurrency: 2, Need: res(400, 128)}},
		{"any number at a time", concurrency(nil), nil, "true concurrency observed", true, true,
			pool.Invocation{Ranked: true, CPUTime: cpuTime}},
		{"any number at a time, by a 0", concurrency(ptr.To[int64](0)), nil, "true concurrency observed", true, true,
			pool.Invocation{Ranked: true, CPUTime: cpuTime}},
		{"no prediction", func() chainOptions { return chainOptions{} }, nil, "true no_prediction observed", true, true,
			pool.Invocation{Ranked: true}},
		{"any number at a time without a prediction", func() chainOptions {
			o := concurrency(nil)()
			o.predictions = nil
			return o
		}, nil, "true concurrency observed", true, true, pool.Invocation{Ranked: true}},
		{"a prediction without CPU time", func() chainOptions {
			return chainOptions{predictions: predictions{revID: {Demand: res(1000, 512), Duration: time.Second}}}
		}, nil, "true neither", true, true, pool.Invocation{Ranked: true}},
		{"cold start", onPod(func(p *corev1.Pod) {
			p.Status.ContainerStatuses[1].State.Running.StartedAt = metav1.NewTime(time.Now().Add(time.Minute))
		}), nil, "true cold_start observed", true, true, pool.Invocation{Ranked: true, CPUTime: cpuTime}},
		{"first in its container", func() chainOptions { return chainOptions{predictions: known, newPod: true} }, nil,
			"true first_in_container observed", true, true, pool.Invocation{Ranked: true, CPUTime: cpuTime}},
		{"no limits", onPod(func(p *corev1.Pod) { p.Spec.Containers[0].Resources.Limits = nil }), nil,
			"true no_limits observed", true, true, pool.Invocation{Ranked: true, CPUTime: cpuTime}},
		{"queue-proxy with limits", onPod(func(p *corev1.Pod) { p.Spec.Containers[1].Resources.Limits = res(100, 0).List() }), nil,
			"true queue_proxy_limits observed", true, true, pool.Invocation{Ranked: true, CPUTime: cpuTime}},
		{"upgrade", func() chainOptions { return chainOptions{predictions: known} }, []string{"Connection", "Upgrade", "Upgrade", "echo"},
			"true connection_upgraded observed", true, false, pool.Invocation{Ranked: true}},
		{"copy", func() chainOptions {
			rev := newRevision()
			rev.Labels[api.CopyOfLabel] = "original-00001"
			return chainOptions{predictions: known, rev: rev}
		}, nil, "true copy observed", true, false, pool.Invocation{Ranked: true}},
		{"pod not known", onPod(func(p *corev1.Pod) { p.Status.PodIPs = nil }), nil, "pod_unknown unmanaged", false, false, pool.Invocation{}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			rec := &recorder{}
			o := tc.options()
			o.pool, o.source = rec, api.SourceNode
			c := newChain(t, o)
			if status, _ := c.send(t, "hello", tc.headers...); status != http.StatusOK {
				t.Errorf("status = %d, want 200", status)
			}
			drain(t, c.manager.lifecycle)
			if diff := cmp.Diff(map[string]int64{tc.count: 1}, c.counts(t, "libra.invocations")); diff != "" {
				t.Error("libra.invocations (-want, +got):\n" + diff)
			}
			if asked := c.asked.Load() == 1; asked != tc.asked {
				t.Errorf("asked for a prediction: %v, want %v", asked, tc.asked)
			}
			if begun := len(rec.begins) == 1; begun != tc.begun {
				t.Fatalf("calls = %q, want it begun: %v", rec.calls, tc.begun)
			}
			if !tc.begun {
				return
			}
			got := rec.begins[0]
			got = pool.Invocation{
				Ranked: got.Ranked, CPUTime: got.CPUTime, Surplus: got.Surplus, Want: got.Want, Concurrency: got.Concurrency, Need: got.Need,
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Error("Begin (-want, +got):\n" + diff)
			}
		})
	}
}

// Requests that are over soon wake others only now and then. Each that does is ranked, so that
// the agent knows that what begins in the pod is reported to it.
func TestQuickRequestsAreSampled(t *testing.T) {
	const requests = samplesFirst + 30
	for name, test := range map[string]struct {
		cpuTime     time.Duration
		demand      api.Resources
		concurrency int64
		sampled     bool
	}{
		"quick":                          {cpuTime: pool.QuickCPU - 1, demand: res(1000, 512), concurrency: 1, sampled: true},
		"longer":                         {cpuTime: pool.QuickCPU, demand: res(1000, 512), concurrency: 1},
		"of unknown CPU time":            {demand: res(1000, 512), concurrency: 1},
		"quick, and could lend":          {cpuTime: 1, demand: res(100, 100), concurrency: 1, sampled: true},
		"quick, and needs more memory":   {cpuTime: 1, demand: res(1000, 1000), concurrency: 1},
		"quick, and could use more CPU":  {cpuTime: 1, demand: res(2000, 512), concurrency: 1, sampled: true},
		"quick, any number at once":      {cpuTime: 1, demand: res(1000, 512), sampled: true},
		"longer, any number at once":     {cpuTime: pool.QuickCPU, demand: res(1000, 512)},
		"quick, several at a time":       {cpuTime: 1, demand: res(1000, 100), concurrency: 2, sampled: true},
		"longer, several at a time":      {cpuTime: pool.QuickCPU, demand: res(1000, 100), concurrency: 2},
		"quick, several, of more memory": {cpuTime: 1, demand: res(1000, 1000), concurrency: 2},
	} {
		t.Run(name, func(t *testing.T) {
			rec := &recorder{}
			rev := newRevision()
			rev.Spec.ContainerConcurrency = &test.concurrency
			c := newChain(t, chainOptions{pool: rec, rev: rev, source: api.SourceNode, predictions: predictions{
				revID: {Demand: test.demand, Duration: time.Minute, CPUTime: test.cpuTime},
			}})
			for range requests {
				if status, _ := c.send(t, "hello"); status != http.StatusOK {
					t.Fatalf("status = %d, want 200", status)
				}
			}
			drain(t, c.manager.lifecycle)
			counts := c.counts(t, "libra.invocations")
			if begun, skipped := int64(len(rec.begins)), counts["sampled unmanaged"]; begun+skipped != requests {
				t.Errorf("%d begun and %d sampled out (%v), want %d in all", begun, skipped, counts, requests)
			} else if test.sampled != (skipped > 0) || begun < samplesFirst {
				t.Errorf("%d begun and %d sampled out, want sampling: %t", begun, skipped, test.sampled)
			}
			for _, inv := range rec.begins {
				if !inv.Ranked || inv.CPUTime != test.cpuTime {
					t.Fatalf("Begin has Ranked %t and CPUTime %v, want true and %v", inv.Ranked, inv.CPUTime, test.cpuTime)
				}
			}
		})
	}
}

// A container that has to start up takes longer than its first request.
func TestShortRequestIsRankedWhenItsContainerStarts(t *testing.T) {
	rec := &recorder{}
	c := newChain(t, chainOptions{pool: rec, newPod: true, source: api.SourceNode, predictions: predictions{
		revID: {Demand: res(300, 100), Duration: time.Second, CPUTime: time.Millisecond},
	}})
	c.send(t, "hello")
	drain(t, c.manager.lifecycle)
	if inv := rec.begins[0]; !inv.Ranked || inv.CPUTime != time.Millisecond {
		t.Errorf("Begin has Ranked %t and CPUTime %v, want true and 1ms", inv.Ranked, inv.CPUTime)
	}
}

// An invocation passes for alone unless one that was not reported to the pool was in its pod.
func TestUntoldInvocationsAreNotOverlooked(t *testing.T) {
	rec, known := &recorder{}, predictions{}
	m := newRankingManager(t, rec, fixed{mode: api.ModeFull, source: api.SourceNode}, known, newPod("a", "10.0.0.1"))
	rev := newRevision()
	rev.Spec.ContainerConcurrency = new(int64)
	begin := func(cpuTime time.Duration) (end func(int)) {
		known[revID] = predict.Prediction{Demand: res(1000, 512), Duration: time.Minute, CPUTime: cpuTime}
		req := newRequest(rev)
		return m.dispatch(t.Context(), req, revID, "10.0.0.1:80", false)
	}
	for range samplesFirst + 2 {
		begin(1)(200)
	}
	for name, test := range map[string]struct {
		run  func()
		late bool
	}{
		"before":             {func() { begin(1)(200); begin(time.Second)(200) }, false},
		"after":              {func() { begin(time.Second)(200); begin(1)(200) }, false},
		"when it begins":     {func() { untold, told := begin(1), begin(time.Second); untold(200); told(200) }, true},
		"while it runs":      {func() { told := begin(time.Second); begin(1)(200); told(200) }, true},
		"when it ends":       {func() { told, untold := begin(time.Second), begin(1); told(200); untold(200) }, true},
		"from first to last": {func() { untold := begin(1); begin(time.Second)(200); untold(200) }, true},
	} {
		m.lifecycle.running.Wait()
		rec.begins, rec.ends = nil, nil
		test.run()
		m.lifecycle.running.Wait()
		if len(rec.begins) != 1 || len(rec.ends) != 1 || rec.ends[0].Late != test.late {
			t.Errorf("%s: %d Begins, Ends %+v; want one of each, late: %t", name, len(rec.begins), rec.ends, test.late)
		}
	}
}

// A pod gets back what it has lent when its next request comes, although that one need not be
// reported otherwise.
func TestWhatIsStillLentIsGivenBackToQuickRequests(t *testing.T) {
	for name, test := range map[string]struct {
		memory int64 // MiB that the request before was predicted to use
		told   bool
	}{
		"the one before lends":        {100, true},
		"the one before lent nothing": {512, false},
	} {
		t.Run(name, func(t *testing.T) {
			rec, known := &recorder{}, predictions{}
			m := newRankingManager(t, rec, fixed{mode: api.ModeFull, source: api.SourceNode}, known, newPod("a", "10.0.0.1"))
			send := func(memory int64, cpuTime time.Duration) {
				known[revID] = predict.Prediction{Demand: res(1000, memory), Duration: time.Minute, CPUTime: cpuTime}
				dispatchOnce(m, newRevision(), "10.0.0.1:80")
			}
			for range samplesFirst + 2 {
				send(512, 1)
			}
			m.lifecycle.running.Wait()
			rec.begins, rec.ends = nil, nil
			send(test.memory, time.Second) // its End waits for a Begin
			send(512, 1)
			drain(t, m.lifecycle)
			if told := len(rec.begins) == 2; told != test.told {
				t.Errorf("%d Begins, %q; want the second request told of: %t", len(rec.begins), rec.calls, test.told)
			}
		})
	}
}

// places are settings whose source depends on where a pod is.
type places map[[2]string]api.Source

func (p places) For(namespace string) settings.Settings   { return full.For(namespace) }
func (p places) Source(namespace, node string) api.Source { return p[[2]string{namespace, node}] }
func (places) Placement() api.Placement                   { return api.PlacementDefault }

func TestSourceIsThatOfNamespaceAndNodeOfThePod(t *testing.T) {
	where := places{{"ns", "node-a"}: api.SourceNode, {"ns", "node-b"}: api.SourceOwners}
	rec := &recorder{}
	m := newRankingManager(t, rec, where, predictions{revID: {Demand: res(300, 100), Duration: time.Second, CPUTime: time.Second}},
		newPod("a", "10.0.0.1"), newPod("b", "10.0.0.2", func(p *corev1.Pod) { p.Spec.NodeName = "node-b" }))
	for _, dest := range []string{"10.0.0.1:80", "10.0.0.2:80"} {
		dispatchOnce(m, newRevision(), dest)
	}
	drain(t, m.lifecycle)
	for _, inv := range rec.begins {
		if want := inv.Pod == "ns/a"; inv.Ranked != want {
			t.Errorf("in %s Ranked is %t, want %t", inv.Pod, inv.Ranked, want)
		}
	}
	if len(rec.begins) != 2 {
		t.Errorf("calls = %q, want two Begins", rec.calls)
	}
}

// Two invocations that differ only in their source have the same memory, unless one that is
// over soon or has others in its pod could lend it. CPU is lent and borrowed only under
// owners, and only under node is an invocation ranked.
func TestSourcesDifferInCPUAlone(t *testing.T) {
	rec, settings, known := &recorder{}, fixed{}, predictions{}
	m := newRankingManager(t, rec, settings, known, newPod("a", "10.0.0.1"))
	pod, ok := m.pods.find("10.0.0.1", revID, api.UserContainer)
	if !ok {
		t.Fatal("the pod is not found")
	}
	rapid.Check(t, func(t *rapid.T) {
		concurrency := rapid.Int64Range(0, 3).Draw(t, "concurrency")
		rev := newRevision()
		rev.Spec.ContainerConcurrency = &concurrency
		settings.mode = rapid.SampledFrom([]api.Mode{api.ModeObserve, api.ModeLend, api.ModeFull}).Draw(t, "mode")
		prediction := predict.Prediction{
			Demand:   res(rapid.Int64Range(0, 2000).Draw(t, "cpu"), rapid.Int64Range(0, 1000).Draw(t, "MiB")),
			Duration: time.Duration(rapid.Int64Range(0, 2000).Draw(t, "ms")) * time.Millisecond,
			CPUTime:  time.Duration(rapid.SampledFrom([]int64{0, 1, 49_999, 50_000, 500_000}).Draw(t, "cpu µs")) * time.Microsecond,
		}
		clear(known)
		if rapid.IntRange(0, 3).Draw(t, "known") > 0 {
			known[revID] = prediction
		}
		served := rapid.IntRange(0, 3).Draw(t, "served") > 0

		begun := map[api.Source]pool.Invocation{}
		for _, settings.source = range []api.Source{api.SourceOwners, api.SourceNode} {
			m.settings = settings
			clear(m.pods.served)
			if served {
				m.pods.noteServed(pod)
			}
			rec.begins = nil
			dispatchOnce(m, rev, "10.0.0.1:8012")
			m.lifecycle.running.Wait()
			if len(rec.begins) != 1 {
				t.Fatalf("source %s: %d Begins, want one", settings.source, len(rec.begins))
			}
			begun[settings.source] = rec.begins[0]
		}

		owners, node := begun[api.SourceOwners], begun[api.SourceNode]
		if owners.Ranked || owners.CPUTime != 0 {
			t.Errorf("of owners, Ranked is %t and CPUTime %v", owners.Ranked, owners.CPUTime)
		}
		if settings.mode == api.ModeObserve {
			if diff := cmp.Diff(owners, node, cmpopts.IgnoreFields(pool.Invocation{}, "ID", "Number")); diff != "" {
				t.Error("In observe the source makes a difference (-owners, +node):\n" + diff)
			}
			return
		}
		if node.Surplus.CPUMilli != 0 || node.Want.CPUMilli != 0 || node.IdleCPUMilli != 0 || node.WantMostMilli != 0 {
			t.Errorf("of the node, Begin is %+v, with CPU in it", node)
		}
		if !node.Ranked || node.CPUTime != known[revID].CPUTime {
			t.Errorf("of the node, Ranked is %t and CPUTime %v, want true and that of %+v", node.Ranked, node.CPUTime, known)
		}
		quick := served && known[revID].CPUTime > 0 && prediction.CPUTime < pool.QuickCPU && owners.Want.MemoryBytes == 0
		if quick || concurrency > 1 {
			owners.Surplus = api.Resources{}
		}
		owners.Surplus.CPUMilli, owners.Want.CPUMilli, owners.IdleCPUMilli, owners.WantMostMilli = 0, 0, 0, 0
		if diff := cmp.Diff(owners, node, cmpopts.IgnoreFields(pool.Invocation{}, "ID", "Number", "Ranked", "CPUTime")); diff != "" {
			t.Error("The source makes a difference (-owners, +node):\n" + diff)
		}
	})
	drain(t, m.lifecycle)
}

// The node's agent finds in the pool's state whatever was reported to the pool.
func TestRankedIsInTheState(t *testing.T) {
	p := pooltest.NewMemory(clock.RealClock{})
	m := newRankingManager(t, p, fixed{mode: api.ModeFull, source: api.SourceNode},
		predictions{revID: {Demand: res(1000, 512), Duration: time.Second, CPUTime: 700 * time.Millisecond}}, newPod("a", "10.0.0.1"))
	end := m.dispatch(t.Context(), newRequest(newRevision()), revID, "10.0.0.1:8012", false)
	inFlight := func() map[string][]pool.Flight {
		state, err := p.Read(t.Context(), "node-a")
		if err != nil {
			t.Fatal("Read() =", err)
		}
		return state.InFlight
	}
	waitFor(t, "the Begin", func() bool { return len(inFlight()) > 0 })
	want := map[string][]pool.Flight{"ns/a": {{CPUTime: 700 * time.Millisecond}}}
	if diff := cmp.Diff(want, inFlight(), cmpopts.IgnoreFields(pool.Flight{}, "ID", "Age")); diff != "" {
		t.Error("In flight (-want, +got):\n" + diff)
	}
	end(http.StatusOK)
	drain(t, m.lifecycle)
	if got := inFlight(); len(got) != 0 {
		t.Errorf("after the End there is in flight %v", got)
	}
}

func TestSpanSaysWhatIsRanked(t *testing.T) {
	for _, ranked := range []bool{true, false} {
		spans, provider := newSpans()
		l := newTestLifecycle(t, &recorder{}, clock.RealClock{})
		l.tracer = newTracer(provider)
		inv := invocationIn("ns/a", "1")
		inv.Trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
		if inv.Ranked = ranked; ranked {
			inv.CPUTime = 1500 * time.Microsecond
		}
		l.start(revID, "node-a", inv).finish(200)
		drain(t, l)
		got := map[attribute.Key]any{}
		for _, kv := range spans.Ended()[0].Attributes() {
			got[kv.Key] = kv.Value.AsInterface()
		}
		wantTime := 0.
		if ranked {
			wantTime = 1.5
		}
		if got["libra.ranked"] != ranked || got["libra.predicted.cpu_time_ms"] != wantTime {
			t.Errorf("attributes %v, want libra.ranked %t and libra.predicted.cpu_time_ms %v", got, ranked, wantTime)
		}
	}
}

// newRankingManager has pods in which an invocation has ended.
func newRankingManager(t *testing.T, p pool.Pool, settings Settings, known predictions, pods ...*corev1.Pod) *Manager {
	t.Helper()
	var objects []runtime.Object
	for _, pod := range pods {
		objects = append(objects, pod)
	}
	m, err := NewManager(Options{
		Clock:         clock.RealClock{},
		Logger:        zap.NewNop().Sugar(),
		MeterProvider: sdkmetric.NewMeterProvider(),
		Pool:          p,
		Predictor:     known,
		Pods:          runPods(t, objects...),
		Owner:         "owner",
		Settings:      settings,
	})
	if err != nil {
		t.Fatal("NewManager() =", err)
	}
	m.lifecycle.beginTimeout, m.lifecycle.lateAfter = testTimeout, testTimeout
	for _, pod := range pods {
		found, ok := m.pods.find(pod.Status.PodIPs[0].IP, revID, api.UserContainer)
		if !ok {
			t.Fatalf("pod %s is not found", pod.Name)
		}
		m.pods.noteServed(found)
	}
	return m
}

func newRequest(rev *v1.Revision) *request {
	return &request{rev: rev, arrived: time.Now(), size: 7, response: &statusWriter{ResponseWriter: httptest.NewRecorder()}}
}

// dispatchOnce is a request that is answered at once.
func dispatchOnce(m *Manager, rev *v1.Revision, dest string) {
	if end := m.dispatch(context.Background(), newRequest(rev), revID, dest, false); end != nil {
		end(http.StatusOK)
	}
}
