package settings

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/once"
)

// Live has the settings as they are now. Until all have been read, they change nothing. A key of the ConfigMap that
// cannot be read leaves its setting as it was, which is the default at the start; all other keys hold. A label that
// cannot be read counts as none, so that it does not matter which parts of Libra saw an earlier one.
type Live struct {
	watches []watch
	synced  atomic.Bool
	refused func(error)

	settings atomic.Pointer[Settings] // of the ConfigMap
	partly   atomic.Bool              // something in the ConfigMap is not accepted
	// Only namespaces and nodes with a source of their own have an entry.
	namespaces, nodes sync.Map
	policies          policies
	written           cache.Store // the HarvestPolicies themselves

	mu        sync.Mutex
	listeners []func()
	toldAt    time.Time // when the listeners were called last
	telling   bool      // they are about to be called
}

// namespacesEvery is the least time between two calls of the listeners for changes of namespaces' policies.
const namespacesEvery = time.Second

// watch is how one kind of object that settings are in is watched.
type watch struct {
	what     string
	informer cache.SharedIndexInformer
	set      func(obj any)
	remove   func(obj any)
	absent   *atomic.Bool // set if the cluster has no such kind; nil if it must have it
	// read says whether its first objects have been handled.
	read cache.InformerSynced
}

// NewLive returns settings that follow the cluster's once they are run. refused is called once with each thing that is
// wrong with a setting: a watch that fails is tried again and again. Without objects there are no HarvestPolicies.
func NewLive(client kubernetes.Interface, objects dynamic.Interface, refused func(error)) (*Live, error) {
	var said once.Set[string]
	l := &Live{refused: func(err error) {
		if said.First(err.Error()) {
			refused(err)
		}
	}}
	l.settings.Store(&Absent)

	configMap := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithNamespace(Namespace),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) {
			o.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, ConfigMap).String()
		})).Core().V1().ConfigMaps().Informer()
	labelled := informers.NewSharedInformerFactoryWithOptions(client, 0,
		informers.WithTweakListOptions(func(o *metav1.ListOptions) { o.LabelSelector = api.SourceLabel }),
		informers.WithTransform(trim))

	l.watches = []watch{
		{what: "ConfigMap " + Namespace + "/" + ConfigMap, informer: configMap, set: l.setSettings, remove: l.removeSettings},
		{what: "namespaces", informer: labelled.Core().V1().Namespaces().Informer(), set: l.setSource(&l.namespaces, "namespace"), remove: l.removeSource(&l.namespaces)},
		{what: "nodes", informer: labelled.Core().V1().Nodes().Informer(), set: l.setSource(&l.nodes, "node"), remove: l.removeSource(&l.nodes)},
	}
	if objects != nil {
		of := dynamicinformer.NewDynamicSharedInformerFactory(objects, 0)
		informer := of.ForResource(harvestPolicies).Informer()
		l.written = informer.GetStore()
		l.watches = append(l.watches, watch{what: "HarvestPolicies", informer: informer, set: l.setPolicy, remove: l.removePolicy, absent: &l.policies.absent})
	}
	for i := range l.watches {
		watched := &l.watches[i]
		handler, err := watched.informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc:    watched.set,
			UpdateFunc: func(_, obj any) { watched.set(obj) },
			DeleteFunc: func(obj any) {
				if last, ok := obj.(cache.DeletedFinalStateUnknown); ok {
					obj = last.Obj
				}
				watched.remove(obj)
			},
		})
		if err != nil {
			return nil, fmt.Errorf("following %s: %w", watched.what, err)
		}
		if err := watched.informer.SetWatchErrorHandlerWithContext(func(_ context.Context, _ *cache.Reflector, err error) {
			if watched.absent != nil && apierrors.IsNotFound(err) {
				watched.absent.Store(true)
				return
			}
			l.refused(fmt.Errorf("cannot watch %s, so the settings stay as they are; this needs the verbs get, list and watch: %w", watched.what, err))
		}); err != nil {
			return nil, fmt.Errorf("following %s: %w", watched.what, err)
		}
		watched.read = func() bool {
			return handler.HasSynced() || watched.absent != nil && watched.absent.Load()
		}
	}
	return l, nil
}

// Run follows the cluster until ctx is done.
func (l *Live) Run(ctx context.Context) {
	var running sync.WaitGroup
	for _, watched := range l.watches {
		running.Go(func() { watched.informer.RunWithContext(ctx) })
	}
	// Settings that have been read until now have changed nothing yet.
	if cache.WaitForCacheSync(ctx.Done(), l.Synced) {
		l.changed()
	}
	running.Wait()
}

// Synced reports whether everything has been read once. Before that, the settings are not the cluster's.
func (l *Live) Synced() bool {
	// Asking the informers takes their locks, and every request asks.
	if l.synced.Load() {
		return true
	}
	if len(l.unread()) > 0 {
		return false
	}
	l.synced.Store(true)
	return true
}

func (l *Live) unread() (unread []string) {
	for _, watched := range l.watches {
		if !watched.read() {
			unread = append(unread, watched.what)
		}
	}
	return unread
}

// Ready is a probe: it fails until everything has been read once.
func (l *Live) Ready(*http.Request) error {
	if unread := l.unread(); len(unread) > 0 {
		return fmt.Errorf("still waiting to read %s; this needs the verbs get, list and watch on them, and the log names any refusal", strings.Join(unread, ", "))
	}
	return nil
}

// OnChange has f called soon after each change, and when everything has been read. It may be called before that, too. f
// must not block.
func (l *Live) OnChange(f func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.listeners = append(l.listeners, f)
}

// Settings returns the cluster's settings, which hold where nothing says otherwise. Before they have been read, nothing
// is to be changed.
func (l *Live) Settings() Settings {
	if !l.Synced() {
		return Default
	}
	return l.settings.Load().under(l.policies.byDefault.Load())
}

// For returns the settings of a namespace's functions, with its HarvestPolicy. Nodes and namespaces may have another
// source: see Source.
func (l *Live) For(namespace string) Settings {
	if !l.Synced() {
		return Absent
	}
	return l.settings.Load().under(l.policies.byDefault.Load()).under(l.policies.of(namespace))
}

// Placement returns how the pod of a request is chosen if no PlacementPolicy says so.
func (l *Live) Placement() api.Placement { return l.Settings().Placement }

// Source returns the source of what the pods of a namespace on a node lend and borrow.
func (l *Live) Source(namespace, node string) api.Source {
	if source, ok := l.nodes.Load(node); ok {
		return source.(api.Source)
	}
	return l.NamespaceSource(namespace)
}

// NamespaceSource returns the source of a namespace's pods on all nodes that do not name another.
func (l *Live) NamespaceSource(namespace string) api.Source {
	if policy := l.policies.of(namespace); policy != nil && policy.source != "" {
		return policy.source
	}
	if source, ok := l.namespaces.Load(namespace); ok {
		return source.(api.Source)
	}
	return l.Settings().Source
}

func (l *Live) setSettings(obj any) {
	cm, ok := obj.(*corev1.ConfigMap)
	if !ok {
		return
	}
	was := *l.settings.Load()
	s, err := was.Edit(cm.Data)
	l.partly.Store(err != nil)
	if err != nil {
		l.refused(fmt.Errorf("not all settings are accepted: %w", err))
		if s == was {
			return
		}
	}
	l.store(s)
}

func (l *Live) removeSettings(any) {
	l.partly.Store(false)
	l.store(Absent)
}

func (l *Live) store(s Settings) {
	l.settings.Store(&s)
	l.changed()
}

func (l *Live) setSource(of *sync.Map, kind string) func(any) {
	return func(obj any) {
		object, ok := obj.(metav1.Object)
		if !ok {
			return
		}
		source, err := api.ParseSource(object.GetLabels()[api.SourceLabel])
		if err != nil {
			l.refused(fmt.Errorf("ignoring label %s of %s %s: %w", api.SourceLabel, kind, object.GetName(), err))
			l.removeSource(of)(obj)
			return
		}
		// A kubelet updates its Node again and again.
		if was, known := of.Swap(object.GetName(), source); !known || was != source {
			l.changed()
		}
	}
}

func (l *Live) removeSource(of *sync.Map) func(any) {
	return func(obj any) {
		if object, ok := obj.(metav1.Object); ok {
			if _, known := of.LoadAndDelete(object.GetName()); known {
				l.changed()
			}
		}
	}
}

func (l *Live) changed() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.tell()
}

// changedInNamespace is changed for what the admins of a namespace may edit again and again: for each call, every part
// looks at all of its nodes and pods.
func (l *Live) changedInNamespace() {
	l.mu.Lock()
	defer l.mu.Unlock()
	wait := namespacesEvery - time.Since(l.toldAt)
	switch {
	case l.telling:
	case wait <= 0:
		l.tell()
	default:
		l.telling = true
		time.AfterFunc(wait, l.changed)
	}
}

// tell calls the listeners. The caller holds mu.
func (l *Live) tell() {
	l.toldAt, l.telling = time.Now(), false
	for _, f := range l.listeners {
		f()
	}
}

// trim keeps only what is read of a namespace or a node.
func trim(obj any) (any, error) {
	object, ok := obj.(metav1.Object)
	if !ok {
		return obj, nil
	}
	meta := metav1.ObjectMeta{Name: object.GetName(), UID: object.GetUID(), ResourceVersion: object.GetResourceVersion(), Labels: object.GetLabels()}
	switch obj.(type) {
	case *corev1.Namespace:
		return &corev1.Namespace{ObjectMeta: meta}, nil
	case *corev1.Node:
		return &corev1.Node{ObjectMeta: meta}, nil
	default:
		return obj, nil
	}
}
