// Package controller writes the balances of each node's pool into the limits in the
// specs of that node's pods.
//
// On a node with a living agent the containers' cgroups are the agent's, and the
// spec is the record: what the kubelet goes by when the agent is no more, or when it
// writes a cgroup for reasons of its own. Without an agent the spec is all there is.
package controller

import (
	"context"
	"fmt"
	"sync"
	"time"

	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"
	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"libra.dev/libra/pkg/pool"
	"libra.dev/libra/resizer/actuate"
	"libra.dev/libra/resizer/backoff"
)

const (
	// nodeNameField indexes the cached pods by their node.
	nodeNameField = "spec.nodeName"

	// tick is how often a node is looked at when nothing wakes it, and so how soon a
	// pod that is not at its user allocation for no reason is found.
	tick = time.Second
	// heldTick is how soon a resize that a rate limit held back is looked at again, and
	// the least between two looks that nothing asks for.
	heldTick = 100 * time.Millisecond

	// A Redis that hangs costs each node that much of a worker's time, and no node's
	// restores may wait long for another's.
	poolTimeout     = 200 * time.Millisecond
	concurrentNodes = 64

	patchTimeout      = 2 * time.Second
	concurrentPatches = 8
)

// Settings are what the controller is told.
type Settings struct {
	// RecordAfter is how long a balance must have stood to be recorded on a node with a
	// living agent. A shorter one would be over before the patch lands.
	RecordAfter time.Duration

	ResizesPerSecond float64 // per node
	Burst            int     // per node

	TotalResizesPerSecond float64
	TotalBurst            int
}

// Controller reconciles nodes: the request's name is the node's.
type Controller struct {
	clock    clock.Clock
	kube     client.Reader
	pools    pool.Pool
	live     Live
	actuator actuate.API
	recorder events.EventRecorder
	settings Settings
	total    *rate.Limiter
	metrics  *metrics
	tracer   trace.Tracer
	waker    *waker

	mu      sync.Mutex
	nodes   map[string]*node
	started time.Time // of the first Reconcile: a standby knows nothing yet
}

// node is what the controller remembers of a node. Only the one Reconcile of that
// node that runs at a time touches it.
type node struct {
	name     string
	pods     map[string]*managedPod // by namespace/name
	limiter  *rate.Limiter
	balances map[string]pool.Balance
	// allocatable is how many milli CPU the node has for pods; 0 until it is known.
	allocatable int64

	madeAt time.Time
	readAt time.Time // of the last read that succeeded
	lost   bool      // the pool could not be read for a lease
	// silent says that nobody is known to write the node's cgroups: it has no living
	// agent, or the pool does not tell. heard says that it once had one.
	silent, heard bool
	// loweredBy is when the kubelet will have lowered what it is to be told to lower.
	loweredBy time.Time
	// Of the state that was read last.
	epoch          string
	version, acted int64
	reconciledAt   time.Time
}

// New makes a Controller. waiters makes what wakes it for one node.
func New(clk clock.Clock, kube client.Reader, pools pool.Pool, live Live, waiters func(node string) Waiter, actuator actuate.API,
	recorder events.EventRecorder, meters metric.MeterProvider, tracers trace.TracerProvider, settings Settings) (*Controller, error) {
	m, err := newMetrics(meters)
	if err != nil {
		return nil, fmt.Errorf("making the controller's metrics: %w", err)
	}
	return &Controller{
		clock:    clk,
		kube:     kube,
		pools:    pools,
		live:     live,
		actuator: actuator,
		recorder: recorder,
		settings: settings,
		total:    rate.NewLimiter(rate.Limit(settings.TotalResizesPerSecond), settings.TotalBurst),
		metrics:  m,
		tracer:   tracers.Tracer(instrumentation),
		waker:    newWaker(clk, waiters, m),
		nodes:    map[string]*node{},
	}, nil
}

// Register adds the controller to a manager with the cache of CacheOptions.
func (c *Controller) Register(ctx context.Context, mgr manager.Manager) error {
	if err := mgr.GetFieldIndexer().IndexField(ctx, &corev1.Pod{}, nodeNameField, nodeNameOf); err != nil {
		return fmt.Errorf("indexing pods by node: %w", err)
	}
	// Asked for before the cache starts, so that it is synced before the first node
	// is looked at.
	if _, err := mgr.GetCache().GetInformer(ctx, &servingv1.Revision{}); err != nil {
		return fmt.Errorf("watching Revisions: %w", err)
	}
	if _, err := mgr.GetCache().GetInformer(ctx, &corev1.ResourceQuota{}); err != nil {
		return fmt.Errorf("watching ResourceQuotas: %w", err)
	}
	c.live.OnChange(c.waker.wakeAll)
	return builder.ControllerManagedBy(mgr).
		Named("resizer").
		Watches(&corev1.Pod{}, handler.EnqueueRequestsFromMapFunc(requestsOf)).
		Watches(&corev1.Node{}, &handler.EnqueueRequestForObject{}, builder.WithPredicates(allocatableChanged)).
		WatchesRawSource(c.waker).
		WithOptions(controller.Options{
			MaxConcurrentReconciles: concurrentNodes,
			// The default waits up to a quarter of an hour after several failures, and a
			// node's pods would not be restored meanwhile.
			RateLimiter: workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](backoff.Min, backOffMax),
		}).
		Complete(c)
}

func nodeNameOf(o client.Object) []string {
	if name := o.(*corev1.Pod).Spec.NodeName; name != "" {
		return []string{name}
	}
	return nil
}

func requestsOf(_ context.Context, o client.Object) []reconcile.Request {
	var requests []reconcile.Request
	for _, name := range nodeNameOf(o) {
		requests = append(requests, reconcile.Request{NamespacedName: types.NamespacedName{Name: name}})
	}
	return requests
}

// Reconcile brings the limits of a node's pods to what the node's pool says.
func (c *Controller) Reconcile(ctx context.Context, req reconcile.Request) (ctrl.Result, error) {
	n := c.node(req.Name)
	if c.unread() {
		return ctrl.Result{RequeueAfter: heldTick}, nil
	}
	if err := c.observe(ctx, n); err != nil {
		return ctrl.Result{}, err
	}

	// 1. No opted-in pod is left on the node: forget it.
	if len(n.pods) == 0 {
		c.forget(n)
		return ctrl.Result{}, nil
	}
	c.waker.follow(n.name)
	c.place(ctx, n)

	// 2. The pool tells the balances and whether an agent lives; one that cannot be
	// read for a lease has none.
	c.read(ctx, n)
	if n.readAt.IsZero() && !n.lost {
		return ctrl.Result{RequeueAfter: tick}, nil // loans may be in force that it has yet to tell
	}
	c.notice(ctx, n)

	// 3. Limits and balances differ: resize, as far as conservation allows now.
	now := c.clock.Now()
	limits, next := c.podLimits(n, now)
	resizes, waiting := plan(limits, n.balances, !n.silent)
	n.wait(ctx, waiting, now)

	// 4. The agent has fallen silent: make the kubelet write what it may have changed.
	nudges, nextNudge := c.nudges(n, limits, resizes, now)
	nextTry := c.issue(ctx, n, append(resizes, nudges...))

	// 5. Something was held back: look again when it may go on. What waits for a
	// decrease to be in force is woken by the pod's new status.
	return ctrl.Result{RequeueAfter: max(heldTick, min(tick, next, nextNudge, nextTry))}, nil
}

func (c *Controller) node(name string) *node {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.started.IsZero() {
		c.started = c.clock.Now()
	}
	n, ok := c.nodes[name]
	if !ok {
		n = &node{
			name:    name,
			madeAt:  c.clock.Now(),
			pods:    map[string]*managedPod{},
			limiter: rate.NewLimiter(rate.Limit(c.settings.ResizesPerSecond), c.settings.Burst),
		}
		c.nodes[name] = n
	}
	return n
}

func (c *Controller) forget(n *node) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.nodes, n.name)
	c.waker.leave(n.name)
	c.metrics.forget(n.name)
}

// podLimits are the pods that may be resized. next is how long the first of the
// balances that are too young to be recorded has yet to stand.
func (c *Controller) podLimits(n *node, now time.Time) (limits []podLimits, next time.Duration) {
	next = tick
	for _, m := range n.pods {
		if m.leftAlone != "" {
			continue
		}
		recordAfter := c.settings.RecordAfter
		if n.silent {
			recordAfter = 0
		}
		l, young := m.limits(recordAfter, now)
		limits = append(limits, l)
		if young > 0 {
			next = min(next, young)
		}
	}
	return limits, next
}
