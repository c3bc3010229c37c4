package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/redis/go-redis/v9"
	"go.opentelemetry.io/otel/attribute"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	tracenoop "go.opentelemetry.io/otel/trace/noop"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/pool"
	"libra.dev/libra/pkg/pool/redistest"
	"libra.dev/libra/pkg/redisconn"
	"libra.dev/libra/resizer/actuate"
	"libra.dev/libra/resizer/cgroup"
	"libra.dev/libra/resizer/cgroup/cgrouptest"
)

const id = "8d3c0f5a9b"

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// answer is what Next returns.
type answer struct {
	pool.Events
	err error
}

type scriptedWatcher struct {
	answers chan answer
	skipped int64
}

func (w *scriptedWatcher) Next(ctx context.Context) (pool.Events, error) {
	select {
	case a := <-w.answers:
		return a.Events, a.err
	case <-ctx.Done():
		return pool.Events{}, ctx.Err()
	}
}

func (w *scriptedWatcher) Skipped() int64 { return w.skipped }

type observerFunc func(context.Context, api.Observation) error

func (f observerFunc) Observe(ctx context.Context, o api.Observation) error { return f(ctx, o) }

// noPool is a pool in which nothing ever happens.
type noPool struct{}

func (noPool) Read(context.Context, string) (pool.State, error)                { return pool.State{}, nil }
func (noPool) Heartbeat(context.Context, string, pool.Heartbeat) (bool, error) { return false, nil }
func (noPool) Safeguard(context.Context, string, string, bool) (int64, error)  { return 0, nil }
func (noPool) Ask(context.Context, string, string, int64) error                { return nil }
func (noPool) Next(ctx context.Context) (pool.Events, error) {
	<-ctx.Done()
	return pool.Events{}, ctx.Err()
}
func (noPool) Skipped() int64 { return 0 }

func newTestAgent(t *testing.T, clk clock.WithTicker, kube client.Reader, root string, watcher Watcher, observer Observer) (*Agent, *Tracker, *sdkmetric.ManualReader) {
	t.Helper()
	reader := sdkmetric.NewManualReader()
	settings := Settings{Node: "n1", CgroupRoot: root, JournalDir: t.TempDir(), ProcRoot: "/proc", SampleLowered: 10 * time.Millisecond}
	redis := Redis{Pool: noPool{}, Watcher: watcher, Observer: observer}
	if p, ok := observer.(*pool.Redis); ok {
		redis.Pool, redis.Watcher = p, p.Watch("n1")
	}
	a, tracker, err := New(clk, kube, kube, &fixedLending{mode: api.ModeObserve}, settings, redis, sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)), tracenoop.NewTracerProvider())
	if err != nil {
		t.Fatal(err)
	}
	return a, tracker, reader
}

// results counts invocations by result.
func results(t *testing.T, reader sdkmetric.Reader) map[string]int64 {
	t.Helper()
	var data metricdata.ResourceMetrics
	if err := reader.Collect(t.Context(), &data); err != nil {
		t.Fatal(err)
	}
	counts := map[string]int64{}
	for _, scope := range data.ScopeMetrics {
		for _, m := range scope.Metrics {
			if m.Name != "libra.agent.invocations" {
				continue
			}
			for _, p := range m.Data.(metricdata.Sum[int64]).DataPoints {
				v, _ := p.Attributes.Value(attribute.Key("result"))
				counts[v.AsString()] = p.Value
			}
		}
	}
	return counts
}

func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	err := wait.PollUntilContextTimeout(t.Context(), 2*time.Millisecond, 30*time.Second, true,
		func(context.Context) (bool, error) { return condition(), nil })
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

func podRunning(containerID string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p"},
		Spec: corev1.PodSpec{NodeName: "n1", Containers: []corev1.Container{
			{Name: api.QueueProxyContainer},
			{Name: "renamed", Ports: []corev1.ContainerPort{{Name: "user-port"}}},
		}},
		Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{
			{Name: api.QueueProxyContainer, ContainerID: "containerd://other", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}},
			{Name: "renamed", ContainerID: "containerd://" + containerID, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}},
		}},
	}
}

// setByLibra returns the managed fields of a pod in which Libra set limits of a container.
func setByLibra(container string, limits ...string) []metav1.ManagedFieldsEntry {
	owned := map[string]struct{}{}
	for _, limit := range limits {
		owned["f:"+limit] = struct{}{}
	}
	text, err := json.Marshal(owned)
	if err != nil {
		panic(err)
	}
	return []metav1.ManagedFieldsEntry{
		{Manager: "vpa", Subresource: "resize"},
		{Manager: actuate.FieldManager, Subresource: "resize", FieldsV1: &metav1.FieldsV1{Raw: fmt.Appendf(nil,
			`{"f:spec":{"f:containers":{"k:{\"name\":\"%s\"}":{"f:resources":{"f:limits":%s}}}}}`, container, text)}},
	}
}

// withFields gives a pod managed fields. The fake client knows of no subresources there.
func withFields(obj client.Object, fields []metav1.ManagedFieldsEntry) error {
	if pod, ok := obj.(*corev1.Pod); ok {
		pod.ManagedFields = fields
	}
	return nil
}

func TestRecorded(t *testing.T) {
	pod := podRunning(id)
	if recorded(pod, "renamed") {
		t.Error("recorded, of a pod that nobody resized")
	}
	pod.ManagedFields = setByLibra("renamed", "cpu")
	if !recorded(pod, "renamed") || recorded(pod, "another") {
		t.Error("not recorded, or of another container")
	}
}

func TestTracker(t *testing.T) {
	const second = "second"
	files := cgrouptest.V2(filepath.Join("kubepods", id))
	for name, text := range cgrouptest.V2(filepath.Join("kubepods", second)) {
		files[name] = text
	}
	pod := podRunning(id)
	kube := fake.NewClientBuilder().WithObjects(pod).Build()
	a, tracker, _ := newTestAgent(t, clock.RealClock{}, kube, cgrouptest.Tree(t, files), nil, nil)
	follow := func() error {
		_, err := tracker.Reconcile(t.Context(), reconcile.Request{NamespacedName: types.NamespacedName{Namespace: "default", Name: "p"}})
		return err
	}
	tracked := func() string {
		if c := a.containers.get("default/p"); c != nil {
			return c.id
		}
		return ""
	}
	set := func(containerID string, state corev1.ContainerState) {
		t.Helper()
		pod.Status.ContainerStatuses[1].ContainerID = "containerd://" + containerID
		pod.Status.ContainerStatuses[1].State = state
		if err := kube.Status().Update(t.Context(), pod); err != nil {
			t.Fatal(err)
		}
	}
	isRunning := corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}

	for _, step := range []struct {
		name string
		do   func()
		want string
		err  bool
	}{
		{name: "runs", do: func() {}, want: id},
		{name: "nothing new", do: func() {}, want: id},
		{name: "ended", do: func() { set(id, corev1.ContainerState{}) }},
		{name: "restarted", do: func() { set(second, isRunning) }, want: second},
		{name: "has no cgroup", do: func() { set("third", isRunning) }, err: true},
		{name: "runs again", do: func() { set(id, isRunning) }, want: id},
		{name: "gone", do: func() {
			if err := kube.Delete(t.Context(), pod); err != nil {
				t.Fatal(err)
			}
		}},
	} {
		step.do()
		if err := follow(); (err != nil) != step.err {
			t.Errorf("%s: error %v, want one: %v", step.name, err, step.err)
		}
		if got := tracked(); got != step.want {
			t.Errorf("%s: tracking %q, want %q", step.name, got, step.want)
		}
	}
}

// A pod that opted in, but for which nothing changes, is protected from functions as any other pod is.
func TestPodsThatAreLeftAsTheyAreAreBystanders(t *testing.T) {
	pod := podRunning(id)
	pod.UID = "its-uid"
	kube := fake.NewClientBuilder().WithObjects(pod).Build()
	a, tracker, _ := newTestAgent(t, clock.RealClock{}, kube, cgrouptest.Tree(t, cgrouptest.V2(filepath.Join("kubepods", id))), nil, nil)
	tracker.lending = &fixedLending{mode: api.ModeFull}
	for _, limits := range []corev1.ResourceList{nil, api.Resources{CPUMilli: 100}.List()} {
		for i := range pod.Spec.Containers {
			if c := &pod.Spec.Containers[i]; c.Name == api.QueueProxyContainer {
				c.Resources.Limits = limits
			}
		}
		if err := kube.Update(t.Context(), pod); err != nil {
			t.Fatal(err)
		}
		// It fails, because there is no Revision, but not before it has followed the pod.
		tracker.Reconcile(t.Context(), reconcile.Request{NamespacedName: types.NamespacedName{Namespace: "default", Name: "p"}})
		if got, want := !a.participants.has(string(pod.UID)), limits != nil; got != want {
			t.Errorf("with the limits %v of queue-proxy, the pod is a bystander: %v, want %v", limits, got, want)
		}
	}
}

// unguarded is a cgroup without memory guards, and without a way to reclaim memory.
type unguarded struct{ cgroup.Container }

func (unguarded) GuardMemory(int64) error     { return errors.ErrUnsupported }
func (unguarded) MemoryGuard() (int64, error) { return 0, nil }

func (unguarded) Reclaimer() (cgroup.Reclaimer, error) { return nil, errors.ErrUnsupported }

// constantCgroup always reads the same.
type constantCgroup struct {
	cgroup.Reading
	unguarded
}

func (c constantCgroup) Read() (cgroup.Reading, error)    { return c.Reading, nil }
func (c constantCgroup) CPU() (time.Duration, error)      { return c.Reading.CPU, nil }
func (c constantCgroup) ReadUse() (cgroup.Reading, error) { return c.Read() }
func (constantCgroup) Close() error                       { return nil }

// evenCgroup always reads the same, except for its CPU, which it uses at a constant rate.
type evenCgroup struct {
	reading  cgroup.Reading
	now      func() time.Time
	cpuMilli int64
	unguarded
}

func (c evenCgroup) Read() (cgroup.Reading, error) {
	r := c.reading
	r.CPU, _ = c.CPU()
	return r, nil
}

func (c evenCgroup) ReadUse() (cgroup.Reading, error) { return c.Read() }

func (c evenCgroup) CPU() (time.Duration, error) {
	return c.now().Sub(epoch) * time.Duration(c.cpuMilli) / 1000, nil
}

func (evenCgroup) Close() error { return nil }

// countedCgroup counts how often its limits are read.
type countedCgroup struct {
	cgroup.Reading
	whole int
	unguarded
}

func (c *countedCgroup) Read() (cgroup.Reading, error) { c.whole++; return c.Reading, nil }
func (c *countedCgroup) CPU() (time.Duration, error)   { return c.Reading.CPU, nil }
func (*countedCgroup) Close() error                    { return nil }
func (c *countedCgroup) ReadUse() (cgroup.Reading, error) {
	r := c.Reading
	r.Limit = api.Resources{}
	return r, nil
}

// The limits of a container that rests or works are seldom read, and those of a throttled
// one every time. An observation has the same samples either way.
func TestLimitsAreSeldomRead(t *testing.T) {
	clk := clocktesting.NewFakeClock(epoch)
	made := &countedCgroup{Reading: cgroup.Reading{Limit: userLimits}}
	c := &container{cgroup: made}
	sample := func(times int, used time.Duration, memory, throttled int64) {
		t.Helper()
		for range times {
			clk.Step(sampleEvery)
			made.Reading.CPU += used
			made.Reading.Memory = memory
			made.Reading.ThrottledPeriods += throttled
			if _, err := c.sample(clk.Now); err != nil {
				t.Fatal(err)
			}
		}
	}
	const resting, working, throttled = 10 * int(limitsFor/sampleEvery), 10 * limitsEvery, 7
	sample(resting, 0, 5, 0)
	if made.whole != 10 {
		t.Errorf("the limits of a container that rests were read %d times of %d, want 10", made.whole, resting)
	}
	made.whole = 0
	sample(working, ms(5), 7, 0)
	if made.whole != 10 {
		t.Errorf("the limits of a container that works were read %d times of %d, want 10", made.whole, working)
	}
	samples := c.samples(epoch)
	if len(samples) != resting+working {
		t.Fatalf("%d samples, want %d", len(samples), resting+working)
	}
	for i, s := range samples {
		want := exactSample(i, resting)
		if s.CPU != want.CPU || s.Memory != want.Memory || s.Limit != userLimits || !s.at.Equal(want.at) {
			t.Fatalf("sample %d is %+v, want %+v", i, s, want)
		}
	}
	made.whole = 0
	made.Reading.Limit.CPUMilli /= 2
	sample(throttled, ms(5), 7, 1)
	if made.whole != throttled {
		t.Errorf("the limits of a container that is throttled were read %d times of %d", made.whole, throttled)
	}
	for _, s := range c.samples(epoch)[resting+working:] {
		if s.Limit != made.Reading.Limit {
			t.Fatalf("a sample of a container that is throttled is %+v, want the limit %v", s, made.Reading.Limit)
		}
	}
	sample(10, 0, 7, 0)
	made.whole = 0
	c.lookAgain.Store(true)
	if sample(3, 0, 7, 0); made.whole != 1 {
		t.Errorf("the limits of a container that rests were read %d times after one was set, want once", made.whole)
	}
	made.whole = 0
	if err := c.sampleWhole(clk.Now); err != nil || made.whole != 1 {
		t.Errorf("at the end of an invocation limits were not read: %v", err)
	}
}

// exactSample is sample i of a container that rested before it worked.
func exactSample(i, resting int) sample {
	s := sample{at: epoch.Add(time.Duration(i+1) * sampleEvery), Reading: cgroup.Reading{Memory: 5}}
	if i >= resting {
		s.CPU, s.Memory = ms(5)*time.Duration(i+1-resting), 7
	}
	return s
}

func TestObserve(t *testing.T) {
	clk := clocktesting.NewFakeClock(epoch)
	a, _, _ := newTestAgent(t, clk, nil, "", nil, nil)
	c := &container{used: true, cgroup: evenCgroup{
		reading: cgroup.Reading{Memory: 5 << 20, Limit: api.Resources{CPUMilli: 500}}, now: clk.Now, cpuMilli: 200,
	}}
	a.containers.put("default/p", c)
	for range 40 { // one second
		a.sample(t.Context(), "default/p", c)
		clk.Step(sampleEvery)
	}
	for name, tc := range map[string]struct {
		ended api.Ended
		want  string
	}{
		"measured":            {api.Ended{Pod: "default/p", Alone: true, Duration: 500 * time.Millisecond}, resultObserved},
		"others in the pod":   {api.Ended{Pod: "default/p", Duration: 500 * time.Millisecond}, resultNotAlone},
		"pod of another node": {api.Ended{Pod: "default/q", Alone: true, Duration: 500 * time.Millisecond}, resultUnknownPod},
		"began too long ago":  {api.Ended{Pod: "default/p", Alone: true, Duration: time.Second}, resultUncovered},
		"absurd duration":     {api.Ended{Pod: "default/p", Alone: true, Duration: -time.Hour}, resultUncovered},
	} {
		if got := a.observe(t.Context(), tc.ended, clk.Now(), false); got != tc.want {
			t.Errorf("%s: %s, want %s", name, got, tc.want)
		}
	}
	want := api.Observation{
		Ended:   api.Ended{Pod: "default/p", Alone: true, Duration: 500 * time.Millisecond},
		Peak:    api.Resources{CPUMilli: 200, MemoryBytes: 5 << 20},
		CPUTime: (500*time.Millisecond + slack) / 5,
		Limit:   api.Resources{CPUMilli: 500}, LimitAtPeak: api.Resources{CPUMilli: 500},
	}
	if diff := cmp.Diff(want, <-a.queue); diff != "" {
		t.Errorf("observation (-want +got):\n%s", diff)
	}
	ended := api.Ended{Pod: "default/p", Alone: true, Duration: 100 * time.Millisecond}
	for range queueLength {
		c.thinning = thinning{}
		a.observe(t.Context(), ended, clk.Now(), false)
	}
	c.thinning = thinning{}
	if got := a.observe(t.Context(), ended, clk.Now(), false); got != resultDropped {
		t.Errorf("with a full queue: %s, want %s", got, resultDropped)
	}
}

// The first invocation of a container may be its start-up, whether or not it was observed.
func TestFirstOfItsContainer(t *testing.T) {
	alone := api.Ended{Pod: "default/p", Alone: true, Duration: 100 * time.Millisecond}
	together, uncovered := alone, alone
	together.Alone = false
	uncovered.Duration = time.Hour
	for name, tc := range map[string]struct {
		before []api.Ended
		late   bool
		want   bool
	}{
		"nothing before it":     {nil, false, true},
		"after one like it":     {[]api.Ended{alone}, false, false},
		"after one not alone":   {[]api.Ended{together}, false, false},
		"after one not covered": {[]api.Ended{uncovered}, false, false},
		"after one heard late":  {[]api.Ended{alone}, true, false},
		"after another pod's":   {[]api.Ended{{Pod: "default/q", Alone: true}}, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			clk := clocktesting.NewFakeClock(epoch)
			a, _, _ := newTestAgent(t, clk, nil, "", nil, nil)
			c := &container{cgroup: constantCgroup{}}
			a.containers.put("default/p", c)
			for range 40 {
				a.sample(t.Context(), "default/p", c)
				clk.Step(sampleEvery)
			}
			for _, e := range tc.before {
				a.observe(t.Context(), e, clk.Now(), tc.late)
			}
			for len(a.queue) > 0 {
				<-a.queue
			}
			if got := a.observe(t.Context(), alone, clk.Now(), false); got != resultObserved {
				t.Fatalf("result %s, want %s", got, resultObserved)
			}
			if o := <-a.queue; o.First != tc.want {
				t.Errorf("first is %v, want %v", o.First, tc.want)
			}
		})
	}
}

func TestRedisAway(t *testing.T) {
	clk := clocktesting.NewFakeClock(epoch)
	script := &scriptedWatcher{answers: make(chan answer)}
	away := true
	appended := make(chan api.Observation, 1)
	observer := observerFunc(func(_ context.Context, o api.Observation) error {
		if away {
			away = false
			return errors.New("away")
		}
		appended <- o
		return nil
	})
	a, _, reader := newTestAgent(t, clk, nil, "", script, observer)
	c := &container{cgroup: constantCgroup{}}
	a.containers.put("default/p", c)
	for range 40 {
		a.sample(t.Context(), "default/p", c)
		clk.Step(sampleEvery)
	}
	ctx, cancel := context.WithCancel(t.Context())
	stopped := make(chan error)
	go func() { stopped <- a.Start(ctx) }()
	defer func() {
		cancel()
		if err := <-stopped; err != nil {
			t.Error(err)
		}
	}()

	ended := answer{Events: pool.Events{Ended: []api.Ended{{ID: "1", Pod: "default/p", Alone: true, Duration: 100 * time.Millisecond}}}}
	eventually(t, "the sampler waits", clk.HasWaiters)
	script.answers <- answer{err: errors.New("away")}
	next := func(a answer) {
		t.Helper()
		eventually(t, "Next is called again", func() bool {
			clk.Step(time.Millisecond)
			select {
			case script.answers <- a:
				return true
			default:
				return false
			}
		})
	}
	// Nobody knows when these ended.
	behind := ended
	behind.Behind = true
	next(behind)
	next(ended)
	next(ended)
	eventually(t, "appended at the second try", func() bool {
		clk.Step(time.Millisecond)
		return len(appended) == 1
	})
	script.skipped = 2
	next(answer{})
	eventually(t, "all is counted", func() bool {
		return cmp.Equal(results(t, reader), map[string]int64{resultLate: 2, resultObserved: 1, resultUnreadable: 2})
	})
}

func TestHealthy(t *testing.T) {
	clk := clocktesting.NewFakeClock(epoch)
	a, _, _ := newTestAgent(t, clk, nil, "", nil, nil)
	clk.Step(stalled)
	if err := a.Healthy(nil); err != nil {
		t.Errorf("unhealthy after %v: %v", stalled, err)
	}
	clk.Step(time.Millisecond)
	if a.Healthy(nil) == nil {
		t.Error("healthy though it does not sample")
	}
}

// Others rely on an agent only while it keeps limits.
func TestReady(t *testing.T) {
	clk := clocktesting.NewFakeClock(epoch)
	a, _, _ := newTestAgent(t, clk, nil, "", nil, nil)
	if a.Ready(nil) == nil {
		t.Error("ready though it has not looked at any limit")
	}
	a.reflex.round(t.Context())
	clk.Step(absent)
	if err := a.Ready(nil); err != nil {
		t.Errorf("not ready after %v: %v", absent, err)
	}
	clk.Step(time.Millisecond)
	if a.Ready(nil) == nil {
		t.Error("ready though it is late")
	}
}

// An invocation goes through a real pool in a real Redis, and its observation comes
// out.
func TestWithRedis(t *testing.T) {
	addr := redistest.Start(t)
	pools := pool.NewRedis(redisconn.MustParse(addr))
	defer pools.Close()
	client := redis.NewClient(&redis.Options{Addr: addr})
	defer client.Close()

	kube := fake.NewClientBuilder().WithObjects(podRunning(id)).Build()
	a, tracker, reader := newTestAgent(t, clock.RealClock{}, kube, cgrouptest.Tree(t, cgrouptest.V2(filepath.Join("kubepods", id))), nil, pools)
	if _, err := tracker.Reconcile(t.Context(), reconcile.Request{NamespacedName: types.NamespacedName{Namespace: "default", Name: "p"}}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	stopped := make(chan error)
	go func() { stopped <- a.Start(ctx) }()
	defer func() {
		cancel()
		if err := <-stopped; err != nil {
			t.Error(err)
		}
		a.containers.put("default/p", nil)
	}()

	const duration = 150 * time.Millisecond
	c := a.containers.get("default/p")
	eventually(t, "sampled for long enough", func() bool {
		s := c.samples(epoch)
		return len(s) > 0 && s[len(s)-1].at.Sub(s[0].at) > duration+slack
	})
	// The agent hears only of what happens after it first looked, and on a busy machine a
	// sample may come late: go on until an invocation is observed.
	var entries []redis.XMessage
	n := 0
	eventually(t, "an observation", func() bool {
		n++
		invocation := pool.Invocation{ID: fmt.Sprint(n), Function: "default/f-00001", Configuration: "default/f", Pod: "default/p", Domain: "default", Owner: "a", Size: 4711}
		if _, err := pools.Begin(t.Context(), "n1", invocation); err != nil {
			t.Fatal(err)
		}
		if _, err := pools.End(t.Context(), "n1", pool.Ending{ID: invocation.ID, Duration: duration, Status: 200}); err != nil {
			t.Fatal(err)
		}
		var err error
		if entries, err = client.XRange(t.Context(), api.ObservationsStream, "-", "+").Result(); err != nil {
			t.Fatal(err)
		}
		return len(entries) > 0
	})
	if got := entries[0].Values["v"]; got != fmt.Sprint(api.RecordVersion) {
		t.Errorf("version %v, want %d", got, api.RecordVersion)
	}
	var got api.Observation
	if err := json.Unmarshal([]byte(entries[0].Values["data"].(string)), &got); err != nil {
		t.Fatal(err)
	}
	want := api.Observation{
		Ended: api.Ended{ID: got.ID, Function: "default/f-00001", Configuration: "default/f", Pod: "default/p", Size: 4711, Duration: duration, Alone: true, Status: 200},
		Peak:  api.Resources{MemoryBytes: 100_000_000},
		Limit: api.Resources{CPUMilli: 500, MemoryBytes: 256 << 20}, LimitAtPeak: api.Resources{CPUMilli: 500, MemoryBytes: 256 << 20},
		First: got.First, // false if an earlier one was heard of but not covered
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("observation (-want +got):\n%s", diff)
	}
	eventually(t, "it is counted as observed", func() bool { return results(t, reader)[resultObserved] > 0 })
}
