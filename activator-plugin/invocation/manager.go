// Package invocation follows an invocation through the activator: it finds its size, decides what it
// can lend or would borrow, and reports it to the pool with a Begin and an End. It delays a request
// only for the first prediction of a function, by milliseconds at most, and for a body that names the
// request's size. None of its failures fails a request.
package invocation

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"
	activatorhandler "knative.dev/serving/pkg/activator/handler"

	"libra.dev/libra/activator-plugin/placement"
	"libra.dev/libra/activator-plugin/predict"
	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/once"
	"libra.dev/libra/pkg/pool"
	"libra.dev/libra/pkg/settings"
)

// Predictor answers from what it knows. If it knows nothing of a function, Predict may ask first, for
// a few milliseconds at most and no longer than ctx.
type Predictor interface {
	Predict(ctx context.Context, revision types.NamespacedName, size int64) (p predict.Prediction, ok bool)
	// Known answers at once, or not at all.
	Known(ctx context.Context, revision types.NamespacedName, size int64) (p predict.Prediction, ok bool)
}

var _ Predictor = (*predict.Client)(nil)

// Settings tell how far Libra goes. They may change at any time.
type Settings interface {
	// For returns the settings of a namespace's functions.
	For(namespace string) settings.Settings
	// Source returns the source of CPU for the pods of a namespace on a node.
	Source(namespace, node string) api.Source
	// Placement returns how the pod of a request is chosen where no program decides.
	Placement() api.Placement
}

// Options are a Manager's collaborators and settings.
type Options struct {
	Clock         clock.WithTicker
	Logger        *zap.SugaredLogger
	MeterProvider metric.MeterProvider
	// TracerProvider makes the spans of Begin and End. It may be nil.
	TracerProvider trace.TracerProvider
	Pool           pool.Pool
	Predictor      Predictor
	Pods           *Pods
	// Owner names this run of the activator. It is unlike that of every other run, also in the same
	// pod before a restart.
	Owner    string
	Settings Settings
	// Events records problems with a revision on the revision. It may be nil.
	Events record.EventRecorder
	// Views are views of the nodes' pools. They may be nil: then no pod is chosen by what its node can
	// lend.
	Views placement.Views
	// Programs say where functions may run. They may be nil.
	Programs placement.Programs
}

// Manager manages the invocations of opted-in revisions. Its Handler and Throttler
// go into the activator's chain together.
type Manager struct {
	clock      clock.PassiveClock
	logger     *zap.SugaredLogger
	metrics    *metrics
	predictor  Predictor
	pods       *Pods
	settings   Settings
	autoscaler atomic.Pointer[autoscaler]
	placer     *placer
	lifecycle  *lifecycle
	counts     counts
	ahead      budget
	events     record.EventRecorder
	warned     once.Set[warning]
	began      time.Time // when it was made
}

// NewManager returns a Manager. The caller must call Run.
func NewManager(o Options) (*Manager, error) {
	m, err := newMetrics(o.MeterProvider)
	if err != nil {
		return nil, err
	}
	defaults, err := autoscalerOf(&corev1.ConfigMap{}, time.Time{})
	if err != nil {
		return nil, fmt.Errorf("reading the autoscaler's defaults: %w", err)
	}
	placer, err := newPlacer(o)
	if err != nil {
		return nil, err
	}
	l := newLifecycle(o.Pool, o.Owner, o.Clock, o.Logger, m)
	l.tracer = newTracer(o.TracerProvider)
	l.recent = newRecent()
	manager := &Manager{
		clock:     o.Clock,
		logger:    o.Logger,
		metrics:   m,
		predictor: o.Predictor,
		pods:      o.Pods,
		settings:  o.Settings,
		placer:    placer,
		events:    o.Events,
		lifecycle: l,
		began:     o.Clock.Now(),
	}
	manager.autoscaler.Store(defaults)
	return manager, nil
}

// Handler returns the handler that goes directly around next, the activation handler.
func (m *Manager) Handler(next http.Handler) http.Handler {
	return &handler{manager: m, next: next}
}

// Throttler returns the throttler that goes between the activation handler and next, Knative's
// throttler.
func (m *Manager) Throttler(next activatorhandler.Throttler) activatorhandler.Throttler {
	return &throttler{manager: m, next: next}
}

// Run renews the leases and watches the pods until ctx is done.
func (m *Manager) Run(ctx context.Context) {
	var wg sync.WaitGroup
	wg.Go(func() { m.pods.Run(ctx) })
	wg.Go(func() { m.lifecycle.renewLeases(ctx) })
	wg.Wait()
}

// Drain waits for the End of every invocation. If ctx is done first, it returns the error of ctx. The
// caller must not serve requests any more.
func (m *Manager) Drain(ctx context.Context) error { return m.lifecycle.drain(ctx) }
