package controller

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"sync"
	"testing"
	"time"

	"go.opentelemetry.io/otel/metric/noop"
	tracenoop "go.opentelemetry.io/otel/trace/noop"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache/informertest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllertest"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
)

// lease is the record of who leads. Like the API server, it refuses an update of what has changed
// since it was read.
type lease struct {
	mu      sync.Mutex
	record  *resourcelock.LeaderElectionRecord
	version int
}

// leaseOf is a replica's view of the lease.
type leaseOf struct {
	*lease
	identity string
	seen     int // version
}

func (l *leaseOf) Get(context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.record == nil {
		return nil, nil, apierrors.NewNotFound(schema.GroupResource{Resource: "leases"}, "lease")
	}
	l.seen = l.version
	record := *l.record
	raw, err := json.Marshal(record)
	return &record, raw, err
}

func (l *leaseOf) Create(_ context.Context, r resourcelock.LeaderElectionRecord) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.record != nil {
		return errors.New("exists")
	}
	l.record, l.version = &r, l.version+1
	l.seen = l.version
	return nil
}

func (l *leaseOf) Update(_ context.Context, r resourcelock.LeaderElectionRecord) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.seen != l.version {
		return errors.New("changed since it was read")
	}
	l.record, l.version = &r, l.version+1
	l.seen = l.version
	return nil
}

func (l *leaseOf) RecordEvent(string) {}
func (l *leaseOf) Identity() string   { return l.identity }
func (l *leaseOf) Describe() string   { return "lease of " + l.identity }
func (l *lease) holder() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.record.HolderIdentity
}

// listed is an informer that tells a new handler of one object, as a list does.
type listed struct {
	controllertest.FakeInformer
	object client.Object
}

func (l *listed) AddEventHandlerWithOptions(h toolscache.ResourceEventHandler, o toolscache.HandlerOptions) (toolscache.ResourceEventHandlerRegistration, error) {
	h.OnAdd(l.object, true)
	return l.FakeInformer.AddEventHandlerWithOptions(h, o)
}

// replica starts a manager with a controller of its own, which shares the cluster, the
// pool and the lease with the others. It tells on patched whenever it patches a pod.
func (h *harness) replica(identity string, l *lease, patched chan<- string) (stop func()) {
	h.t.Helper()
	podKind := corev1.SchemeGroupVersion.WithKind("Pod")
	// The fake makes informers that are not there on demand, which is not safe for several at once.
	none := &controllertest.FakeInformer{Synced: true}
	informers := func(*rest.Config, cache.Options) (cache.Cache, error) {
		return &informertest.FakeInformers{Scheme: h.kube.Scheme(), InformersByGVK: map[schema.GroupVersionKind]toolscache.SharedIndexInformer{
			podKind: &listed{FakeInformer: controllertest.FakeInformer{Synced: true}, object: h.get("low")},
			corev1.SchemeGroupVersion.WithKind("Node"):        none,
			servingv1.SchemeGroupVersion.WithKind("Revision"): none,
		}}, nil
	}
	mgr, err := ctrl.NewManager(&rest.Config{}, ctrl.Options{
		Scheme:                              h.kube.Scheme(),
		NewCache:                            informers,
		MapperProvider:                      func(*rest.Config, *http.Client) (meta.RESTMapper, error) { return meta.NewDefaultRESTMapper(nil), nil },
		Metrics:                             metricsserver.Options{BindAddress: "0"},
		Controller:                          config.Controller{SkipNameValidation: ptr.To(true)},
		LeaderElection:                      true,
		LeaderElectionResourceLockInterface: &leaseOf{lease: l, identity: identity},
		LeaseDuration:                       ptr.To(2 * time.Second),
		RenewDeadline:                       ptr.To(1500 * time.Millisecond),
		RetryPeriod:                         ptr.To(100 * time.Millisecond),
	})
	if err != nil {
		h.t.Fatal(err)
	}
	kube := interceptor.NewClient(h.kube.(client.WithWatch), interceptor.Funcs{
		SubResourcePatch: func(ctx context.Context, c client.Client, name string, obj client.Object, patch client.Patch, opts ...client.SubResourcePatchOption) error {
			err := c.SubResource(name).Patch(ctx, obj, patch, opts...)
			patched <- identity
			return err
		},
	})
	c, err := New(clock.RealClock{}, kube, h.pool, h.following, noFollower{},
		events.NewFakeRecorder(100), noop.NewMeterProvider(), tracenoop.NewTracerProvider(), testSettings)
	if err != nil {
		h.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(h.t.Context())
	if err := c.Register(ctx, mgr); err != nil {
		h.t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(ctx) }()
	return sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			h.t.Errorf("replica %s: %v", identity, err)
		}
	})
}

// One replica resizes at a time, and the next begins with what the cluster and the
// pool say, whatever the last one left half done.
func TestLeaderElection(t *testing.T) {
	h := newHarness(t, testRevision(owed), testPod("low", res(300, 256), byLibra))
	l, patched := &lease{}, make(chan string, 100)
	stops := map[string]func(){}
	for _, identity := range []string{"a", "b"} {
		stops[identity] = h.replica(identity, l, patched)
		defer stops[identity]()
	}
	first := <-patched
	if got := l.holder(); got != first {
		t.Fatalf("%s restored the pod while %s held the lease", first, got)
	}
	stops[first]() // without releasing the lease, like one that is killed
	for len(patched) > 0 {
		if got := <-patched; got != first {
			t.Errorf("%s patched while %s held the lease", got, first)
		}
	}

	low := h.get("low")
	low.Spec.Containers[0].Resources.Limits = res(300, 256).List() // left half done
	h.update(low)
	second := <-patched
	if got := l.holder(); second == first || got != second {
		t.Errorf("%s restored the pod after %s was gone, while %s held the lease", second, first, got)
	}
	stops[second]()
	if got := specLimits(h.get("low")); got != owed {
		t.Errorf("limits %v, want %v", got, owed)
	}
}

// A new leader in mid-loan goes on with the loan, and ends it.
func TestNewLeaderInMidLoan(t *testing.T) {
	h := newHarness(t, testRevision(owed), testPod("p", owed))
	h.pool.pods = lends(64, "p")
	h.expect("p 500m/320Mi")
	h.kubelet()
	h.restart()
	h.expect()
	h.restart()
	h.pool.pods = nil
	h.expect()
	h.clock.Step(memoryStands)
	h.expect("p 500m/256Mi")
}
