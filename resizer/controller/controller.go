// Package controller writes into the specs of pods what stands: ceilings of CPU, and memory
// that is lent or needed above what owners configured. Loans of CPU, which pass, are the node
// agents' alone. It also has the kubelet write everything again on a node whose agent is gone,
// for nobody else knows by then what that left in the cgroups.
package controller

import (
	"context"
	"fmt"
	"sync"
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
	logf "sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/pool"
	"libra.dev/libra/resizer/backoff"
)

const (
	// nodeNameField indexes the cached pods by their node.
	nodeNameField = "spec.nodeName"

	// tick is how often a node is looked at while something of it is unfinished, and resync
	// how often when nothing is. What changes is told by itself.
	tick   = time.Second
	resync = 30 * time.Second
	// heldTick is how soon a resize that a rate limit held back is looked at again, and
	// the least between two looks that nothing asks for; waitTick is for one that can wait.
	heldTick = 100 * time.Millisecond
	waitTick = 300 * time.Millisecond

	// A Redis that hangs costs each node that much of a worker's time, and no node's
	// repair may wait long for another's.
	poolTimeout     = 200 * time.Millisecond
	concurrentNodes = 64

	patchTimeout      = 2 * time.Second
	concurrentPatches = 8 // of a node
	// concurrentPatient is how many of those that can wait are sent at a time, to all nodes. An API
	// server that is given more at once than it can answer in patchTimeout does most of it in vain.
	concurrentPatient = 32
	backOffMax        = pool.LeaseTTL
)

// Settings are what the controller is told.
type Settings struct {
	ResizesPerSecond float64 // per node
	Burst            int     // per node

	TotalResizesPerSecond float64
	TotalBurst            int
}

// Pools are the pools of all nodes, as far as the controller reads them.
type Pools interface {
	Read(ctx context.Context, node string) (pool.State, error)
}

// Controller reconciles nodes: the request's name is the node's.
type Controller struct {
	clock    clock.Clock
	kube     client.Reader
	resizes  client.SubResourceClientConstructor
	pools    Pools
	live     Live
	recorder events.EventRecorder
	settings Settings
	total    *rate.Limiter
	patient  *semaphore.Weighted // who is sending what can wait
	metrics  *metrics
	tracer   trace.Tracer
	follower Follower

	mu      sync.Mutex
	queue   workqueue.TypedRateLimitingInterface[reconcile.Request] // nil until started
	nodes   map[string]*node
	started time.Time // of the first Reconcile: a standby knows nothing yet
}

// node is what the controller remembers of a node. Only the one Reconcile of that
// node that runs at a time touches it.
type node struct {
	name    string
	pods    map[string]*managedPod // by namespace/name
	limiter *rate.Limiter
	// allocatable is how many milli CPU the node has for pods; 0 until it is known.
	allocatable int64
	memory      int64 // bytes that the node has; 0 until it is known
	loans       loans
	agent       agentWatch
}

// New makes a Controller. follower tells it on which nodes memory is another.
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
	c.live.OnChange(c.wakeAll)
	return builder.ControllerManagedBy(mgr).
		Named("resizer").
		Watches(&corev1.Pod{}, handler.EnqueueRequestsFromMapFunc(requestsOf)).
		Watches(&corev1.Node{}, &handler.EnqueueRequestForObject{}, builder.WithPredicates(allocatableChanged)).
		Watches(&corev1.ResourceQuota{}, handler.EnqueueRequestsFromMapFunc(c.nodesOfNamespace), builder.WithPredicates(quotaChanged)).
		WatchesRawSource(source.Func(c.awaken)).
		WithOptions(controller.Options{
			MaxConcurrentReconciles: concurrentNodes,
			// The default waits up to a quarter of an hour after several failures, and a
			// node's pods would not be repaired meanwhile.
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

// nodesOfNamespace are those with opted-in pods of the object's namespace.
func (c *Controller) nodesOfNamespace(ctx context.Context, o client.Object) []reconcile.Request {
	var list corev1.PodList
	if err := c.kube.List(ctx, &list, client.InNamespace(o.GetNamespace()), client.MatchingLabels{api.EnabledLabel: api.EnabledValue}); err != nil {
		logf.FromContext(ctx).Error(err, "listing the pods of a namespace whose quota is another; their ceilings follow later", "namespace", o.GetNamespace(), "within", resync)
		return nil
	}
	nodes := map[string]struct{}{}
	for i := range list.Items {
		nodes[list.Items[i].Spec.NodeName] = struct{}{}
	}
	delete(nodes, "")
	var requests []reconcile.Request
	for node := range nodes {
		requests = append(requests, requestOf(node))
	}
	return requests
}

func requestOf(node string) reconcile.Request {
	return reconcile.Request{NamespacedName: types.NamespacedName{Name: node}}
}

// Reconcile brings the limits in the specs of a node's pods to what they are to be.
func (c *Controller) Reconcile(ctx context.Context, req reconcile.Request) (ctrl.Result, error) {
	n := c.node(req.Name)
	if c.unread() {
		return ctrl.Result{RequeueAfter: heldTick}, nil
	}

	// 1. What the cluster says of the node's pods. Without any, the node is forgotten.
	if err := c.observe(ctx, n); err != nil {
		return ctrl.Result{}, err
	}
	if len(n.pods) == 0 {
		c.forget(n)
		return ctrl.Result{}, nil
	}
	c.place(ctx, n)

	// 2. What the pool says of their memory.
	if !c.read(ctx, n) {
		return ctrl.Result{RequeueAfter: tick}, nil // loans may be in force that it has yet to tell
	}

	// 3. Whether the node's agent is there. When it is not any more, what it left is repaired.
	if err := c.watchAgent(ctx, n); err != nil {
		return ctrl.Result{}, err
	}

	// 4. What is not as it is to be: resize.
	now := c.clock.Now()
	c.notice(ctx, n, now)
	resizes, next := n.plan(now)
	next = min(next, c.issue(ctx, n, resizes))
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
