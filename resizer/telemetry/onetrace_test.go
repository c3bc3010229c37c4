package telemetry_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr/testr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"
	"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/propagation"
	"go.uber.org/zap/zaptest"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes/fake"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	pkgnet "knative.dev/pkg/network"
	activatorhandler "knative.dev/serving/pkg/activator/handler"
	"knative.dev/serving/pkg/apis/autoscaling"
	"knative.dev/serving/pkg/apis/serving"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	clientfake "sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	logf "sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"libra.dev/libra/activator-plugin/invocation"
	"libra.dev/libra/activator-plugin/predict"
	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/pool"
	"libra.dev/libra/pkg/pool/redistest"
	"libra.dev/libra/pkg/redisconn"
	"libra.dev/libra/pkg/settings"
	"libra.dev/libra/resizer/agent"
	"libra.dev/libra/resizer/cgroup/cgrouptest"
	"libra.dev/libra/resizer/controller"
	"libra.dev/libra/resizer/telemetry"
)

const (
	node    = "n1"
	timeout = 30 * time.Second
	mib     = 1 << 20

	// The gateway sends these.
	traceID = "0af7651916cd43dd8448eb211c80319c"
	gateway = "b7ad6b7169203331"

	unsampled = "00-11111111111111111111111111111111-2222222222222222-00"
)

var owed = api.Resources{CPUMilli: 500, MemoryBytes: 256 * mib} // as in cgrouptest.V2

// demands are what is predicted of each function.
type demands map[string]api.Resources

func (d demands) Predict(_ context.Context, rev types.NamespacedName, _ int64) (predict.Prediction, bool) {
	return predict.Prediction{Demand: d[rev.Name], Duration: time.Minute}, true
}

func (d demands) Known(ctx context.Context, rev types.NamespacedName, size int64) (predict.Prediction, bool) {
	return d.Predict(ctx, rev, size)
}

// toPod is a throttler that has a slot in the only pod of a revision.
type toPod map[string]string

func (p toPod) Try(_ context.Context, rev types.NamespacedName, forward func(string, bool) error) error {
	return forward(p[rev.Name], false)
}

// idleNode is a pool to which the node has plenty of idle CPU.
type idleNode struct{ *pool.Redis }

func (n idleNode) Heartbeat(ctx context.Context, node string, hb pool.Heartbeat) (bool, error) {
	hb.Lendable = api.Resources{CPUMilli: 10_000, MemoryBytes: 1 << 40}
	return n.Redis.Heartbeat(ctx, node, hb)
}

// site is a node with two functions, each with one pod, and the parts of Libra.
type site struct {
	*testing.T
	redis     string
	pools     *pool.Redis
	activator *httptest.Server
	manager   *invocation.Manager
	held      chan struct{} // closed by release, when requests that ask for it are to be answered
	release   func()
	cgroups   string
	patched   atomic.Bool // a pod's limits, by the resizer
	pods      []client.Object
	revisions map[string]*servingv1.Revision
}

func newSite(t *testing.T) *site {
	s := &site{T: t, redis: redistest.Start(t), held: make(chan struct{}), revisions: map[string]*servingv1.Revision{}}
	s.pools = pool.NewRedis(redisconn.MustParse(s.redis))
	t.Cleanup(func() { s.pools.Close() }) //nolint:errcheck // the test ends
	files := map[string]string{}
	for _, name := range []string{"donor", "borrower"} {
		maps.Copy(files, cgrouptest.V2(cgroupOf(name)))
		meta := metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name),
			Labels:      map[string]string{api.EnabledLabel: api.EnabledValue, serving.RevisionLabelKey: name, serving.RevisionUID: name},
			Annotations: map[string]string{autoscaling.TargetBurstCapacityKey: "-1"}}
		container := corev1.Container{Name: api.UserContainer, Resources: corev1.ResourceRequirements{
			Limits: owed.List(), Requests: api.Resources{CPUMilli: 100, MemoryBytes: 64 * mib}.List()}}
		s.revisions[name] = &servingv1.Revision{ObjectMeta: meta, Spec: servingv1.RevisionSpec{
			ContainerConcurrency: ptr.To[int64](1), PodSpec: corev1.PodSpec{Containers: []corev1.Container{container}}}}
		s.pods = append(s.pods, &corev1.Pod{ObjectMeta: meta,
			Spec: corev1.PodSpec{NodeName: node, Containers: []corev1.Container{container}},
			Status: corev1.PodStatus{Phase: corev1.PodRunning, QOSClass: corev1.PodQOSBurstable, PodIPs: []corev1.PodIP{{IP: "127.0.0.1"}},
				ContainerStatuses: []corev1.ContainerStatus{{Name: api.UserContainer, ContainerID: "containerd://" + name,
					State:     corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(time.Now().Add(-time.Hour))}},
					Resources: &corev1.ResourceRequirements{Limits: owed.List()}}}}})
	}
	s.cgroups = cgrouptest.Tree(t, files)
	return s
}

// cgroupOf returns the path of the container's cgroup, in that of a pod of its own.
func cgroupOf(container string) string {
	return filepath.Join("kubepods", fmt.Sprintf("pod%d", len(container)), container)
}

func (s *site) telemetry(service string) *telemetry.Telemetry {
	s.Helper()
	told, err := telemetry.New(s.Context(), service, prometheus.NewRegistry(), testr.New(s.T))
	if err != nil {
		s.Fatal(err)
	}
	return told
}

func (s *site) eventually(what string, condition func(context.Context) (bool, error)) {
	s.Helper()
	if err := wait.PollUntilContextTimeout(s.Context(), 5*time.Millisecond, timeout, true, condition); err != nil {
		s.Fatalf("waiting until %s: %v", what, err)
	}
}

// full are settings under which functions lend and borrow.
var full = settings.Settings{Mode: api.ModeFull, MaxMode: api.ModeFull, Source: api.SourceOwners, MinLoan: 100 * time.Millisecond, SafeguardPercent: 80}

// owners are settings under which limits are lent.
type owners struct{}

func (owners) For(string) settings.Settings     { return full }
func (owners) Source(string, string) api.Source { return api.SourceOwners }
func (owners) Placement() api.Placement         { return api.PlacementStock }

// runActivator runs the activator's chain of handlers in front of the functions.
func (s *site) runActivator(told *telemetry.Telemetry) {
	function := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Hold") != "" {
			<-s.held
		}
		w.Header().Set("Seen", r.Header.Get("traceparent"))
	}))
	s.Cleanup(function.Close)
	s.release = sync.OnceFunc(func() { close(s.held) })
	logger := zaptest.NewLogger(s.T).Sugar()
	pods, err := invocation.NewPods(fake.NewClientset(s.pods[0], s.pods[1]), logger)
	if err != nil {
		s.Fatal(err)
	}
	s.manager, err = invocation.NewManager(invocation.Options{
		Clock: clock.RealClock{}, Logger: logger, MeterProvider: told.Meters, TracerProvider: told.Tracers,
		Pool: s.pools, Pods: pods,
		Predictor: demands{"donor": {CPUMilli: 240, MemoryBytes: 64 * mib}, "borrower": {CPUMilli: 700, MemoryBytes: 320 * mib}},
		Owner:     "activator", Settings: owners{},
	})
	if err != nil {
		s.Fatal(err)
	}
	s.run(func(ctx context.Context) error { s.manager.Run(ctx); return nil })

	dest := strings.TrimPrefix(function.URL, "http://")
	var h http.Handler = activatorhandler.New(s.Context(), s.manager.Throttler(toPod{"donor": dest, "borrower": dest}),
		pkgnet.NewProxyAutoTransport(10, 10), false, logger, false, told.Tracers, told.Meters)
	h = s.manager.Handler(h)
	inner := h
	h = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		rev := s.revisions[strings.TrimPrefix(r.URL.Path, "/")]
		id := types.NamespacedName{Namespace: rev.Namespace, Name: rev.Name}
		inner.ServeHTTP(w, r.WithContext(activatorhandler.WithRevisionAndID(r.Context(), rev, id)))
	})
	s.activator = httptest.NewServer(otelhttp.NewHandler(h, "handle", otelhttp.WithTracerProvider(told.Tracers)))
	s.Cleanup(s.activator.Close)
	s.Cleanup(s.release) // before either Close, which would wait for what is held
}

// run runs a part until the test ends or end is called.
func (s *site) run(part func(context.Context) error) (end func()) {
	ctx, cancel := context.WithCancel(logf.IntoContext(context.WithoutCancel(s.Context()), testr.New(s.T)))
	ended := make(chan error, 1)
	go func() { ended <- part(ctx) }()
	end = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			s.Error(err)
		}
	})
	s.Cleanup(end)
	return end
}

func (s *site) runAgent(told *telemetry.Telemetry) (end func()) {
	kube := clientfake.NewClientBuilder().WithScheme(s.scheme()).WithObjects(s.pods...).
		WithObjects(s.revisions["donor"], s.revisions["borrower"]).Build()
	settings := agent.Settings{Node: node, CgroupRoot: s.cgroups, JournalDir: s.TempDir(), ProcRoot: "/proc",
		SampleLowered: 10 * time.Millisecond}
	a, tracker, err := agent.New(clock.RealClock{}, kube, kube, lendsOfOwners{}, settings,
		agent.Redis{Pool: idleNode{s.pools}, Watcher: s.pools.Watch(node), Observer: s.pools}, told.Meters, told.Tracers)
	if err != nil {
		s.Fatal(err)
	}
	for _, pod := range s.pods {
		if _, err := tracker.Reconcile(s.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(pod)}); err != nil {
			s.Fatal(err)
		}
	}
	return s.run(a.Start)
}

// lendsOfOwners are the settings of a cluster in which owners' allocations are lent.
type lendsOfOwners struct{}

func (lendsOfOwners) Synced() bool                     { return true }
func (lendsOfOwners) Settings() settings.Settings      { return settings.Default }
func (lendsOfOwners) For(string) settings.Settings     { return full }
func (lendsOfOwners) Source(string, string) api.Source { return api.SourceOwners }
func (lendsOfOwners) OnChange(func())                  {}

// scheme knows the kinds that the agent and the controller read.
func (s *site) scheme() *runtime.Scheme {
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), servingv1.AddToScheme(scheme)); err != nil {
		s.Fatal(err)
	}
	return scheme
}

func (s *site) newController(told *telemetry.Telemetry) *controller.Controller {
	kube := clientfake.NewClientBuilder().WithScheme(s.scheme()).WithObjects(s.pods...).
		WithObjects(s.revisions["donor"], s.revisions["borrower"]).
		WithIndex(&corev1.Pod{}, "spec.nodeName", func(o client.Object) []string { return []string{o.(*corev1.Pod).Spec.NodeName} }).
		WithInterceptorFuncs(interceptor.Funcs{SubResourcePatch: func(ctx context.Context, c client.Client, _ string,
			obj client.Object, patch client.Patch, _ ...client.SubResourcePatchOption) error {
			s.patched.Store(true)
			return c.Patch(ctx, obj, patch)
		}}).Build()
	settings := controller.Settings{ResizesPerSecond: 100, Burst: 100, TotalResizesPerSecond: 100, TotalBurst: 100}
	c, err := controller.New(clock.RealClock{}, kube, s.pools, lendsOfOwners{}, s.pools.FollowMemory(),
		events.NewFakeRecorder(100), told.Meters, told.Tracers, settings)
	if err != nil {
		s.Fatal(err)
	}
	return c
}

// send sends a request to a function and returns the traceparent that arrived there.
func (s *site) send(name, traceparent string, headers ...string) (seen string) {
	r, err := http.NewRequest(http.MethodPost, s.activator.URL+"/"+name, strings.NewReader("input"))
	if err != nil {
		s.Error(err)
		return
	}
	r.Header.Set("traceparent", traceparent)
	for _, h := range headers {
		r.Header.Set(h, "true")
	}
	resp, err := s.activator.Client().Do(r)
	if err != nil {
		s.Error(err)
		return
	}
	resp.Body.Close() //nolint:errcheck // it is empty
	return resp.Header.Get("Seen")
}

// warm makes the activator learn the function's pod and serve a request in it.
func (s *site) warm(name string) {
	s.Helper()
	client := redis.NewClient(&redis.Options{Addr: s.redis})
	defer client.Close()
	ended := func(ctx context.Context) (n int64) {
		streams, _ := client.Keys(ctx, "libra:{"+node+"}:*:events").Result()
		for _, stream := range streams { // of one version
			n, _ = client.XLen(ctx, stream).Result()
		}
		return n
	}
	before := ended(s.Context())
	s.eventually("the first invocation of "+name+" has ended", func(ctx context.Context) (bool, error) {
		s.send(name, unsampled)
		return ended(ctx) > before, nil
	})
	s.eventually("all of "+name+" have ended", func(ctx context.Context) (bool, error) {
		state, err := s.pools.Read(ctx, node)
		return err == nil && state.Begun == 0, nil
	})
}

// limits waits for CPU limits in the cgroups, in milli CPU.
func (s *site) limits(what string, donor, borrower int) {
	s.Helper()
	s.eventually(what, func(context.Context) (bool, error) {
		got := ""
		for _, name := range []string{"donor", "borrower"} {
			got += cgrouptest.Line(s, s.cgroups, cgroupOf(name), "cpu.max") + "\n"
		}
		return got == fmt.Sprintf("%d 100000\n%d 100000\n", donor*100, borrower*100), nil
	})
}

// One trace shows a request from the gateway to the limits that it changed. The request borrows, behind a
// gateway that samples it, through the activator's handlers, a real Redis, the agent with a tree of cgroups,
// and the controller.
func TestOneTraceFromGatewayToResize(t *testing.T) {
	collector := newCollector(t)
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.URL)
	otel.SetTextMapPropagator(propagation.TraceContext{}) // as Knative does
	s := newSite(t)
	activatorTold, agentTold, controllerTold := s.telemetry("activator"), s.telemetry("libra-agent"), s.telemetry("libra-resizer")
	s.runActivator(activatorTold)
	endAgent := s.runAgent(agentTold)
	resizer := s.newController(controllerTold)
	s.warm("donor")
	s.warm("borrower")
	s.eventually("the pool is open", func(ctx context.Context) (bool, error) {
		state, err := s.pools.Read(ctx, node)
		return err == nil && state.Open, nil
	})

	var requests sync.WaitGroup
	requests.Go(func() { s.send("donor", unsampled, "Hold") })
	s.eventually("the donor has put its surplus in", func(ctx context.Context) (bool, error) {
		state, err := s.pools.Read(ctx, node)
		// Where the pool was open before they were warm, the borrower's pod is an idle donor until it borrows.
		return err == nil && state.Begun == 1 && state.Available.CPUMilli >= 200, nil
	})
	requests.Go(func() {
		if seen := s.send("borrower", "00-"+traceID+"-"+gateway+"-01", "Hold"); !strings.Contains(seen, traceID) {
			s.Errorf("the function got the traceparent %q", seen)
		}
	})
	s.limits("the loan is in force", 300, 700)
	// Ask again if Redis was too slow.
	s.eventually("the resizer has asked for more memory", func(ctx context.Context) (bool, error) {
		_, err := resizer.Reconcile(logf.IntoContext(ctx, testr.New(t)), reconcile.Request{NamespacedName: types.NamespacedName{Name: node}})
		return s.patched.Load(), err
	})
	s.release()
	requests.Wait()
	s.limits("the loan has ended", 500, 500)
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	if err := s.manager.Drain(ctx); err != nil {
		t.Fatal(err)
	}
	endAgent()
	for _, told := range []*telemetry.Telemetry{activatorTold, agentTold, controllerTold} {
		// Shutdown itself has only a second for this.
		if err := told.Tracers.(interface{ ForceFlush(context.Context) error }).ForceFlush(ctx); err != nil {
			t.Fatal(err)
		}
		told.Shutdown()
	}

	got := collector.paths(t, traceID, gateway)
	const request, begin, end = "activator:POST", "activator:libra.begin < activator:POST", "activator:libra.end < activator:POST"
	for _, want := range []string{
		request,
		"activator:throttler_try < " + request,
		"activator:activator_proxy < " + request,
		begin,
		end,
		"default/donor cgroup lower < libra-agent:libra.resize < " + begin,
		"default/borrower cgroup raise < libra-agent:libra.resize < " + begin,
		"default/borrower api raise < libra-resizer:libra.resize < " + begin,
		"default/donor cgroup restore < libra-agent:libra.resize < " + begin,
		"default/borrower cgroup lower < libra-agent:libra.resize < " + begin,
	} {
		// A call for which Redis was too slow is made again.
		if again := want == begin || want == end; got[want] == 0 || got[want] > 1 && !again {
			t.Errorf("%d spans are %s, want 1", got[want], want)
		}
	}
	if t.Failed() {
		for path, n := range got {
			t.Logf("%d × %s", n, path)
		}
	}
}
