// Package controller writes lasting limits into the specs of pods: ceilings of CPU, and memory that
// is lent or needed above what owners configured. Loans of CPU are temporary, and the node agents'
// alone. When a node's agent is gone, the controller also has the kubelet write everything again,
// because by then nobody else knows what the agent left in the cgroups.
package controller

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"
	"golang.org/x/sync/semaphore"
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
	"sigs.k8s.io/controller-runtime/pkg/source"

	"libra.dev/libra/pkg/pool"
	"libra.dev/libra/resizer/backoff"
)

const (
	// nodeNameField indexes the cached pods by their node.
	nodeNameField = "spec.nodeName"

	// tick is how often the controller looks at a node while something on it is unfinished, and
	// resync how often when nothing is. Changes announce themselves.
	tick   = time.Second
	resync = 30 * time.Second
	// heldTick is how soon a resize that a rate limit held back is tried again, and the shortest
	// delay after which a node is requeued. waitTick is the same for a resize that can wait.
	heldTick = 100 * time.Millisecond
	waitTick = 300 * time.Millisecond

	// A Redis that hangs costs a worker poolTimeout for each node, and the repair of one node must
	// not wait long for another's.
	poolTimeout     = 200 * time.Millisecond
	concurrentNodes = 64

	patchTimeout      = 2 * time.Second
	concurrentPatches = 8 // per node
	// patientPatches is how many of them can wait: no more are begun until the node is looked at again, so that what
	// cannot wait has a place, and is seen soon.
	patientPatches = concurrentPatches - 1
	// concurrentPatient is how many patches that can wait are in flight at a time, for all nodes
	// together. An API server that gets more at once than it can answer within patchTimeout does
	// most of the work in vain.
	concurrentPatient = 32
	backOffMax        = pool.LeaseTTL
)

// Settings are the controller's rate limits.
type Settings struct {
	ResizesPerSecond float64 // per node
	Burst            int     // per node

	TotalResizesPerSecond float64
	TotalBurst            int
}

// Pools reads the pools of the nodes.
type Pools interface {
	Read(ctx context.Context, node string) (pool.State, error)
}

// Controller reconciles nodes. The name in a request is the node's.
type Controller struct {
	clock    clock.Clock
	kube     client.Reader
	resizes  client.SubResourceClientConstructor
	pools    Pools
	live     Live
	recorder events.EventRecorder
	settings Settings
	total    *rate.Limiter
	patient  *semaphore.Weighted // held while a patch that can wait is in flight
	metrics  *metrics
	tracer   trace.Tracer
	follower Follower
	deaf     atomic.Bool // the follower does not hear of changes

	mu      sync.Mutex
	queue   workqueue.TypedRateLimitingInterface[reconcile.Request] // nil until started
	nodes   map[string]*node
	started time.Time // of the first Reconcile: a standby knows nothing before it
}

// node is what the controller remembers about a node. Only one Reconcile of a node runs at a time,
// and only that one touches it.
type node struct {
	name    string
	pods    map[string]*managedPod // by namespace/name
	limiter *rate.Limiter
	// allocatable is the CPU that the node has for pods, in milli CPU; 0 until it is known.
	allocatable int64
	memory      int64 // in bytes, of the whole node; 0 until it is known
	loans       loans
	agent       agentWatch
}

// New makes a Controller. follower tells it on which nodes the memory that is borrowed or needed
// has changed.
func New(clk clock.Clock, kube client.Client, pools Pools, live Live, follower Follower, recorder events.EventRecorder,
	meters metric.MeterProvider, tracers trace.TracerProvider, settings Settings) (*Controller, error) {
	m, err := newMetrics(meters)
	if err != nil {
		return nil, fmt.Errorf("making the controller's metrics: %w", err)
	}
	return &Controller{
		clock:    clk,
		kube:     kube,
		resizes:  kube,
		pools:    pools,
		live:     live,
		recorder: recorder,
		settings: settings,
		total:    rate.NewLimiter(rate.Limit(settings.TotalResizesPerSecond), settings.TotalBurst),
		patient:  semaphore.NewWeighted(concurrentPatient),
		metrics:  m,
		tracer:   tracers.Tracer(instrumentation),
		follower: follower,
		nodes:    map[string]*node{},
	}, nil
}

// Register adds the controller to a manager whose cache has CacheOptions.
func (c *Controller) Register(ctx context.Context, mgr manager.Manager) error {
	if err := mgr.GetFieldIndexer().IndexField(ctx, &corev1.Pod{}, nodeNameField, nodeNameOf); err != nil {
		return fmt.Errorf("indexing pods by node: %w", err)
	}
	// Ask for it before the cache starts, so that it has synced before the first Reconcile.
	if _, err := mgr.GetCache().GetInformer(ctx, &servingv1.Revision{}); err != nil {
		return fmt.Errorf("watching Revisions: %w", err)
	}
	c.live.OnChange(c.wakeAll)
	return builder.ControllerManagedBy(mgr).
		Named("resizer").
		Watches(&corev1.Pod{}, handler.EnqueueRequestsFromMapFunc(requestsOf)).
		Watches(&corev1.Node{}, &handler.EnqueueRequestForObject{}, builder.WithPredicates(allocatableChanged)).
		WatchesRawSource(source.Func(c.awaken)).
		WithOptions(controller.Options{
			MaxConcurrentReconciles: concurrentNodes,
			// The default backs off for up to a quarter of an hour after several failures, and
			// meanwhile nobody would repair the node's pods.
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
		requests = append(requests, requestOf(name))
	}
	return requests
}

func requestOf(node string) reconcile.Request {
	return reconcile.Request{NamespacedName: types.NamespacedName{Name: node}}
}

// Reconcile brings the limits in the specs of a node's pods to their targets.
func (c *Controller) Reconcile(ctx context.Context, req reconcile.Request) (ctrl.Result, error) {
	n := c.node(req.Name)
	if c.unread() {
		return ctrl.Result{RequeueAfter: heldTick}, nil
	}

	// 1. Read the node's pods. Forget a node without any.
	if err := c.observe(ctx, n); err != nil {
		return ctrl.Result{}, err
	}
	if len(n.pods) == 0 {
		c.forget(n)
		return ctrl.Result{}, nil
	}
	c.place(ctx, n)

	// 2. Read what the pool says about their memory.
	if !c.read(ctx, n) {
		return ctrl.Result{RequeueAfter: tick}, nil // loans may be in force that the pool has yet to report
	}

	// 3. See whether the node's agent is there. If it is gone, have what it left repaired.
	if err := c.watchAgent(ctx, n); err != nil {
		return ctrl.Result{}, err
	}

	// 4. Resize the pods that are not at their targets.
	now := c.clock.Now()
	c.notice(ctx, n, now)
	resizes, next := n.plan(now)
	next = min(next, c.issue(ctx, n, resizes, now))
	if c.deaf.Load() {
		next = min(next, tick) // a container that needs memory waits for ten seconds
	}
	return ctrl.Result{RequeueAfter: max(heldTick, next)}, nil
}

func (c *Controller) node(name string) *node {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.clock.Now()
	if c.started.IsZero() {
		c.started = now
	}
	n, ok := c.nodes[name]
	if !ok {
		n = &node{
			name:    name,
			pods:    map[string]*managedPod{},
			limiter: rate.NewLimiter(rate.Limit(c.settings.ResizesPerSecond), c.settings.Burst),
			loans:   loans{readAt: now, toldAt: now},
		}
		c.nodes[name] = n
	}
	return n
}

func (c *Controller) forget(n *node) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.nodes, n.name)
	c.metrics.forget(n.name)
}
