package tapp

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/metric"
	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"

	"libra.dev/libra/activator-plugin/placement"
	"libra.dev/libra/pkg/api/v1alpha1"
	"libra.dev/libra/pkg/once"
)

const (
	// gather is how long changes are gathered, so that many at once are compiled only once.
	gather = 50 * time.Millisecond
	// A compile is followed by a rest of restPerCompile times its own length: whoever may edit policies decides how many there are, and
	// how often they change.
	restPerCompile = 9
	// ownPatience is how long after its start an activator may take to find its own node before the policies are in force without
	// it. It is less than an activator waits for the policies.
	ownPatience = 2 * time.Second
	// look is how often to check whether everything has been read.
	look = 20 * time.Millisecond
)

var (
	namespaced = v1alpha1.GroupVersion.WithResource("placementpolicies")
	ofCluster  = v1alpha1.GroupVersion.WithResource("clusterplacementpolicies")
)

// PoliciesOptions are the collaborators of Policies.
type PoliciesOptions struct {
	Kube          kubernetes.Interface
	Dynamic       dynamic.Interface
	Clock         clock.Clock
	Logger        *zap.SugaredLogger
	MeterProvider metric.MeterProvider
	// Events records on a policy what becomes of it. It may be nil.
	Events record.EventRecorder
	// Activator is this activator's pod. Without a name, this is not an activator but a component that places pods.
	// It counts as in all zones, because activators of any zone may send to the pods that it places, and it reports
	// nothing in a policy's status.
	Activator types.NamespacedName
	// Platform decides where no policy does, and is the strategy of that name. Nil means placement.Default.
	Platform placement.Policy
	// Changed is called when what is in force may have changed. It must not block, and may be nil.
	Changed func()
}

// Policies are the cluster's policies, as they are now. If an edit of a policy is refused, what the policy said
// before stays in force. It implements placement.Programs.
type Policies struct {
	clock     clock.Clock
	logger    *zap.SugaredLogger
	kube      kubernetes.Interface
	activator types.NamespacedName
	metrics   *metrics
	reporter  *reporter
	onChange  func()

	nodes    cache.SharedIndexInformer
	kinds    []*kind
	handled  cache.InformerSynced // whether the first list of nodes has been handled
	force    atomic.Pointer[force]
	inForce  chan struct{} // closed when everything has been read
	changed  chan struct{}
	renodes  atomic.Bool // nodes have changed
	platform placement.Policy

	// Only Run uses these.
	known   map[key]*policy
	current *Nodes
	node    string // this activator's
}

// kind is one of the two kinds of policies.
type kind struct {
	resource schema.GroupVersionResource
	informer cache.SharedIndexInformer
	handled  cache.InformerSynced
	// absent says that there is no such kind here, or that the activator may not read it.
	absent atomic.Bool
}

// policy is what is known about one policy.
type policy struct {
	uid        types.UID
	generation int64 // the last that was read
	refused    error // what is wrong with that generation
	// These are in force, and of an older generation if the last was refused.
	compiled int64
	spec     *v1alpha1.PlacementPolicySpec
	program  *Program
	counts   *counts
}

// NewPolicies returns Policies that follow the cluster once they are run.
func NewPolicies(o PoliciesOptions) (*Policies, error) {
	m, err := newMetrics(o.MeterProvider)
	if err != nil {
		return nil, err
	}
	p := &Policies{
		clock: o.Clock, logger: o.Logger, kube: o.Kube, activator: o.Activator, metrics: m,
		inForce: make(chan struct{}), changed: make(chan struct{}, 1),
		platform: o.Platform, onChange: o.Changed,
		known: map[key]*policy{}, current: NewNodes(nil),
	}
	if p.platform == nil {
		p.platform = placement.Default
	}
	if o.Activator.Name != "" {
		p.reporter = newReporter(o, p.object)
	}
	p.renodes.Store(true)
	p.nodes = informers.NewSharedInformerFactoryWithOptions(o.Kube, 0, informers.WithTransform(trim)).Core().V1().Nodes().Informer()
	registered, err := p.nodes.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { p.nodesChanged() },
		UpdateFunc: func(was, is any) {
			if !reflect.DeepEqual(askable(was), askable(is)) {
				p.nodesChanged()
			}
		},
		DeleteFunc: func(any) { p.nodesChanged() },
	})
	if err != nil {
		return nil, fmt.Errorf("following nodes: %w", err)
	}
	p.handled = registered.HasSynced
	if err := p.nodes.SetWatchErrorHandlerWithContext(p.nodesUnread); err != nil {
		return nil, fmt.Errorf("following nodes: %w", err)
	}
	of := dynamicinformer.NewDynamicSharedInformerFactory(o.Dynamic, 0)
	for _, resource := range []schema.GroupVersionResource{namespaced, ofCluster} {
		k, err := p.follow(resource, of.ForResource(resource).Informer())
		if err != nil {
			return nil, fmt.Errorf("following %s: %w", resource.Resource, err)
		}
		p.kinds = append(p.kinds, k)
	}
	return p, nil
}

func (p *Policies) follow(resource schema.GroupVersionResource, informer cache.SharedIndexInformer) (*kind, error) {
	k := &kind{resource: resource, informer: informer}
	registered, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { p.change() },
		UpdateFunc: func(was, is any) {
			if generationOf(was) != generationOf(is) {
				p.change()
			}
		},
		DeleteFunc: func(any) { p.change() },
	})
	if err != nil {
		return nil, err
	}
	k.handled = registered.HasSynced
	return k, errors.Join(informer.SetTransform(withoutManagers), informer.SetWatchErrorHandlerWithContext(p.unread(k)))
}

// unread handles watch errors: it logs once that policies cannot be read, and why. The informer tries again, with
// a back-off.
func (p *Policies) unread(k *kind) cache.WatchErrorHandlerWithContext {
	var said once.Set[string]
	refused := false
	return func(_ context.Context, _ *cache.Reflector, err error) {
		// Other errors may pass by themselves, so they are waited out. So may a single refusal: an API server that has just
		// started does not know all rights yet.
		switch {
		case apierrors.IsNotFound(err):
			k.absent.Store(true)
		case apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err):
			k.absent.CompareAndSwap(false, refused)
			refused = true
		}
		switch {
		case !said.First(err.Error()):
		case apierrors.IsNotFound(err):
			p.logger.Infow("There are no placement policies of this kind, because its CustomResourceDefinition is not installed. This is logged once.", "resource", k.resource.Resource)
		default:
			p.logger.Warnw("Cannot watch placement policies, so those read so far stay in force; get, list and watch on them are needed. This is logged once.",
				"resource", k.resource.Resource, zap.Error(err))
		}
	}
}

func (p *Policies) nodesUnread(_ context.Context, _ *cache.Reflector, err error) {
	p.logger.Warnw("Cannot watch nodes, so placement policies use the nodes read so far, or are not in force if none were read; get, list and watch on nodes are needed", zap.Error(err))
}

// Of implements placement.Programs.
func (p *Policies) Of(namespace, tag string) placement.Program {
	f := p.force.Load()
	if f == nil {
		return nil
	}
	// A nil *enforced in an interface is not nil.
	if e := f.of(namespace, tag); e != nil {
		return e
	}
	return nil
}

// WaitUntilRead waits until the policies are in force, ctx is done, or it is plain that there are none.
func (p *Policies) WaitUntilRead(ctx context.Context) error {
	select {
	case <-p.inForce:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("reading the placement policies: %w", context.Cause(ctx))
	}
}

// Run follows the cluster until ctx is done.
func (p *Policies) Run(ctx context.Context) {
	var running sync.WaitGroup
	defer running.Wait()
	running.Go(func() { p.nodes.RunWithContext(ctx) })
	for _, k := range p.kinds {
		running.Go(func() { k.informer.RunWithContext(ctx) })
	}
	own, patience := make(chan string, 1), p.clock.After(ownPatience)
	if p.reporter != nil {
		running.Go(func() { p.reporter.run(ctx) })
		running.Go(func() { p.findNode(ctx, own) })
	}

	if err := wait.PollUntilContextCancel(ctx, look, true, func(context.Context) (bool, error) { return p.read(), nil }); err != nil {
		return
	}
	if p.reporter != nil {
		// Policies say what to do in other zones, and all zones are until the own one is known.
		select {
		case <-ctx.Done():
			return
		case p.node = <-own:
		case <-patience:
			select { // reading may have taken longer than that, and the node may have been found meanwhile
			case p.node = <-own:
			default:
			}
		}
	}
	for first := true; ; first = false {
		began := p.clock.Now()
		p.compile()
		compiled := p.clock.Now()
		if first {
			close(p.inForce)
		}
		select {
		case <-ctx.Done():
			return
		case p.node = <-own:
			p.renodes.Store(true)
			continue
		case <-p.changed:
		}
		select {
		case <-ctx.Done():
			return
		case <-p.clock.After(untilNext(compiled.Sub(began), p.clock.Since(compiled))):
		}
		// This compile includes what came meanwhile.
		select {
		case <-p.changed:
		default:
		}
	}
}

// untilNext returns how long to wait with the next compile after one that took so long, which ended so long ago.
func untilNext(took, ago time.Duration) time.Duration {
	return max(gather, restPerCompile*took-ago)
}

// read says whether everything has been read that can be.
func (p *Policies) read() bool {
	for _, k := range p.kinds {
		if !k.handled() && !k.absent.Load() {
			return false
		}
	}
	return p.handled()
}

// findNode finds the node that this activator is on. The activator is in that node's zone.
func (p *Policies) findNode(ctx context.Context, found chan<- string) {
	backoff := wait.Backoff{Duration: 100 * time.Millisecond, Factor: 2, Jitter: 0.1, Steps: 10, Cap: time.Minute}
	var said once.Set[string]
	_ = backoff.DelayWithReset(p.clock, time.Hour).Until(ctx, true, true, func(ctx context.Context) (bool, error) {
		ctx, cancel := context.WithTimeout(ctx, requestTimeout)
		defer cancel()
		pod, err := p.kube.CoreV1().Pods(p.activator.Namespace).Get(ctx, p.activator.Name, metav1.GetOptions{})
		switch {
		case err == nil && pod.Spec.NodeName != "":
			found <- pod.Spec.NodeName
			return true, nil
		case err != nil && said.First(err.Error()):
			p.logger.Warnw("Cannot read this activator's pod, so placement policies treat the activator as in no zone. This is logged once.", zap.Error(err))
		}
		return false, nil
	})
}

func (p *Policies) nodesChanged() {
	p.renodes.Store(true)
	p.change()
}

// change has the policies compiled soon.
func (p *Policies) change() {
	select {
	case p.changed <- struct{}{}:
	default:
	}
}

// compile puts in force what the informers have.
func (p *Policies) compile() {
	if p.renodes.Swap(false) {
		p.current = p.readNodes()
	}
	options := Options{Zone: p.current.zone(p.node), PlacesPods: p.reporter == nil, Policy: p.named}
	there := make(map[key]*policy, len(p.known))
	for _, k := range p.kinds {
		for _, obj := range k.informer.GetStore().List() {
			u := obj.(*unstructured.Unstructured)
			of := key{u.GetNamespace(), u.GetName()}
			known := p.known[of]
			// A policy that was recreated is another policy.
			if known == nil || known.uid != u.GetUID() {
				known = &policy{uid: u.GetUID(), counts: &counts{}}
			}
			there[of] = known
			if known.generation != u.GetGeneration() {
				p.edit(of, known, u, options)
			}
			// If that was refused, the last that was accepted follows the nodes.
			if known.program != nil && known.program.nodes != p.current {
				p.recompile(of, known, options)
			}
		}
	}
	p.known = there
	f := &force{policies: make(map[key]*enforced, len(there)), platform: p.platform}
	for of, known := range there {
		if known.program != nil {
			f.policies[of] = &enforced{Program: known.program, in: f, counts: known.counts, key: of, generation: known.compiled}
		}
	}
	p.force.Store(f)
	p.metrics.inForce(there)
	if p.reporter != nil {
		p.reporter.report(there)
	}
	if p.onChange != nil {
		p.onChange()
	}
}

// edit takes in a new generation of a policy, or refuses it.
func (p *Policies) edit(of key, known *policy, u *unstructured.Unstructured, o Options) {
	known.generation = u.GetGeneration()
	spec, err := specOf(u)
	var program *Program
	if err == nil {
		program, err = Compile(of.name, spec, p.current, o)
	}
	known.refused = err
	if err != nil {
		known.counts.refusedEdits.Add(1)
		p.logger.Warnw("Refused a placement policy. The last accepted generation, if any, stays in force.",
			"policy", of.String(), "generation", known.generation, "inForce", known.compiled, zap.Error(err))
		return
	}
	known.spec, known.program, known.compiled = spec, program, known.generation
	p.logger.Infow("A placement policy is in force", "policy", of.String(), "generation", known.generation)
}

// recompile compiles a policy that was accepted for the nodes that there are now.
func (p *Policies) recompile(of key, known *policy, o Options) {
	program, err := Compile(of.name, known.spec, p.current, o)
	if err != nil {
		p.logger.Errorw("Failed to recompile a placement policy after nodes changed; it still uses the nodes from before", "policy", of.String(), zap.Error(err))
		return
	}
	known.program = program
}

// named returns the platform's choice, or placement's policy for a strategy.
func (p *Policies) named(s v1alpha1.Strategy) placement.Policy {
	if s == v1alpha1.Platform {
		return p.platform
	}
	return named(s)
}

func (p *Policies) readNodes() *Nodes {
	stored := p.nodes.GetStore().List()
	nodes := make([]Node, 0, len(stored))
	for _, obj := range stored {
		nodes = append(nodes, NodeOf(obj.(*corev1.Node)))
	}
	return NewNodes(nodes)
}

// object returns a policy as it was last read.
func (p *Policies) object(of key) (*unstructured.Unstructured, bool) {
	k, name := p.kinds[0], of.namespace+"/"+of.name
	if of.namespace == "" {
		k, name = p.kinds[1], of.name
	}
	obj, exists, err := k.informer.GetStore().GetByKey(name)
	if err != nil || !exists {
		return nil, false
	}
	return obj.(*unstructured.Unstructured), true
}

// generationOf differs for each spec, and for each policy that has had the same name.
func generationOf(obj any) (g struct {
	uid        types.UID
	generation int64
}) {
	if u, ok := obj.(*unstructured.Unstructured); ok {
		g.uid, g.generation = u.GetUID(), u.GetGeneration()
	}
	return g
}

func specOf(u *unstructured.Unstructured) (*v1alpha1.PlacementPolicySpec, error) {
	said, _ := u.Object["spec"].(map[string]any)
	var spec v1alpha1.PlacementPolicySpec
	// Refuse a field that a later definition has and this activator does not know.
	if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(said, &spec, true); err != nil {
		return nil, fmt.Errorf("spec: %w", err)
	}
	return &spec, nil
}

// trim keeps what policies ask of a node.
func trim(obj any) (any, error) {
	node, ok := obj.(*corev1.Node)
	if !ok {
		return obj, nil
	}
	small := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node.Name, UID: node.UID, ResourceVersion: node.ResourceVersion, Labels: node.Labels}}
	for _, c := range node.Status.Conditions {
		small.Status.Conditions = append(small.Status.Conditions, corev1.NodeCondition{Type: c.Type, Status: c.Status})
	}
	return small, nil
}

// askable returns what a policy can ask about a node, or the zero Node.
func askable(obj any) Node {
	if node, ok := obj.(*corev1.Node); ok {
		return NodeOf(node)
	}
	return Node{}
}

func withoutManagers(obj any) (any, error) {
	if u, ok := obj.(*unstructured.Unstructured); ok {
		u.SetManagedFields(nil)
	}
	return obj, nil
}
