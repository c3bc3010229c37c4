package main

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache/informertest"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
)

// stalledLease can be taken, but not renewed. One goroutine uses it.
type stalledLease struct{ taken bool }

var errStalls = errors.New("the API server stalls")

func (l *stalledLease) Get(context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	if l.taken {
		return nil, nil, errStalls
	}
	return nil, nil, apierrors.NewNotFound(schema.GroupResource{Resource: "leases"}, "lease")
}

func (l *stalledLease) Create(context.Context, resourcelock.LeaderElectionRecord) error {
	l.taken = true
	return nil
}

func (l *stalledLease) Update(context.Context, resourcelock.LeaderElectionRecord) error {
	return errStalls
}

func (l *stalledLease) RecordEvent(string) {}
func (l *stalledLease) Identity() string   { return "a" }
func (l *stalledLease) Describe() string   { return "a lease" }

// A manager that loses its lease says so in the words that leaseLost knows.
func TestLeaseLost(t *testing.T) {
	mgr, err := ctrl.NewManager(&rest.Config{}, ctrl.Options{
		NewCache:                            func(*rest.Config, cache.Options) (cache.Cache, error) { return &informertest.FakeInformers{}, nil },
		MapperProvider:                      func(*rest.Config, *http.Client) (meta.RESTMapper, error) { return meta.NewDefaultRESTMapper(nil), nil },
		Metrics:                             metricsserver.Options{BindAddress: "0"},
		LeaderElection:                      true,
		LeaderElectionResourceLockInterface: &stalledLease{},
		LeaseDuration:                       ptr.To(400 * time.Millisecond),
		RenewDeadline:                       ptr.To(200 * time.Millisecond),
		RetryPeriod:                         ptr.To(50 * time.Millisecond),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := mgr.Start(ctx); !leaseLost(err) {
		t.Errorf("a manager that could not renew its lease ended with %v, which is not known for that", err)
	}
	if ctx.Err() != nil {
		t.Error("it kept its lease")
	}
	for _, err := range []error{nil, errors.New("another"), context.Canceled} {
		if leaseLost(err) {
			t.Errorf("%v is taken for a lost lease", err)
		}
	}
}

// Another replica acts within ten seconds of a leader's end, at worst: it sees a renewal one look
// late, counts the lease from then on, and sees one look late that it has run out.
func TestTakesOverInTime(t *testing.T) {
	const goal, firstPatch = 10 * time.Second, 500 * time.Millisecond
	jitter := 1 + leaderelection.JitterFactor
	look := time.Duration(float64(retryPeriod) * jitter)
	if worst := leaseDuration + 2*look + firstPatch; worst > goal {
		t.Errorf("it takes up to %v with a lease of %v, want at most %v", worst, leaseDuration, goal)
	}
	if renewDeadline+retryPeriod > leaseDuration {
		t.Errorf("a leader may act until %v after it last renewed, and another from %v on", renewDeadline+retryPeriod, leaseDuration)
	}
}
