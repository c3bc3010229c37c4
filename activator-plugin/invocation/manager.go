// Package invocation is the life of an invocation in the activator: its size, what
// it can lend or would borrow, and the Begin and End that tell the pool. Nothing
// in it delays a request but the first prediction of a function, for milliseconds at
// most, and nothing that fails in it fails a request.
package invocation

import (
	"context"
	"fmt"
	"net/http"
	"sync"

	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/zap"
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

// Predictor answers from what it knows. Of a function of which it knows nothing it may
// ask first, for a few milliseconds at most and no longer than ctx.
type Predictor interface {
	Predict(ctx context.Context, revision types.NamespacedName, size int64) (p predict.Prediction, ok bool)
	// Known answers at once, or not at all.
	Known(ctx context.Context, revision types.NamespacedName, size int64) (p predict.Prediction, ok bool)
}

var _ Predictor = (*predict.Client)(nil)

// Settings tell how far Libra goes. They may change at any time.
type Settings interface {
	// For are those of a namespace's functions.
	For(namespace string) settings.Settings
	// Source is where what is lent to and by the pods of a namespace on a node comes from.
	Source(namespace, node string) api.Source
	// Placement is how the pod of a request is chosen where no program says it.
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
	// Owner is this incarnation of the activator: unlike every other, also of the
	// same pod before a restart.
	Owner    string
	Settings Settings
	// Events records what is wrong with a revision on it. It may be nil.
	Events record.EventRecorder
	// Views are of the nodes' pools. They may be nil: then no pod is chosen by what its node can lend.
	Views placement.Views
	// Programs say where functions may run. They may be nil.
	Programs placement.Programs
}

// Manager manages the invocations of opted-in revisions. Its Handler and Throttler
// go into the activator's chain together.
type Manager struct {
	clock     clock.PassiveClock
	logger    *zap.SugaredLogger
	metrics   *metrics
	predictor Predictor
	pods      *Pods
	settings  Settings
	path      *path
	placer    *placer
	lifecycle *lifecycle
	counts    counts
	ahead     budget
	events    record.EventRecorder
	warned    once.Set[warning]
}

// NewManager returns a Manager that is to be run.
func NewManager(o Options) (*Manager, error) {
	m, err := newMetrics(o.MeterProvider)
	if err != nil {
		return nil, err
	}
	path, err := newPath()
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
	return &Manager{
		clock:     o.Clock,
		logger:    o.Logger,
		metrics:   m,
		predictor: o.Predictor,
		pods:      o.Pods,
		settings:  o.Settings,
		path:      path,
		placer:    placer,
		events:    o.Events,
		lifecycle: l,
	}, nil
}

// Handler goes directly around the activation handler.
func (m *Manager) Handler(next http.Handler) http.Handler {
	return &handler{manager: m, next: next}
}

// Throttler goes between the activation handler and Knative's throttler.
func (m *Manager) Throttler(next activatorhandler.Throttler) activatorhandler.Throttler {
	return &throttler{manager: m, next: next}
}

// Run keeps the leases and the pods until ctx is done.
func (m *Manager) Run(ctx context.Context) {
	var wg sync.WaitGroup
	wg.Go(func() { m.pods.Run(ctx) })
	wg.Go(func() { m.lifecycle.renewLeases(ctx) })
	wg.Wait()
}

// Drain waits, until ctx is done, for the End of every invocation. It is called
// when no request is served any more.
func (m *Manager) Drain(ctx context.Context) error { return m.lifecycle.drain(ctx) }
