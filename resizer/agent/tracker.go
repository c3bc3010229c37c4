package agent

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	"knative.dev/serving/pkg/apis/serving"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/resizer/actuate"
	"libra.dev/libra/resizer/backoff"
	"libra.dev/libra/resizer/ceiling"
	"libra.dev/libra/resizer/cgroup"
	"libra.dev/libra/resizer/eligible"
)

const (
	// retryMost is the longest wait before a pod that could not be looked at is tried again.
	retryMost = 5 * time.Second
	// podsAtOnce is how many pods are looked at at a time. A pod whose Revision cannot be read takes long.
	podsAtOnce = 8
	// cacheSyncMost is how long an agent waits for the API server when it starts. Without it, the agent does what it can,
	// and another start would bring it no nearer.
	cacheSyncMost = 24 * time.Hour
)

// Tracker keeps the agent's containers in step with the pods of its node.
type Tracker struct {
	clock      clock.WithTicker
	kube       client.Reader
	cgroupRoot string
	containers *containers
	pods       *podInfos

	lending      Lending
	allocations  *allocations
	participants *participants
}

// ManagerOptions returns the options of a manager whose cache holds a node and its opted-in pods.
// The manager starts without the API server, so that the agent gives back what an earlier one owed
// even while nothing but this node is left of the cluster.
func ManagerOptions(node string) (manager.Options, error) {
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), servingv1.AddToScheme(scheme)); err != nil {
		return manager.Options{}, fmt.Errorf("registering API types: %w", err)
	}
	return manager.Options{
		Scheme: scheme,
		MapperProvider: func(*rest.Config, *http.Client) (meta.RESTMapper, error) {
			// The default asks the API server.
			kinds := meta.NewDefaultRESTMapper(nil)
			kinds.Add(corev1.SchemeGroupVersion.WithKind("Pod"), meta.RESTScopeNamespace)
			kinds.Add(corev1.SchemeGroupVersion.WithKind("Node"), meta.RESTScopeRoot)
			kinds.Add(servingv1.SchemeGroupVersion.WithKind("Revision"), meta.RESTScopeNamespace)
			return kinds, nil
		},
		Cache: cache.Options{ByObject: map[client.Object]cache.ByObject{
			&corev1.Pod{}: {
				Label:     labels.SelectorFromSet(labels.Set{api.EnabledLabel: api.EnabledValue}),
				Field:     fields.OneTermEqualSelector("spec.nodeName", node),
				Transform: actuate.KeepResizes,
			},
			&corev1.Node{}: {Field: fields.OneTermEqualSelector(metav1.ObjectNameField, node)},
		}},
	}, nil
}

// Register adds the tracker to a manager made with ManagerOptions. The agent, which must be started
// afterwards, does not speak for its pods until they were looked at.
func (t *Tracker) Register(mgr manager.Manager) error {
	t.pods.await()
	if err := mgr.Add(manager.RunnableFunc(t.introduce)); err != nil {
		return err
	}
	return builder.ControllerManagedBy(mgr).Named("tracker").For(&corev1.Pod{}).
		WithOptions(controller.Options{RateLimiter: retries(), CacheSyncTimeout: cacheSyncMost, MaxConcurrentReconciles: podsAtOnce}).
		WatchesRawSource(source.Func(t.followSettings)).
		Watches(&corev1.Node{}, handler.EnqueueRequestsFromMapFunc(t.allPods), builder.WithPredicates(predicate.Funcs{UpdateFunc: ceiling.MayChange})).
		Complete(t)
}

// retries says when to requeue a pod that could not be looked at. The default waits up to a quarter
// of an hour after several failures, and the pod's limits would not be followed meanwhile.
func retries() workqueue.TypedRateLimiter[reconcile.Request] {
	return workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](backoff.Min, retryMost)
}

// followSettings requeues all pods when the settings change.
func (t *Tracker) followSettings(_ context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
	t.lending.OnChange(func() {
		for _, request := range t.allPods(context.Background(), nil) {
			queue.Add(request)
		}
	})
	return nil
}

func (t *Tracker) allPods(context.Context, client.Object) []reconcile.Request {
	var requests []reconcile.Request
	for _, pod := range t.pods.names() {
		namespace, name, _ := strings.Cut(pod, "/")
		requests = append(requests, reconcile.Request{NamespacedName: types.NamespacedName{Namespace: namespace, Name: name}})
	}
	return requests
}

// Reconcile follows one pod.
func (t *Tracker) Reconcile(ctx context.Context, req reconcile.Request) (_ ctrl.Result, failed error) {
	name := req.Namespace + "/" + req.Name
	t.pods.meet(name)
	informed := t.lending.Synced()
	defer func() {
		if informed && failed == nil {
			t.pods.looked(name)
		}
	}()

	// 1. The pod is gone, or opted out: drop what we have.
	var pod corev1.Pod
	if err := t.kube.Get(ctx, req.NamespacedName, &pod); client.IgnoreNotFound(err) != nil {
		return ctrl.Result{}, fmt.Errorf("reading pod %s: %w", name, err)
	} else if err != nil {
		t.containers.put(name, nil)
		t.pods.remove(name)
		t.participants.remove(name)
		return ctrl.Result{}, nil
	}

	// 2. Its container does not run: the next one is owed the same.
	user := api.UserContainerOf(&pod)
	info := podInfo{
		function: api.FunctionOf(types.NamespacedName{
			Namespace: pod.Namespace, Name: pod.Labels[serving.RevisionLabelKey]}, pod.Labels).String(),
		container: runningID(&pod, user),
		observed:  obstacle(&pod, user),
	}
	if user != nil {
		info.limits = api.FromList(user.Resources.Limits)
		info.recorded = recorded(&pod, user.Name)
	}
	// If its Revision cannot be read now, a retry may read it; everything else goes on meanwhile.
	unknown := t.lend(ctx, &pod, &info)
	if unknown != nil {
		t.pods.keepLending(name, &info)
	}
	if user != nil && !info.allocation.IsZero() {
		_, info.foreign = actuate.ChangedByOthers(&pod, user.Name, info.allocation, info.limits)
	}
	if info.container == "" {
		t.containers.put(name, nil)
		t.set(&pod, info)
		return ctrl.Result{}, unknown
	}

	// 3. It is the container that we have, maybe with a new spec.
	if known := t.containers.get(name); known != nil && known.id == info.container && t.pods.has(name, info.container) {
		known.ranked.Store(info.node)
		info.observed = t.pods.observed(name, info.observed)
		known.borrowsBeyond.Store(info.borrowsBeyond())
		t.set(&pod, info)
		return ctrl.Result{}, unknown
	}

	// 4. It is new: open its cgroup, which exists by now. Measuring and setting limits use a handle
	// each, so that neither waits for the other.
	t.containers.put(name, nil)
	measured, err := cgroup.Open(t.cgroupRoot, info.container)
	if err != nil {
		return ctrl.Result{}, fmt.Errorf("opening the cgroup of pod %s: %w", name, err)
	}
	if info.cgroup, err = cgroup.Open(t.cgroupRoot, info.container); err != nil {
		measured.Close() //nolint:errcheck // read only
		return ctrl.Result{}, fmt.Errorf("opening the cgroup of pod %s: %w", name, err)
	}
	if limit, err := info.cgroup.PodLimit(); err != nil {
		info.observed = "the limits of its pod's cgroup cannot be read: " + err.Error()
	} else if !limit.IsZero() {
		info.observed = fmt.Sprintf("its pod's cgroup has limits of its own (%v), which would cap the container", limit)
	}
	c := &container{id: info.container, function: info.function, cgroup: measured}
	c.ranked.Store(info.node)
	c.borrowsBeyond.Store(info.borrowsBeyond())
	t.containers.put(name, c)
	t.set(&pod, info)
	return ctrl.Result{}, unknown
}

// set hands on what is known of a pod. If nothing changes for it, it is a bystander.
func (t *Tracker) set(pod *corev1.Pod, info podInfo) {
	name := pod.Namespace + "/" + pod.Name
	if info.observed != "" || info.foreign || t.lending.For(pod.Namespace).ModeOf(pod.Annotations) == api.ModeObserve {
		t.participants.remove(name)
	} else {
		t.participants.set(name, string(pod.UID))
	}
	t.pods.set(name, info)
}

// runningID returns the runtime's ID of a container; empty when the container does not run.
func runningID(pod *corev1.Pod, c *corev1.Container) string {
	if c == nil {
		return ""
	}
	for _, s := range pod.Status.ContainerStatuses {
		if s.Name == c.Name && s.State.Running != nil {
			_, id, _ := strings.Cut(s.ContainerID, "://")
			return id
		}
	}
	return ""
}

// recorded says whether Libra's controller was the last to change a container's CPU limit.
func recorded(pod *corev1.Pod, container string) bool {
	// Fields that cannot be read are not known to be Libra's.
	ours, _ := actuate.ResizedLimits(pod, container)
	return ours.Has(corev1.ResourceCPU)
}

// obstacle returns why a pod does not take part, as far as its spec tells; empty if it may.
func obstacle(pod *corev1.Pod, user *corev1.Container) string {
	if user == nil {
		return "it has no user container"
	}
	return eligible.Obstacle(pod, user.Name)
}
