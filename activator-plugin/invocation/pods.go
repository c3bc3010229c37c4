package invocation

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"knative.dev/serving/pkg/apis/serving"

	"libra.dev/libra/activator-plugin/placement"
	"libra.dev/libra/pkg/api"
)

const byIP = "ip"

// target is the pod that a request goes to.
type target struct {
	pod  string // namespace/name
	node string
	// container is the ID of the user container, which changes with a restart, and started is when
	// that container started. Both are empty until it is seen running.
	container string
	started   time.Time
	// why is the reason to only observe the pod, if there is one.
	why reason
}

// Pods finds the pod behind an address, which is all that Knative's throttler says of a pod. It has
// its own informer: with one of the activator's, a missing permission would stop the activator.
type Pods struct {
	informer cache.SharedIndexInformer
	// handled reports whether the slots know the pods that there were at first. synced caches that
	// they do.
	handled cache.InformerSynced
	synced  atomic.Bool

	mu     sync.RWMutex
	served map[string]served // by pod
}

// served is the container of a pod in which this activator's last invocation ended.
type served struct {
	container string
	samples   *samples
	untold    *untold
	// idles says that since an End the pool may lend from the pod while nothing is in flight there.
	idles *atomic.Bool
}

// untold counts a container's invocations that are not reported to the pool, so that reported ones
// do not pass for alone beside them.
type untold struct{ begun, inFlight atomic.Int64 }

// begin counts an invocation until leave is called.
func (u *untold) begin() (leave func()) {
	u.inFlight.Add(1)
	u.begun.Add(1)
	return func() { u.inFlight.Add(-1) }
}

// others returns how many are in flight.
func (u *untold) others() int {
	if u == nil {
		return 0
	}
	return int(u.inFlight.Load())
}

// beside returns a function that reports whether there has been one in flight since the call of
// beside. In a container in which nothing has ended yet there is none.
func (u *untold) beside() func() bool {
	if u == nil {
		return func() bool { return false }
	}
	before, there := u.begun.Load(), u.inFlight.Load() > 0
	return func() bool { return there || u.begun.Load() != before }
}

const (
	samplesFirst = 60
	sampleEvery  = 5 * time.Second
	// sampleWaits is the longest time before one is reported sooner when invocations become fewer.
	sampleWaits = 10 * sampleEvery
)

// samples says which of a container's invocations that neither lend nor borrow are reported: the
// first ones, and then one now and then. That is enough to see a function change, but too little for
// a function that is called a thousand times a second to feel the learning. Reports saved in a quiet
// time are not made up for: the requests beside a burst of reports would feel the learning.
//
// When one is due, any of as many as there were since the last one is reported: the next would always
// be the first of a burst, or more often the one after a long one.
type samples struct {
	first *rate.Limiter

	mu    sync.Mutex
	isDue bool
	drawn time.Time // when skip was drawn last
	begun int       // since then
	skip  int       // how many more are not reported before the one that is due
}

func newSamples() *samples { return &samples{first: rate.NewLimiter(0, samplesFirst)} }

func (s *samples) take(now time.Time) bool {
	if s.first.AllowN(now, 1) {
		return true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.begun++
	switch waited := now.Sub(s.drawn); {
	case !s.isDue && waited < sampleEvery:
		return false
	case !s.isDue:
		s.draw(now, s.begun)
	case waited >= sampleWaits:
		s.draw(now, min(s.begun, s.skip+1))
	}
	if s.isDue = s.skip > 0; s.isDue {
		s.skip--
		return false
	}
	return true
}

// draw makes one of the next so many due.
func (s *samples) draw(now time.Time, among int) {
	s.drawn, s.begun, s.skip = now, 0, rand.IntN(among)
}

// NewPods returns Pods that watch the pods of opted-in revisions in all namespaces once Run is
// called.
func NewPods(client kubernetes.Interface, logger *zap.SugaredLogger) (*Pods, error) {
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0,
		informers.WithTweakListOptions(func(o *metav1.ListOptions) {
			o.LabelSelector = api.EnabledLabel + "=" + api.EnabledValue
		}),
		informers.WithTransform(trim))
	informer := factory.Core().V1().Pods().Informer()
	if err := informer.AddIndexers(cache.Indexers{byIP: podIPs}); err != nil {
		return nil, fmt.Errorf("indexing pods by address: %w", err)
	}
	if err := informer.SetWatchErrorHandlerWithContext(func(_ context.Context, _ *cache.Reflector, err error) {
		logger.Warnw("Cannot watch pods, so new ones are not managed; the activator needs get, list and watch on pods in all namespaces",
			zap.Error(err))
	}); err != nil {
		return nil, fmt.Errorf("handling errors of the pod watch: %w", err)
	}
	p := &Pods{informer: informer, handled: informer.HasSynced, served: make(map[string]served)}
	if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{DeleteFunc: p.forget}); err != nil {
		return nil, fmt.Errorf("handling pods that are deleted: %w", err)
	}
	return p, nil
}

// Run watches until ctx is done.
func (p *Pods) Run(ctx context.Context) { p.informer.RunWithContext(ctx) }

// HasSynced reports whether the pods have been read once. Before that no pod is known.
func (p *Pods) HasSynced() bool {
	// Asking the informer takes its locks, and requests ask.
	if !p.synced.Load() && p.handled() {
		p.synced.Store(true)
	}
	return p.synced.Load()
}

// find returns the revision's pod with the address, or false when it is not known (yet). container
// is the name of the revision's user container.
func (p *Pods) find(ip string, rev types.NamespacedName, container string) (target, bool) {
	found, err := p.informer.GetIndexer().ByIndex(byIP, ip)
	if err != nil {
		return target{}, false
	}
	for _, obj := range found {
		pod := obj.(*corev1.Pod)
		// The address may have been another pod's a moment ago.
		if pod.Namespace == rev.Namespace && pod.Labels[serving.RevisionLabelKey] == rev.Name && pod.Spec.NodeName != "" {
			t := target{
				pod:  pod.Namespace + "/" + pod.Name,
				node: pod.Spec.NodeName,
				why:  whyObserved(pod, container),
			}
			for i := range pod.Status.ContainerStatuses {
				c := &pod.Status.ContainerStatuses[i]
				if c.Name == container && c.State.Running != nil {
					t.container, t.started = c.ContainerID, c.State.Running.StartedAt.Time
				}
			}
			return t, true
		}
	}
	return target{}, false
}

// hasServed reports whether an invocation has ended in the pod's current container.
func (p *Pods) hasServed(t target) bool {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return t.container != "" && p.served[t.pod].container == t.container
}

// noteServed notes that an invocation has ended in the container.
func (p *Pods) noteServed(t target) {
	if t.container == "" || p.hasServed(t) {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	// forget runs after the deletion from the store, so what is noted of a pod in the store is
	// forgotten with it.
	if _, exists, err := p.informer.GetStore().GetByKey(t.pod); err == nil && exists && p.served[t.pod].container != t.container {
		p.served[t.pod] = served{t.container, newSamples(), &untold{}, &atomic.Bool{}}
	}
}

// noteIdle notes whether the pool may lend from the pod after an End.
func (s served) noteIdle(idles bool) {
	if s.idles != nil {
		s.idles.Store(idles)
	}
}

// lendsIdle reports whether the pool may lend from the pod while nothing is in flight in it.
func (s served) lendsIdle() bool { return s.idles != nil && s.idles.Load() }

// sample reports whether an invocation that neither lends nor borrows is to be reported to the pool.
func (s served) sample(now time.Time) bool { return s.samples == nil || s.samples.take(now) }

// servedBy returns the zero served when no invocation has ended in the pod yet.
func (p *Pods) servedBy(t target) served {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.served[t.pod]
}

func (p *Pods) forget(deleted any) {
	key, err := cache.DeletionHandlingMetaNamespaceKeyFunc(deleted)
	if err != nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.served, key)
}

func whyObserved(pod *corev1.Pod, container string) reason {
	limited := false
	for i := range pod.Spec.Containers {
		c := &pod.Spec.Containers[i]
		switch c.Name {
		case api.QueueProxyContainer:
			if len(c.Resources.Limits) != 0 {
				return reasonQueueProxyLimits
			}
		case container:
			limited = !api.FromList(c.Resources.Limits).IsZero()
		}
	}
	if !limited {
		return reasonNoLimits
	}
	return reasonNone
}

func podIPs(obj any) ([]string, error) {
	pod, ok := obj.(*corev1.Pod)
	if !ok {
		return nil, fmt.Errorf("the pod informer has a %T, want a Pod", obj)
	}
	return addressesOf(pod), nil
}

// addressesOf returns none for a pod that has ended: another pod may have its addresses by now.
func addressesOf(pod *corev1.Pod) []string {
	if pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
		return nil
	}
	ips := make([]string, 0, len(pod.Status.PodIPs))
	for _, ip := range pod.Status.PodIPs {
		ips = append(ips, ip.IP)
	}
	return ips
}

// follow keeps the slots up to date with the pods, including those that are known already.
func (p *Pods) follow(slots *placement.Slots) error {
	set := func(obj any) {
		if pod, ok := obj.(*corev1.Pod); ok {
			slots.SetPod(revisionOf(pod), podOf(pod))
		}
	}
	registered, err := p.informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    set,
		UpdateFunc: func(_, obj any) { set(obj) },
		DeleteFunc: func(obj any) {
			if last, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = last.Obj
			}
			if pod, ok := obj.(*corev1.Pod); ok {
				slots.RemovePod(revisionOf(pod), pod.Namespace+"/"+pod.Name)
			}
		},
	})
	if err != nil {
		return err
	}
	p.handled = registered.HasSynced
	return nil
}

func revisionOf(pod *corev1.Pod) types.NamespacedName {
	return types.NamespacedName{Namespace: pod.Namespace, Name: pod.Labels[serving.RevisionLabelKey]}
}

func podOf(pod *corev1.Pod) placement.Pod {
	return placement.Pod{Name: pod.Namespace + "/" + pod.Name, Node: pod.Spec.NodeName, IPs: addressesOf(pod), Ready: takesRequests(pod)}
}

func takesRequests(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp == nil && pod.Status.Phase == corev1.PodRunning && api.PodReady(pod)
}

// trim keeps only the fields of a pod that are read, because the informer keeps every pod in memory.
func trim(obj any) (any, error) {
	pod, ok := obj.(*corev1.Pod)
	if !ok {
		return obj, nil
	}
	small := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name:            pod.Name,
			Namespace:       pod.Namespace,
			UID:             pod.UID,
			ResourceVersion: pod.ResourceVersion,
			// A pod that has it takes no more requests.
			DeletionTimestamp: pod.DeletionTimestamp,
			Labels:            map[string]string{serving.RevisionLabelKey: pod.Labels[serving.RevisionLabelKey]},
		},
		Spec:   corev1.PodSpec{NodeName: pod.Spec.NodeName},
		Status: corev1.PodStatus{Phase: pod.Status.Phase, PodIPs: pod.Status.PodIPs},
	}
	for i := range pod.Spec.Containers {
		c := &pod.Spec.Containers[i]
		small.Spec.Containers = append(small.Spec.Containers, corev1.Container{Name: c.Name, Resources: c.Resources})
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady {
			small.Status.Conditions = []corev1.PodCondition{{Type: c.Type, Status: c.Status}}
		}
	}
	for i := range pod.Status.ContainerStatuses {
		c := &pod.Status.ContainerStatuses[i]
		small.Status.ContainerStatuses = append(small.Status.ContainerStatuses,
			corev1.ContainerStatus{Name: c.Name, ContainerID: c.ContainerID, State: corev1.ContainerState{Running: c.State.Running}})
	}
	return small, nil
}
