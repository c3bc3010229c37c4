package agent

import (
	"context"
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/testr"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	tracenoop "go.opentelemetry.io/otel/trace/noop"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"knative.dev/serving/pkg/apis/serving"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	logf "sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/pool"
	"libra.dev/libra/pkg/settings"
	"libra.dev/libra/resizer/cgroup"
	"libra.dev/libra/resizer/cgroup/cgrouptest"
)

// flightPool is a pool in which a test sets what is in flight.
type flightPool struct {
	noPool
	woken chan struct{}

	mu     sync.Mutex
	flying map[string][]ranking
}

func (p *flightPool) Read(context.Context, string) (pool.State, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	state := pool.State{Epoch: "e", InFlight: map[string][]pool.Flight{}}
	for pod, flights := range p.flying {
		for _, f := range flights {
			state.InFlight[pod] = append(state.InFlight[pod], pool.Flight{ID: f.id(), Age: time.Since(f.at), CPUTime: f.cpuTime})
		}
	}
	return state, nil
}

func (p *flightPool) Next(ctx context.Context) (pool.Events, error) {
	select {
	case <-p.woken:
		return pool.Events{Changed: true}, nil
	case <-ctx.Done():
		return pool.Events{}, ctx.Err()
	}
}

func (p *flightPool) Observe(context.Context, api.Observation) error { return nil }

func (p *flightPool) set(flying map[string][]ranking) {
	p.mu.Lock()
	p.flying = flying
	p.mu.Unlock()
	signal(p.woken)
}

// fixedLending has settings that a test sets.
type fixedLending struct {
	mode    api.Mode
	source  api.Source
	protect api.Protect
	change  func()
	unread  atomic.Bool // the cluster's settings are not known yet
}

func (l *fixedLending) Synced() bool                     { return !l.unread.Load() }
func (l *fixedLending) For(string) settings.Settings     { return l.Settings() }
func (l *fixedLending) Source(string, string) api.Source { return l.source }
func (l *fixedLending) OnChange(f func())                { l.change = f }
func (l *fixedLending) Settings() settings.Settings {
	return settings.Settings{Mode: l.mode, MaxMode: api.ModeFull, Source: l.source, Protect: l.protect, CPUReserveMilli: 200}
}

// littleLimits is less than a busy pod uses on the slowest machine, so that the pod is owed
// nothing.
var littleLimits = api.Resources{CPUMilli: 50}

// nodeOfTwo is the pods' node, which has two cores for them.
func nodeOfTwo() *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "n1"},
		Status:     corev1.NodeStatus{Allocatable: api.Resources{CPUMilli: 2000}.List()},
	}
}

// weighedSite is a node with pods of a Revision in this machine's own cgroups.
type weighedSite struct {
	testing.TB
	pool    *flightPool
	lending *fixedLending
	journal string
	made    []*cgrouptest.Container
	tracker *Tracker
}

const ownWeight = 100

func newWeighedSite(t testing.TB, pods int) *weighedSite {
	t.Helper()
	s := &weighedSite{
		TB: t, pool: &flightPool{woken: make(chan struct{}, 1)}, journal: t.TempDir(),
		lending: &fixedLending{mode: api.ModeLend, source: api.SourceNode},
	}
	first := cgrouptest.New(t)
	for i := range pods {
		made := first
		if i > 0 {
			made = first.Beside()
		}
		made.Write(fmt.Sprint(ownWeight), made.PodFile("cpu.shares", "cpu.weight"))
		s.made = append(s.made, made)
	}
	return s
}

func (s *weighedSite) name(i int) string { return fmt.Sprintf("default/p%d", i) }

func revisionOf(limits api.Resources) *servingv1.Revision {
	r := &servingv1.Revision{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "f-00001", UID: "u1"}}
	r.Spec.Containers = []corev1.Container{{Resources: corev1.ResourceRequirements{Limits: limits.List()}}}
	return r
}

// agent makes an agent that knows the pods.
func (s *weighedSite) agent() *Agent {
	s.Helper()
	options, err := ManagerOptions("n1")
	if err != nil {
		s.Fatal(err)
	}
	builder := fake.NewClientBuilder().WithScheme(options.Scheme).WithObjects(revisionOf(littleLimits), nodeOfTwo())
	for i, made := range s.made {
		pod := podRunning(made.ID)
		pod.Name = fmt.Sprintf("p%d", i)
		pod.Labels = map[string]string{serving.RevisionLabelKey: "f-00001", serving.RevisionUID: "u1"}
		pod.Spec.Containers[1].Resources.Limits = littleLimits.List()
		builder = builder.WithObjects(pod)
	}
	kube := builder.Build()
	own := Settings{Node: "n1", CgroupRoot: s.made[0].Root, JournalDir: s.journal, ProcRoot: "/proc", SampleLowered: 10 * time.Millisecond}
	a, tracker, err := New(clock.RealClock{}, kube, kube, s.lending, own,
		Redis{Pool: s.pool, Watcher: s.pool, Observer: s.pool}, sdkmetric.NewMeterProvider(), tracenoop.NewTracerProvider())
	if err != nil {
		s.Fatal(err)
	}
	s.tracker = tracker
	s.reconcile()
	return a
}

// run runs functions of an agent until they are stopped.
func (s *weighedSite) run(run func(ctx context.Context) error) (stop func()) {
	return runPart(s.TB, run)
}

// runPart runs a part until the test ends or stop is called.
func runPart(tb testing.TB, run func(ctx context.Context) error) (stop func()) {
	tb.Helper()
	log := logr.Discard()
	if t, ok := tb.(*testing.T); ok {
		log = testr.New(t)
	}
	ctx, cancel := context.WithCancel(logf.IntoContext(tb.Context(), log))
	ended := make(chan error, 1)
	go func() { ended <- run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			tb.Error(err)
		}
	})
	tb.Cleanup(stop)
	return stop
}

func (s *weighedSite) reconcile() {
	s.Helper()
	for i := range s.made {
		name := types.NamespacedName{Namespace: "default", Name: fmt.Sprintf("p%d", i)}
		if _, err := s.tracker.Reconcile(s.Context(), reconcile.Request{NamespacedName: name}); err != nil {
			s.Fatal(err)
		}
	}
}

// weights returns the weights in the kernel.
func (s *weighedSite) weights() []int64 {
	s.Helper()
	weights := make([]int64, len(s.made))
	for i, made := range s.made {
		if _, err := fmt.Sscan(cgrouptest.Line(s, made.PodFile("cpu.shares", "cpu.weight")), &weights[i]); err != nil {
			s.Fatal(err)
		}
	}
	return weights
}

func (s *weighedSite) until(what string, ok func(weights []int64) bool) {
	s.Helper()
	deadline := time.Now().Add(time.Minute)
	for !ok(s.weights()) {
		if time.Now().After(deadline) {
			s.Fatalf("%s: not so, weights are %v", what, s.weights())
		}
		time.Sleep(time.Millisecond)
	}
}

func allOwn(weights []int64) bool {
	for _, w := range weights {
		if w != ownWeight {
			return false
		}
	}
	return true
}

// Weights reach the kernel with a Begin, follow use, and are the kubelet's again once the
// agent has stopped.
func TestKernelWeights(t *testing.T) {
	s := newWeighedSite(t, 3)
	stop := s.run(s.agent().Start)
	s.pool.set(map[string][]ranking{s.name(0): {{at: time.Now(), cpuTime: ms(10)}}, s.name(1): {{at: time.Now(), cpuTime: time.Hour}}})
	s.until("the short one first", func(w []int64) bool { return w[0] > 140 && w[1] < 60 && w[2] == ownWeight && w[0]+w[1] <= 2*ownWeight })
	s.made[0].Start(t).Do("burn")
	s.until("the short one was not short", func(w []int64) bool { return w[0] < w[1] })
	s.until("a weight written by another is written again", func() func(w []int64) bool {
		s.made[1].Write(fmt.Sprint(ownWeight), s.made[1].PodFile("cpu.shares", "cpu.weight"))
		return func(w []int64) bool { return w[1] > ownWeight }
	}())
	stop()
	if w := s.weights(); !allOwn(w) {
		t.Errorf("weights are %v after the agent has stopped", w)
	}
	if left, err := filepath.Glob(filepath.Join(s.journal, "*"+weightSuffix)); err != nil || len(left) > 0 {
		t.Errorf("the journal has %v, %v", left, err)
	}
}

// A pod in which no request is seen counts as in flight by the CPU that it uses.
func TestKernelWeightsOfWhatIsNotSeen(t *testing.T) {
	s := newWeighedSite(t, 2)
	s.run(s.agent().Start)
	s.pool.set(map[string][]ranking{s.name(0): {{at: time.Now(), cpuTime: time.Hour}}})
	s.made[1].Start(t).Do("burn")
	s.until("in flight", func(w []int64) bool { return w[0] != ownWeight && w[1] != ownWeight && w[0]+w[1] <= 2*ownWeight })
}

// An agent that dies leaves weights behind, and the next one gives them back.
func TestKernelWeightsAfterADeath(t *testing.T) {
	s := newWeighedSite(t, 2)
	a := s.agent()
	if err := a.lockJournal(t.Context()); err != nil {
		t.Fatal(err)
	}
	die := s.run(func(ctx context.Context) error {
		var running sync.WaitGroup
		for _, part := range []func(context.Context){a.watch, a.link.run, a.reflex.run} {
			running.Go(func() { part(ctx) })
		}
		running.Wait()
		return a.reflex.journal.close() // as the kernel does
	})
	s.pool.set(map[string][]ranking{s.name(0): {{at: time.Now(), cpuTime: ms(10)}}, s.name(1): {{at: time.Now(), cpuTime: time.Hour}}})
	weighed := func(w []int64) bool { return w[0] > 140 && w[1] < 60 }
	s.until("weighed", weighed)
	die()
	if w := s.weights(); !weighed(w) {
		t.Fatalf("weights are %v after the death, so nothing is to be given back", w)
	}
	s.pool.set(nil)
	s.run(s.agent().Start)
	s.until("given back", allOwn)
	if left, err := filepath.Glob(filepath.Join(s.journal, "*"+weightSuffix)); err != nil || len(left) > 0 {
		t.Errorf("the journal has %v, %v", left, err)
	}
}

// The settings decide whether weights change, and may change at any time.
func TestKernelWeightsFollowSettings(t *testing.T) {
	s := newWeighedSite(t, 2)
	s.run(s.agent().Start)
	s.pool.set(map[string][]ranking{s.name(0): {{at: time.Now(), cpuTime: ms(10)}}, s.name(1): {{at: time.Now(), cpuTime: time.Hour}}})
	weighed := func(w []int64) bool { return w[0] > 140 && w[1] < 60 }
	s.until("weighed", weighed)
	s.lending.mode = api.ModeObserve
	s.reconcile()
	s.until("observed", allOwn)
	s.lending.mode = api.ModeFull
	s.reconcile()
	s.until("weighed again", weighed)
	s.lending.source = api.SourceOwners
	s.reconcile()
	s.until("of the owners", allOwn)
}

// BenchmarkKernelWeighRound measures a round of the reflex with 40 pods in flight, most of
// whose weights change. There are ten in a second.
func BenchmarkKernelWeighRound(b *testing.B) {
	r, s := benchmarkedReflex(b)
	flying := [2]map[string][]pool.Flight{{}, {}}
	for i := range s.made {
		flying[0][s.name(i)] = []pool.Flight{{ID: "even", CPUTime: ms(int64(i+1) * 10)}}
		flying[1][s.name(i)] = []pool.Flight{{ID: "odd", CPUTime: ms(int64(len(s.made)-i) * 10)}}
	}
	n := 0
	b.ReportAllocs()
	for b.Loop() {
		n++
		now := time.Now()
		r.learn(news{state: pool.State{Epoch: "e", InFlight: flying[n%2]}, asked: now})
		r.weighAt = now
		r.round(b.Context())
	}
}

// BenchmarkKernelBegin measures a Begin and an End beside 39 pods in flight.
func BenchmarkKernelBegin(b *testing.B) {
	r, s := benchmarkedReflex(b)
	flying := [2]map[string][]pool.Flight{{}, {}}
	for i := range s.made {
		flying[1][s.name(i)] = []pool.Flight{{ID: "long", CPUTime: time.Hour}}
		if i > 0 {
			flying[0][s.name(i)] = flying[1][s.name(i)]
		}
	}
	n := 0
	begun := time.Now()
	b.ReportAllocs()
	for b.Loop() {
		n++
		now := time.Now()
		for _, flights := range flying[1] {
			flights[0].Age = now.Sub(begun)
		}
		r.learn(news{state: pool.State{Epoch: "e", InFlight: flying[n%2]}, asked: now})
		r.round(b.Context())
	}
}

func benchmarkedReflex(b *testing.B) (*reflex, *weighedSite) {
	s := newWeighedSite(b, 40)
	r := s.agent().reflex
	var err error
	if r.journal, err = openJournal(s.journal, logr.Discard(), r.metrics.journalErrors); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { r.journal.close() }) //nolint:errcheck // the benchmark ends
	r.follow(b.Context())
	return r, s
}

// BenchmarkKernelSampleIdle measures a round of sampling of 40 containers that do nothing.
func BenchmarkKernelSampleIdle(b *testing.B) {
	s := newWeighedSite(b, 40)
	var all []*container
	for _, m := range s.made {
		c, err := cgroup.Open(m.Root, m.ID)
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { c.Close() }) //nolint:errcheck // it was only read
		all = append(all, &container{id: m.ID, cgroup: c})
	}
	b.ReportAllocs()
	for b.Loop() {
		for _, c := range all {
			if _, err := c.sample(time.Now); err != nil {
				b.Fatal(err)
			}
		}
	}
}
