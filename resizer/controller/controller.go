// Package controller turns the balances of each node's pool into the limits of
// that node's containers.
package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"go.opentelemetry.io/otel/metric"
	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	"knative.dev/serving/pkg/apis/serving"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	logf "sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/pool"
	"libra.dev/libra/resizer/actuate"
)

const (
	// nodeNameField indexes the cached pods by their node.
	nodeNameField = "spec.nodeName"

	// tick is how often a node is looked at when nothing wakes it. It also renews
	// the node's permission to lend, so it must be well within pool.LeaseTTL.
	tick = time.Second
	// heldTick is how soon a resize that was held back is looked at again. What waits
	// for the kubelet does not wait for it: a pod's new status is an event.
	heldTick = 100 * time.Millisecond

	// A Redis that hangs costs each node that much of a worker's time, and no node's
	// restores may wait long for another's.
	poolTimeout     = 200 * time.Millisecond
	concurrentNodes = 64

	patchTimeout      = 2 * time.Second
	concurrentPatches = 8
)

// Limits bounds what the controller asks of the API server.
type Limits struct {
	ResizesPerSecond float64 // per node
	Burst            int     // per node
}

// Controller reconciles nodes: the request's name is the node's.
type Controller struct {
	clock    clock.Clock
	kube     client.Reader
	pools    pool.Pool
	actuator actuate.API
	recorder events.EventRecorder
	limits   Limits
	metrics  *metrics
	waker    *waker

	mu    sync.Mutex
	nodes map[string]*node
}

// node is what the controller remembers of a node. Only the one Reconcile of that
// node that runs at a time touches it.
type node struct {
	name     string
	pods     map[string]*managedPod // by namespace/name
	limiter  *rate.Limiter
	balances map[string]pool.Balance

	readAt time.Time // of the last read that succeeded
	lost   bool      // the pool could not be read for a lease
	// proven says that all pods were seen whole while nothing was lent, so that
	// every loan made since is one that this process gives back. doubted says that
	// a read failed since, so that the pool may have been emptied in between.
	proven, doubted bool
	openedAt        time.Time
	reconciledAt    time.Time
}

// New makes a Controller. waiters makes what wakes it for one node.
func New(clk clock.Clock, kube client.Reader, pools pool.Pool, waiters func(node string) Waiter, actuator actuate.API,
	recorder events.EventRecorder, provider metric.MeterProvider, limits Limits) (*Controller, error) {
	m, err := newMetrics(provider)
	if err != nil {
		return nil, fmt.Errorf("making the controller's metrics: %w", err)
	}
	return &Controller{
		clock:    clk,
		kube:     kube,
		pools:    pools,
		actuator: actuator,
		recorder: recorder,
		limits:   limits,
		metrics:  m,
		waker:    newWaker(clk, waiters, m),
		nodes:    map[string]*node{},
	}, nil
}

// Register adds the controller to a manager whose cache holds opted-in pods and
// revisions.
func (c *Controller) Register(ctx context.Context, mgr manager.Manager) error {
	if err := mgr.GetFieldIndexer().IndexField(ctx, &corev1.Pod{}, nodeNameField, nodeNameOf); err != nil {
		return fmt.Errorf("indexing pods by node: %w", err)
	}
	// Asked for before the cache starts, so that it is synced before the first node
	// is looked at.
	if _, err := mgr.GetCache().GetInformer(ctx, &servingv1.Revision{}); err != nil {
		return fmt.Errorf("watching Revisions: %w", err)
	}
	return builder.ControllerManagedBy(mgr).
		Named("resizer").
		Watches(&corev1.Pod{}, handler.EnqueueRequestsFromMapFunc(requestsOf)).
		WatchesRawSource(c.waker).
		WithOptions(controller.Options{MaxConcurrentReconciles: concurrentNodes}).
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
	if err := c.observe(ctx, n); err != nil {
		return ctrl.Result{}, err
	}

	// 1. No opted-in pod is left on the node: forget it.
	if len(n.pods) == 0 {
		c.forget(ctx, n)
		return ctrl.Result{}, nil
	}
	c.waker.follow(n.name)

	// 2. The pool tells the balances; one that cannot be read for a lease has none.
	c.read(ctx, n)
	c.notice(ctx, n)

	// 3. All that is lent can be given back: let the node lend for another lease.
	c.open(ctx, n)

	// 4. Limits and balances differ: resize, as far as conservation allows now.
	resizes, waiting := plan(c.podLimits(n), n.balances)
	held := c.issue(ctx, n, resizes)

	// 5. Something was held back: look again soon, if no pod event comes first.
	if waiting || held {
		return ctrl.Result{RequeueAfter: heldTick}, nil
	}
	return ctrl.Result{RequeueAfter: tick}, nil
}

func (c *Controller) node(name string) *node {
	c.mu.Lock()
	defer c.mu.Unlock()
	n, ok := c.nodes[name]
	if !ok {
		n = &node{
			name:    name,
			pods:    map[string]*managedPod{},
			limiter: rate.NewLimiter(rate.Limit(c.limits.ResizesPerSecond), c.limits.Burst),
		}
		c.nodes[name] = n
	}
	return n
}

func (c *Controller) forget(ctx context.Context, n *node) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.nodes, n.name)
	c.waker.leave(n.name)
	c.metrics.opened(ctx, n.name, false)
}

// observe brings n.pods up to date with the cache.
func (c *Controller) observe(ctx context.Context, n *node) error {
	var list corev1.PodList
	err := c.kube.List(ctx, &list, client.MatchingFields{nodeNameField: n.name}, client.MatchingLabels{api.EnabledLabel: api.EnabledValue})
	if err != nil {
		return fmt.Errorf("listing the opted-in pods of node %s: %w", n.name, err)
	}
	now := c.clock.Now()
	known := n.pods
	n.pods = make(map[string]*managedPod, len(list.Items))
	listed := make(map[string]bool, len(list.Items))
	for i := range list.Items {
		pod := &list.Items[i]
		name := pod.Namespace + "/" + pod.Name
		listed[name] = true
		if done(pod) {
			continue
		}
		m, ok := known[name]
		if !ok || m.pod.UID != pod.UID {
			m = newManagedPod()
		}
		n.pods[name] = m
		if err := c.readRevision(ctx, pod, m); err != nil {
			logf.FromContext(ctx).V(1).Info("leaving a pod alone", "pod", name, "reason", err.Error())
			if m.strand(pod, now) {
				leftAloneEvent(pod, m.leftAlone).record(c.recorder)
			}
			continue
		}
		before := m.leftAlone
		m.observe(pod, now)
		if m.leftAlone != "" && m.leftAlone != before {
			leftAloneEvent(pod, m.leftAlone).record(c.recorder)
		}
	}
	for name, m := range known {
		if !listed[name] && m.depart() {
			n.pods[name] = m
		}
	}
	return nil
}

// readRevision takes in what the pod's Revision says of the user's container. What
// it said stands when the Revision is gone before its pods.
func (c *Controller) readRevision(ctx context.Context, pod *corev1.Pod, m *managedPod) error {
	key := types.NamespacedName{Namespace: pod.Namespace, Name: pod.Labels[serving.RevisionLabelKey]}
	var revision servingv1.Revision
	if err := c.kube.Get(ctx, key, &revision); err != nil {
		if m.function != "" && apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("reading Revision %s of pod %s: %w", key, pod.Name, err)
	}
	m.function = key.String()
	m.unreadSince, m.adrift = time.Time{}, false
	m.user = *revision.Spec.GetContainer()
	if m.user.Name == "" {
		m.user.Name = api.UserContainer
	}
	return nil
}

// read takes in the node's balances. When the pool cannot be read, those that were
// read last stand for one lease: for so long Redis keeps them too.
func (c *Controller) read(ctx context.Context, n *node) {
	ctx, cancel := context.WithTimeout(ctx, poolTimeout)
	defer cancel()
	state, err := c.pools.Read(ctx, n.name)
	now := c.clock.Now()
	if err != nil {
		c.metrics.poolFailed(ctx, "read")
		n.doubted = true
		if !n.lost && (n.readAt.IsZero() || now.Sub(n.readAt) >= pool.LeaseTTL) {
			n.lost, n.proven, n.balances = true, false, nil
		}
		logf.FromContext(ctx).Error(err, "reading the pool", "node", n.name, "restoringAll", n.lost)
		return
	}
	n.readAt, n.lost, n.balances = now, false, state.Pods
	if len(state.Pods) > 0 {
		// Only an open node has balances, and only this process opens it: balances
		// mean that the pool is still the one that was proven.
		n.doubted = n.doubted && !n.proven
	} else if !n.proven || n.doubted {
		n.proven = n.whole()
		n.doubted = !n.proven
	}
}

// whole says that no pod that will serve on is below or above its user allocation.
func (n *node) whole() bool {
	for _, m := range n.pods {
		if m.pod.DeletionTimestamp != nil {
			continue
		}
		if m.adrift || m.leftAlone == "" && !m.whole() {
			return false
		}
	}
	return true
}

// notice draws conclusions from what the kubelet made of earlier resizes.
func (c *Controller) notice(ctx context.Context, n *node) {
	now := c.clock.Now()
	for name, m := range n.pods {
		if m.leftAlone != "" || m.departed {
			continue
		}
		b := n.balances[name]
		if m.settled && m.above(m.asked) {
			m.refusal.Reset()
		}
		if m.pending != "" && m.pending != m.noticed {
			pendingEvent(m.pod, m.pending, m.pendingMessage).record(c.recorder)
			if m.above(m.asked) {
				m.refuse(now)
			}
		}
		m.noticed = m.pending
		if m.overdueMemory(now) {
			memoryInUseEvent(m.pod).record(c.recorder)
		}

		if m.belowOwed {
			c.metrics.below(ctx, m.function, now.Sub(n.reconciledAt))
		}
		due := m.owed.Add(b.Borrowed).Sub(b.Lent).Max(m.request).Min(m.owed)
		m.belowOwed = m.inForce.Min(due) != due
	}
	n.reconciledAt = now
}

func (c *Controller) open(ctx context.Context, n *node) {
	may := n.proven && !n.doubted && !n.lost
	c.metrics.opened(ctx, n.name, may)
	now := c.clock.Now()
	if !may || now.Sub(n.openedAt) < tick*9/10 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, poolTimeout)
	defer cancel()
	if err := c.pools.Open(ctx, n.name); err != nil {
		c.metrics.poolFailed(ctx, "open")
		logf.FromContext(ctx).Error(err, "letting the node lend", "node", n.name)
		return
	}
	n.openedAt = now
}

func (c *Controller) podLimits(n *node) []podLimits {
	now := c.clock.Now()
	limits := make([]podLimits, 0, len(n.pods))
	for _, m := range n.pods {
		if m.leftAlone == "" {
			limits = append(limits, m.limits(now))
		}
	}
	return limits
}

// issue sends resizes in their order. held says that some were not sent or not
// accepted.
func (c *Controller) issue(ctx context.Context, n *node, resizes []resize) (held bool) {
	lowers := slices.ContainsFunc(resizes, func(r resize) bool { return r.direction == lower })
	crowded, held := c.send(ctx, n, resizes, lowers)
	if len(crowded) > 0 {
		// A quota counts what the lowered ones have only now given up.
		_, heldAgain := c.send(ctx, n, crowded, false)
		held = held || heldAgain
	}
	for _, m := range n.pods {
		m.planned = true
	}
	return held
}

// send sends resizes in their order, a few at a time. crowded are the restores that
// were forbidden though more room may come of the others.
func (c *Controller) send(ctx context.Context, n *node, resizes []resize, moreRoom bool) (crowded []resize, held bool) {
	now := c.clock.Now()
	outcomes := make([]outcome, len(resizes))
	var group errgroup.Group
	group.SetLimit(concurrentPatches)
	for i, r := range resizes {
		m := n.pods[r.pod]
		if now.Before(m.retryAt) {
			held = true
			continue
		}
		if !n.limiter.AllowN(now, 1) {
			c.metrics.resized(ctx, r.direction, resultLimited)
			held = true
			break
		}
		group.Go(func() error {
			outcomes[i] = c.resize(ctx, n, m, r, moreRoom && r.direction == restore)
			return nil
		})
	}
	group.Wait() //nolint:errcheck // nothing in the group returns an error
	for i, o := range outcomes {
		if o == waitsForRoom {
			crowded = append(crowded, resizes[i])
		}
		held = held || o == failed
	}
	return crowded, held
}

// outcome is what is left to do after a resize was sent.
type outcome int

const (
	nothingLeft outcome = iota
	failed
	waitsForRoom
)

func (c *Controller) resize(ctx context.Context, n *node, m *managedPod, r resize, moreRoom bool) outcome {
	log := logf.FromContext(ctx).WithValues("node", n.name, "pod", r.pod, "function", m.function)
	ctx, cancel := context.WithTimeout(ctx, patchTimeout)
	defer cancel()

	patched := m.pod.DeepCopy()
	err := c.actuator.Of(patched, m.user.Name).SetLimits(ctx, r.limits)
	now := c.clock.Now()
	result, left := resultAccepted, failed
	switch {
	case err == nil:
		left = nothingLeft
		log.V(1).Info("resized", "direction", r.direction.String(), "from", m.asked.String(), "to", r.limits.String())
		if r.direction == restore {
			c.metrics.restored(ctx, c.restoreCause(n, m, now))
		}
		m.accepted(patched, r.limits)
	case apierrors.IsConflict(err), apierrors.IsNotFound(err), otherUID(err):
		result = resultConflict
		// The cache is about to tell, unless it does not tell of the pod any more.
		m.gone = m.departed || apierrors.IsNotFound(err)
		m.backOff(now)
	case apierrors.IsForbidden(err) && moreRoom:
		result, left = resultRefused, waitsForRoom
	case apierrors.IsInvalid(err), apierrors.IsForbidden(err), apierrors.IsBadRequest(err):
		result = resultRefused
		if !m.retry.Failing() {
			log.Error(err, "resize refused", "to", r.limits.String())
			refusedEvent(m.pod, r, err).record(c.recorder)
		}
		if m.above(r.limits) {
			m.refuse(now)
		} else {
			m.backOff(now)
		}
	default:
		// It may have been accepted all the same.
		result = resultFailed
		m.unsure(r.limits, now)
		log.Error(err, "resize failed", "to", r.limits.String())
		m.backOff(now)
	}
	c.metrics.resized(ctx, r.direction, result)
	return left
}

// otherUID says that the pod's name belongs to another pod by now.
func otherUID(err error) bool {
	var status apierrors.APIStatus
	return errors.As(err, &status) && status.Status().Details != nil &&
		slices.ContainsFunc(status.Status().Details.Causes, func(c metav1.StatusCause) bool { return c.Field == "metadata.uid" })
}

func (c *Controller) restoreCause(n *node, m *managedPod, now time.Time) string {
	switch {
	case !m.planned:
		return causeStart
	case n.lost:
		return causePoolLost
	case now.Before(m.memoryUntil):
		return causeMemoryInUse
	default:
		return causeReleased
	}
}
