package invocation

import (
	"context"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/attribute"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	activatorhandler "knative.dev/serving/pkg/activator/handler"
	v1 "knative.dev/serving/pkg/apis/serving/v1"

	"libra.dev/libra/activator-plugin/placement"
	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/pool"
)

// placing is a manager of revID, which has a pod on each node.
type placing struct {
	*Manager
	metrics *sdkmetric.ManualReader
	client  *fake.Clientset
	rec     *recorder
}

const ipA, ipB = "10.0.0.1", "10.0.0.2"

func newPlacing(t *testing.T, settings Settings, programs placement.Programs, pods ...*corev1.Pod) placing {
	t.Helper()
	var objects []runtime.Object
	for _, pod := range pods {
		objects = append(objects, pod)
	}
	p := placing{metrics: sdkmetric.NewManualReader(), client: fake.NewClientset(objects...), rec: &recorder{}}
	var err error
	p.Manager, err = NewManager(Options{
		Clock:         clock.RealClock{},
		Logger:        zap.NewNop().Sugar(),
		MeterProvider: sdkmetric.NewMeterProvider(sdkmetric.WithReader(p.metrics)),
		Pool:          p.rec,
		Predictor:     predictions{},
		Pods:          runPodsOf(t, p.client),
		Owner:         "owner",
		Settings:      settings,
		Programs:      programs,
	})
	if err != nil {
		t.Fatal("NewManager() =", err)
	}
	t.Cleanup(func() { drain(t, p.lifecycle) })
	if len(pods) > 1 {
		waitFor(t, "the pods", p.Slots().Of(revID, 1).HasChoice)
	}
	return p
}

func onNode(node string) podOption { return func(p *corev1.Pod) { p.Spec.NodeName = node } }

// send is where a request goes that Knative sends to dest.
func (p placing) send(t *testing.T, rev *v1.Revision, dest string, isClusterIP bool) (got string) {
	t.Helper()
	throttler := p.Throttler(oneDest{dest: dest, clusterIP: isClusterIP})
	ctx := context.WithValue(t.Context(), requestKey{}, newRequest(rev))
	if err := throttler.Try(ctx, revID, func(dest string, _ bool) error {
		got = dest
		return nil
	}); err != nil {
		t.Fatal("Try() =", err)
	}
	return got
}

// With the policy hash all go to one pod, whichever Knative picks.
func TestRequestsGoWhereThePolicySays(t *testing.T) {
	p := newPlacing(t, fixed{mode: api.ModeFull, source: api.SourceOwners, placement: api.PlacementHash}, nil,
		newPod("a", ipA, onNode("node-a")), newPod("b", ipB, onNode("node-b")))
	home := p.send(t, newRevision(), ipA+":8012", false)
	if got := p.send(t, newRevision(), ipB+":8012", false); got != home {
		t.Errorf("one goes to %s, another to %s", home, got)
	}
	if diff := cmp.Diff(map[string]int64{"kept hash": 1, "moved hash": 1}, values[int64](t, p.metrics, "libra.placement.choices")); diff != "" {
		t.Error("libra.placement.choices (-want, +got):\n" + diff)
	}
	drain(t, p.lifecycle)
	for _, inv := range p.rec.begins {
		if want := map[string]string{ipA + ":8012": "ns/a", ipB + ":8012": "ns/b"}[home]; inv.Pod != want {
			t.Errorf("the pool is told of %s, want %s", inv.Pod, want)
		}
	}
}

// While a pod is busy, the choice is among the others. A slot is free again however its request ends.
func TestSlotsAreGivenBack(t *testing.T) {
	p := newPlacing(t, fixed{mode: api.ModeFull, source: api.SourceOwners, placement: api.PlacementHash}, nil,
		newPod("a", ipA, onNode("node-a")), newPod("b", ipB, onNode("node-b")))
	home := p.send(t, newRevision(), ipA+":8012", false)
	throttler := p.Throttler(oneDest{dest: home})
	ctx := context.WithValue(t.Context(), requestKey{}, newRequest(newRevision()))
	func() {
		defer func() {
			if recover() == nil {
				t.Error("the panic is lost")
			}
		}()
		throttler.Try(ctx, revID, func(dest string, _ bool) error {
			if got := p.send(t, newRevision(), home, false); got == home {
				t.Errorf("%s has a request, and gets another", home)
			}
			panic(http.ErrAbortHandler)
		})
	}()
	if got := p.send(t, newRevision(), home, false); got != home {
		t.Errorf("after that it goes to %s, want %s", got, home)
	}
}

// Knative's pick stays for requests that placement is not for.
func TestKnativesPickStays(t *testing.T) {
	revision := func(change func(*v1.Revision)) *v1.Revision {
		rev := newRevision()
		change(rev)
		return rev
	}
	two := []*corev1.Pod{newPod("a", ipA, onNode("node-a")), newPod("b", ipB, onNode("node-b"))}
	elsewhere := programs{"": only("node-z")} // refuses each request that it is asked about
	for name, tc := range map[string]struct {
		settings  fixed
		rev       *v1.Revision
		clusterIP bool
		programs  placement.Programs
		pods      []*corev1.Pod
	}{
		"lend":                     {programs: elsewhere, settings: fixed{mode: api.ModeLend}},
		"observe":                  {programs: elsewhere, settings: fixed{mode: api.ModeObserve}},
		"observe, by annotation":   {programs: elsewhere, rev: revision(func(r *v1.Revision) { r.Annotations[api.ModeAnnotation] = "observe" })},
		"stock":                    {settings: fixed{mode: api.ModeFull, placement: api.PlacementStock}},
		"any number at a time":     {programs: elsewhere, rev: revision(func(r *v1.Revision) { r.Spec.ContainerConcurrency = ptr.To[int64](0) })},
		"a copy":                   {programs: elsewhere, rev: revision(func(r *v1.Revision) { r.Labels[api.CopyOfLabel] = "original" })},
		"ClusterIP":                {programs: elsewhere, clusterIP: true},
		"one pod":                  {pods: two[:1]},
		"one pod that is ready":    {pods: []*corev1.Pod{two[0], newPod("b", ipB, unready)}},
		"one pod that does not go": {pods: []*corev1.Pod{two[0], newPod("b", ipB, terminating)}},
	} {
		t.Run(name, func(t *testing.T) {
			if tc.settings == (fixed{}) {
				tc.settings = full
			}
			if tc.rev == nil {
				tc.rev = newRevision()
			}
			p := newPlacing(t, tc.settings, tc.programs, two...)
			if tc.pods != nil {
				p = newPlacing(t, tc.settings, nil, tc.pods[0])
				for _, pod := range tc.pods[1:] {
					if _, err := p.client.CoreV1().Pods(pod.Namespace).Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
						t.Fatal(err)
					}
					waitFor(t, "the pod", func() bool { _, ok := p.pods.find(ipB, revID, api.UserContainer); return ok })
				}
			}
			for range 2 {
				for _, ip := range []string{ipA, ipB} {
					if got := p.send(t, tc.rev, ip+":8012", tc.clusterIP); got != ip+":8012" {
						t.Errorf("it goes to %s, not to %s", got, ip)
					}
				}
			}
			if got := values[int64](t, p.metrics, "libra.placement.choices"); len(got) != 0 {
				t.Errorf("choices are counted: %v", got)
			}
		})
	}
}

func unready(p *corev1.Pod) { p.Status.Conditions[0].Status = corev1.ConditionFalse }

func terminating(p *corev1.Pod) {
	p.DeletionTimestamp = ptr.To(metav1.NewTime(time.Now()))
	p.Finalizers = []string{"test"}
}

// programs has one program for each tag of the namespace ns.
type programs map[string]placement.Program

func (p programs) Of(namespace, tag string) placement.Program {
	if program, ok := p[tag]; ok && namespace == "ns" {
		return program
	}
	return nil
}

// only allows the pods of one node.
type only string

func (o only) Place(_ *placement.Query, candidates []placement.Candidate) (index, block int) {
	for i, c := range candidates {
		if c.Node == string(o) {
			return i, 2
		}
	}
	return -1, 0
}

func (only) RefusedBy(namespace string) string {
	return "PlacementPolicy " + namespace + "/default (generation 3)"
}

// A program decides for the functions with its tag, also of a single pod, and others go by the setting.
func TestProgramsComeFirst(t *testing.T) {
	tagged := newRevision()
	tagged.Labels[api.PlacementLabel] = "b-only"
	p := newPlacing(t, fixed{mode: api.ModeFull, placement: api.PlacementStock}, programs{"b-only": only("node-b")},
		newPod("a", ipA, onNode("node-a")), newPod("b", ipB, onNode("node-b")))
	if got := p.send(t, tagged, ipA+":8012", false); got != ipB+":8012" {
		t.Errorf("it goes to %s, want where its program says", got)
	}
	if got := p.send(t, newRevision(), ipA+":8012", false); got != ipA+":8012" {
		t.Errorf("one without a tag goes to %s", got)
	}
	if diff := cmp.Diff(map[string]int64{"moved placement_policy": 1}, values[int64](t, p.metrics, "libra.placement.choices")); diff != "" {
		t.Error("libra.placement.choices (-want, +got):\n" + diff)
	}
}

// A request that a program refuses is answered with the reason, takes no slot, and is not reported to the pool.
func TestRefusedByAProgram(t *testing.T) {
	rev := newRevision()
	rev.Labels[api.PlacementLabel] = "elsewhere"
	rec := &recorder{}
	c := newChain(t, chainOptions{pool: rec, rev: rev, programs: programs{"elsewhere": only("node-z")}})
	req, err := http.NewRequest(http.MethodGet, c.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := c.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	const want = "placement: no node that PlacementPolicy ns/default (generation 3) allows has a pod of the function with a free slot"
	if got := resp.Header.Get(api.ReasonHeader); resp.StatusCode != http.StatusServiceUnavailable || got != want {
		t.Errorf("%d, %s: %q; want 503 with %q", resp.StatusCode, api.ReasonHeader, got, want)
	}
	drain(t, c.manager.lifecycle)
	if len(rec.calls) != 0 {
		t.Errorf("the pool is told %q", rec.calls)
	}
	delete(rev.Labels, api.PlacementLabel)
	if status, _ := c.send(t, "hello"); status != http.StatusOK {
		t.Errorf("the next one has %d, want 200", status)
	}
}

// Its trace says where a request went and why.
func TestPlacementIsTraced(t *testing.T) {
	rev := newRevision()
	rev.Labels[api.PlacementLabel] = "b-only"
	p := newPlacing(t, full, programs{"b-only": only("node-b")},
		newPod("a", ipA, onNode("node-a")), newPod("b", ipB, onNode("node-b")))
	spans, provider := newSpans()
	ctx, span := provider.Tracer("test").Start(t.Context(), "throttler_try")
	ctx = context.WithValue(ctx, requestKey{}, newRequest(rev))
	if err := p.Throttler(oneDest{dest: ipA + ":8012"}).Try(ctx, revID, func(string, bool) error {
		span.End()
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	got := map[attribute.Key]any{}
	for _, kv := range spans.Ended()[0].Attributes() {
		got[kv.Key] = kv.Value.AsInterface()
	}
	if diff := cmp.Diff(map[attribute.Key]any{
		"libra.placement.policy": "placement_policy", "libra.placement.outcome": "moved", "libra.placement.candidates": int64(2),
		"libra.placement.moved": true, "libra.placement.node": "node-b", "libra.placement.block": int64(2),
	}, got); diff != "" {
		t.Error("Attributes (-want, +got):\n" + diff)
	}
}

// After a request was moved to a pod that does not answer, no other is moved there for a while.
func TestAPodThatDoesNotAnswerGetsNoMore(t *testing.T) {
	p := newPlacing(t, fixed{mode: api.ModeFull, source: api.SourceOwners, placement: api.PlacementHash}, nil,
		newPod("a", ipA, onNode("node-a")), newPod("b", ipB, onNode("node-b")))
	home := p.send(t, newRevision(), ipA+":8012", false)
	other := map[string]string{ipA + ":8012": ipB + ":8012", ipB + ":8012": ipA + ":8012"}[home]
	req := newRequest(newRevision())
	if err := p.Throttler(oneDest{dest: other}).Try(context.WithValue(t.Context(), requestKey{}, req), revID, func(dest string, _ bool) error {
		if dest != home {
			t.Errorf("it goes to %s, want %s", dest, home)
		}
		req.response.WriteHeader(http.StatusBadGateway)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if got := p.send(t, newRevision(), other, false); got != other {
		t.Errorf("the next one goes to %s as well", got)
	}
	if got := p.send(t, newRevision(), home, false); got != home {
		t.Errorf("one that Knative sends there goes to %s", got)
	}
}

// A node may drop the packets to a pod. Dialing then takes longer than most clients wait, and a client that goes away says
// nothing about the pod, unless there was no connection to it for long.
func TestAPodThatCannotBeConnectedToGetsNoMore(t *testing.T) {
	for _, tc := range []struct {
		name      string
		connects  bool
		patience  time.Duration
		goesThere bool
	}{
		{"no connection", false, unreachedAfter + 100*time.Millisecond, false},
		{"no connection yet", false, 50 * time.Millisecond, true},
		{"a slow answer", true, unreachedAfter + 100*time.Millisecond, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			p := newPlacing(t, fixed{mode: api.ModeFull, source: api.SourceOwners, placement: api.PlacementHash}, nil,
				newPod("a", ipA, onNode("node-a")), newPod("b", ipB, onNode("node-b")))
			home := p.send(t, newRevision(), ipA+":8012", false)
			other := map[string]string{ipA + ":8012": ipB + ":8012", ipB + ":8012": ipA + ":8012"}[home]
			over := make(chan struct{}) // a transport goes on dialing after its request
			defer close(over)
			transport := &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) {
				if tc.connects {
					here, there := net.Pipe()
					go io.Copy(io.Discard, there) // it ends with the connection
					return here, nil
				}
				<-over
				return nil, net.ErrClosed
			}}
			sent := false
			h := &handler{p.Manager, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if err := p.Throttler(oneDest{dest: other}).Try(r.Context(), revID, func(dest string, _ bool) error {
					sent = dest == home
					proxy := &httputil.ReverseProxy{Transport: transport, ErrorLog: log.New(io.Discard, "", 0),
						Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(&url.URL{Scheme: "http", Host: dest}) }}
					proxy.ServeHTTP(w, r)
					return nil
				}); err != nil {
					t.Error("Try() =", err)
				}
			})}
			ctx, cancel := context.WithTimeout(t.Context(), tc.patience)
			defer cancel()
			r := httptest.NewRequestWithContext(activatorhandler.WithRevisionAndID(ctx, newRevision(), revID), http.MethodGet, "http://example.com/", nil)
			h.ServeHTTP(httptest.NewRecorder(), r)
			if !sent {
				t.Fatalf("the request did not go to %s", home)
			}
			if got := p.send(t, newRevision(), other, false); (got == home) != tc.goesThere {
				t.Errorf("the next one goes to %s; home is %s", got, home)
			}
		})
	}
}

// A pod that breaks off a response was reached. It also counts as reached if something else panics before the
// response.
func TestAPodThatBreaksOffItsResponseGetsMore(t *testing.T) {
	p := newPlacing(t, fixed{mode: api.ModeFull, source: api.SourceOwners, placement: api.PlacementHash}, nil,
		newPod("a", ipA, onNode("node-a")), newPod("b", ipB, onNode("node-b")))
	home := p.send(t, newRevision(), ipA+":8012", false)
	other := map[string]string{ipA + ":8012": ipB + ":8012", ipB + ":8012": ipA + ":8012"}[home]
	for _, status := range []int{0, http.StatusOK, http.StatusBadGateway} {
		req := newRequest(newRevision())
		func() {
			defer func() { recover() }()
			p.Throttler(oneDest{dest: other}).Try(context.WithValue(t.Context(), requestKey{}, req), revID, func(string, bool) error {
				if status != 0 {
					req.response.WriteHeader(status)
				}
				panic(http.ErrAbortHandler)
			})
		}()
		if got := p.send(t, newRevision(), other, false); got != home {
			t.Errorf("after a panic with the status %d the next one goes to %s", status, got)
		}
	}
}

// granting is a pool that grants each request the same CPU.
type granting struct {
	*recorder
	cpuMilli int64
}

func (g granting) Begin(ctx context.Context, node string, inv pool.Invocation) (api.Resources, error) {
	_, err := g.recorder.Begin(ctx, node, inv)
	return api.Resources{CPUMilli: g.cpuMilli}, err
}

func (g granting) BeginAfter(ctx context.Context, node string, ended []pool.Ending, inv pool.Invocation) ([]pool.Outcome, api.Resources, error) {
	outcomes, _, err := g.recorder.BeginAfter(ctx, node, ended, inv)
	return outcomes, api.Resources{CPUMilli: g.cpuMilli}, err
}

// lending has the profile of one node, which lends this much CPU, and of no other.
type lending struct {
	node     string
	cpuMilli int64
}

func (l lending) ReadProfiles(context.Context, pool.Moments) ([]pool.Changes, error) {
	now := time.Now()
	return []pool.Changes{{Now: now, Profiles: []pool.Profile{{
		Node: l.node, Heard: now, Open: true,
		Domains: map[string]pool.DomainProfile{"ns": {Lends: []pool.Step{{Volume: api.Resources{CPUMilli: l.cpuMilli}}}}},
	}}}}, nil
}

// A request that can be accelerated goes where the picture has the most for it. The amount it was promised is
// counted beside the amount it got. The picture is debited at once, also with one pod only.
func TestPromisedAndGranted(t *testing.T) {
	provider := sdkmetric.NewMeterProvider()
	picture, err := placement.NewPicture(placement.PictureOptions{
		Profiles: lending{"node-b", 500}, Clock: clock.RealClock{}, Logger: zap.NewNop().Sugar(), MeterProvider: provider,
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		picture.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	view := picture.View("node-b", "ns")
	demand := placement.Demand{Want: api.Resources{CPUMilli: 1000}, Duration: time.Second}
	waitFor(t, "the picture", func() bool {
		_, known := view.Coverage(api.SourceOwners, demand, time.Now())
		return known
	})

	pods := []*corev1.Pod{newPod("a", ipA, onNode("node-a")), newPod("b", ipB, onNode("node-b"))}
	known := predictions{revID: {Demand: res(2000, 500), Duration: time.Second, CPUTime: 2 * time.Second}}
	for _, pods := range [][]*corev1.Pod{pods, pods[1:]} {
		reader := sdkmetric.NewManualReader()
		var objects []runtime.Object
		for _, pod := range pods {
			objects = append(objects, pod)
		}
		m, err := NewManager(Options{
			Clock: clock.RealClock{}, Logger: zap.NewNop().Sugar(), MeterProvider: sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)),
			Pool: granting{&recorder{}, 400}, Predictor: known, Pods: runPodsOf(t, fake.NewClientset(objects...)), Owner: "owner",
			Settings: full, Views: picture,
		})
		if err != nil {
			t.Fatal(err)
		}
		waitFor(t, "the pods", func() bool {
			_, ok := m.pods.find(ipB, revID, api.UserContainer)
			return ok && (len(pods) == 1 || m.Slots().Of(revID, 1).HasChoice())
		})
		// The first request in a container is not predicted.
		b, _ := m.pods.find(ipB, revID, api.UserContainer)
		m.pods.noteServed(b)
		knatives := ipA + ":8012"
		if len(pods) == 1 {
			knatives = ipB + ":8012"
		}
		p := placing{Manager: m, metrics: reader}
		if got := p.send(t, newRevision(), knatives, false); got != ipB+":8012" {
			t.Errorf("it goes to %s, want where something is lent", got)
		}
		drain(t, m.lifecycle)
		got := values[float64](t, reader, "libra.placement.cpu")
		if len(pods) == 1 {
			if len(got) != 0 {
				t.Errorf("with one pod there is no promise, and there is %v", got)
			}
			continue
		}
		// 500 of the 1000 that it wants, for a second.
		if promised := got["promised"]; promised < 0.499 || promised > 0.501 || got["granted"] != 0.4 {
			t.Errorf("libra.placement.cpu is %v, want 0.5 promised and 0.4 granted", got)
		}
	}
}
