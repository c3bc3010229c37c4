package duplicator

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.opentelemetry.io/otel/metric/noop"
	"go.uber.org/zap"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"
	v1 "knative.dev/serving/pkg/apis/serving/v1"
	servingfake "knative.dev/serving/pkg/client/clientset/versioned/fake"
)

// memoryLocks has the locks of a single activator, and what it left behind.
type memoryLocks struct {
	mu        sync.Mutex
	verdicts  map[key]verdict
	renewals  int
	prolonged time.Duration
	// acquiring and renewing are the errors to return.
	acquiring, renewing error
	settlingFails       int // how often
}

func (l *memoryLocks) acquire(_ context.Context, k key, _ time.Duration) (verdict, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if v, there := l.verdicts[k]; there || l.acquiring != nil {
		return v, l.acquiring
	}
	l.verdicts[k] = verdictHeld
	return verdictHeld, nil
}

func (l *memoryLocks) look(_ context.Context, k key) (verdict, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.verdicts[k], l.acquiring
}

func (l *memoryLocks) prolong(_ context.Context, _ key, ttl time.Duration) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.prolonged = ttl
	return nil
}

func (l *memoryLocks) renew(context.Context, key, time.Duration) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.renewals++
	return l.renewing
}

func (l *memoryLocks) settle(_ context.Context, k key, v verdict, ttl time.Duration) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.settlingFails > 0 {
		l.settlingFails--
		return errors.New("Redis is away")
	}
	if l.verdicts[k] = v; ttl == 0 {
		delete(l.verdicts, k)
	}
	return nil
}

func (l *memoryLocks) close() error { return nil }

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func respond(status int) roundTripper {
	return func(r *http.Request) (*http.Response, error) {
		if _, err := io.Copy(io.Discard, r.Body); err != nil {
			return nil, err
		}
		return &http.Response{StatusCode: status, Body: http.NoBody, Request: r}, nil
	}
}

func respondAfter(d time.Duration) roundTripper {
	return func(r *http.Request) (*http.Response, error) {
		select {
		case <-time.After(d):
			return respond(200)(r)
		case <-r.Context().Done():
			return nil, r.Context().Err()
		}
	}
}

func hang(r *http.Request) (*http.Response, error) {
	<-r.Context().Done()
	return nil, r.Context().Err()
}

// cluster is a Duplicator and all that it talks to, in fake time.
type cluster struct {
	*Duplicator
	client   *servingfake.Clientset
	locks    *memoryLocks
	recorder *record.FakeRecorder
	replays  atomic.Int64
	// neverReady keeps copies from becoming ready.
	neverReady atomic.Bool
	// unrouted says that revisions get no traffic, and deleted that there are none; isStopped stops everything.
	unrouted, deleted, isStopped atomic.Bool
}

func newCluster(t *testing.T, function roundTripper, objects ...runtime.Object) *cluster {
	t.Helper()
	m, err := newMetrics(noop.NewMeterProvider())
	if err != nil {
		t.Fatal(err)
	}
	c := &cluster{
		client:   servingfake.NewSimpleClientset(objects...),
		locks:    &memoryLocks{verdicts: map[key]verdict{}},
		recorder: record.NewFakeRecorder(1000),
	}
	replayer := newReplayer(&url.URL{Scheme: "http", Host: "activator.test"})
	replayer.client.Transport = roundTripper(func(r *http.Request) (*http.Response, error) {
		c.replays.Add(1)
		return function(r)
	})
	c.Duplicator = &Duplicator{
		clock:    clock.RealClock{},
		logger:   zap.NewNop().Sugar(),
		metrics:  m,
		events:   c.recorder,
		serving:  c.client,
		locks:    c.locks,
		replayer: replayer,
		largest:  largest,
		stopped:  func(string) bool { return c.isStopped.Load() },
		revision: func(_ context.Context, _, name string) (*v1.Revision, error) {
			rev := newRevision(name)
			switch {
			case c.deleted.Load():
				return nil, apierrors.NewNotFound(v1.Resource("revisions"), name)
			case c.unrouted.Load():
				rev.SetRoutingState(v1.RoutingStateReserve, c.clock.Now())
			}
			return rev, nil
		},
		inputs: newInputs(),
	}
	c.client.PrependReactor("get", "services", func(action clienttesting.Action) (bool, runtime.Object, error) {
		found, err := c.client.Tracker().Get(action.GetResource(), action.GetNamespace(), action.(clienttesting.GetAction).GetName())
		if err != nil {
			return true, nil, err
		}
		service := found.(*v1.Service).DeepCopy()
		if !c.neverReady.Load() {
			service.Status.LatestReadyRevisionName = service.Name + "-00001"
		}
		return true, service, nil
	})
	// An API server does this, but the fake does not.
	made := 0
	c.client.PrependReactor("create", "services", func(action clienttesting.Action) (bool, runtime.Object, error) {
		made++
		service := action.(clienttesting.CreateAction).GetObject().(*v1.Service)
		service.UID, service.CreationTimestamp = types.UID(fmt.Sprint("made-", made)), metav1.NewTime(c.clock.Now())
		return false, nil, nil
	})
	c.client.PrependReactor("delete", "services", func(action clienttesting.Action) (bool, runtime.Object, error) {
		deletion := action.(clienttesting.DeleteActionImpl)
		found, err := c.client.Tracker().Get(action.GetResource(), action.GetNamespace(), deletion.GetName())
		if err != nil {
			return true, nil, err
		}
		want := deletion.DeleteOptions.Preconditions
		if want == nil || want.UID == nil {
			return true, nil, errors.New("a deletion by name alone")
		}
		if uid := found.(*v1.Service).UID; uid != *want.UID {
			return true, nil, apierrors.NewConflict(v1.Resource("services"), deletion.GetName(), fmt.Errorf("UID is %s, not %s", uid, *want.UID))
		}
		return false, nil, nil
	})
	return c
}

// replace puts another activator's copy in the place of this one's.
func (c *cluster) replace(t *testing.T, rev *v1.Revision) {
	t.Helper()
	theirs := copyOf(rev, largest)
	theirs.UID = "theirs"
	if err := c.client.Tracker().Update(v1.SchemeGroupVersion.WithResource("services"), theirs, theirs.Namespace); err != nil {
		t.Error(err)
	}
}

// gather keeps all wanted inputs of the revision.
func (c *cluster) gather(t *testing.T, rev *v1.Revision) {
	t.Helper()
	answer(c.inputs, keyOf(rev), standing{wanted: true})
	for range wantedInputs {
		if ok, why := c.inputs.reserve(rev, 1000, c.clock.Now()); !ok {
			t.Fatalf("not kept: %q", why)
		}
		c.inputs.keep(keyOf(rev), input{method: http.MethodPost, path: "/", body: make([]byte, 1000)}, c.clock.Now())
	}
}

func (c *cluster) copies(t *testing.T) []v1.Service {
	t.Helper()
	services, err := c.client.ServingV1().Services("").List(context.Background(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return services.Items
}

func (c *cluster) count(verb string) int {
	n := 0
	for _, action := range c.client.Actions() {
		if action.GetVerb() == verb {
			n++
		}
	}
	return n
}

// recorded returns the reasons and texts of all recorded Events.
func (c *cluster) recorded() string {
	var all []string
	for len(c.recorder.Events) > 0 {
		all = append(all, <-c.recorder.Events)
	}
	return strings.Join(all, "\n")
}
