package scheduler

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"go.opentelemetry.io/otel/metric/noop"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	testingclock "k8s.io/utils/clock/testing"
	"knative.dev/serving/pkg/apis/serving"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"
	"pgregory.net/rapid"
	"sigs.k8s.io/yaml"

	"libra.dev/libra/activator-plugin/placement/tapp"
	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/api/v1alpha1"
	"libra.dev/libra/pkg/settings"
)

// world is what the plugin knows. It implements orders and live.
type world struct {
	order  *tapp.Order
	mode   api.Mode
	source api.Source
	labels map[string]string // of the nodes: their label for the source
}

func (w *world) OrderOf(types.NamespacedName, string) *tapp.Order { return w.order }
func (w *world) For(string) settings.Settings {
	return settings.Settings{Mode: w.mode, MaxMode: api.ModeFull}
}
func (w *world) NamespaceSource(string) api.Source { return w.source }

// activated remembers which pods are tried again.
var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// newTestPlugin returns a plugin that knows these nodes, and a function that needs that much.
func newTestPlugin(w *world, nodes map[string]*reading, need int64) *Plugin {
	m, err := newMetrics(noop.NewMeterProvider())
	if err != nil {
		panic(err)
	}
	clk := testingclock.NewFakeClock(start)
	p := &Plugin{
		clock: clk, orders: w, settings: w, metrics: m, waiting: newWaiting(klog.Background(), activated(nil)),
		follower: &follower{clock: clk, metrics: m},
	}
	for _, r := range nodes {
		r.placed = &placed{left: r}
	}
	p.follower.picture.Store(&picture{at: start, nodes: nodes})
	if need > 0 {
		p.follower.leanings.hear(&api.Observation{Ended: api.Ended{Configuration: "shop/cart", Predicted: api.Resources{CPUMilli: need}}})
	}
	return p
}

// functionPod returns a pod of shop/cart, whose allocation is one core.
func functionPod() *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "cart-1", UID: "1", Labels: map[string]string{
			api.EnabledLabel: api.EnabledValue, serving.ConfigurationLabelKey: "cart", serving.RevisionLabelKey: "cart-00001",
		}},
		Spec: corev1.PodSpec{Containers: []corev1.Container{
			{Name: api.QueueProxyContainer},
			{Name: "mine", Ports: []corev1.ContainerPort{{Name: servingv1.UserPortName}}, Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}}},
		}},
	}
}

func (w *world) node(name string) fwk.NodeInfo {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if source, labelled := w.labels[name]; labelled {
		node.Labels = map[string]string{api.SourceLabel: source}
	}
	info := framework.NewNodeInfo()
	info.SetNode(node)
	return info
}

func (w *world) infosOf(names []string) (infos []fwk.NodeInfo) {
	for _, name := range names {
		infos = append(infos, w.node(name))
	}
	return infos
}

// schedule runs the framework's steps, and returns which nodes are left with which scores. scores are nil if the
// plugin skips scoring.
func schedule(t interface{ Fatalf(string, ...any) }, p *Plugin, pod *corev1.Pod, names []string) (left []string, scores map[string]int64, refused string) {
	ctx, state, w := context.Background(), framework.NewCycleState(), p.settings.(*world)
	left = names
	if _, status := p.PreFilter(ctx, state, pod, w.infosOf(names)); !status.IsSkip() {
		if !status.IsSuccess() {
			return nil, nil, status.Message()
		}
		left = slices.DeleteFunc(slices.Clone(names), func(name string) bool { return !p.Filter(ctx, state, pod, w.node(name)).IsSuccess() })
	}
	if status := p.PreScore(ctx, state, pod, w.infosOf(left)); status.IsSkip() {
		return left, nil, ""
	} else if !status.IsSuccess() {
		t.Fatalf("PreScore() = %v", status)
	}
	var list fwk.NodeScoreList
	for _, name := range left {
		score, status := p.Score(ctx, state, pod, w.node(name))
		if !status.IsSuccess() {
			t.Fatalf("Score(%s) = %v", name, status)
		}
		list = append(list, fwk.NodeScore{Name: name, Score: score})
	}
	if status := p.NormalizeScore(ctx, state, pod, list); !status.IsSuccess() {
		t.Fatalf("NormalizeScore() = %v", status)
	}
	scores = map[string]int64{}
	for _, s := range list {
		scores[s.Name] = s.Score
	}
	return left, scores, ""
}

// orderOf returns the order of the policy gpu in a cluster with these nodes.
func orderOf(t interface{ Fatal(...any) }, spec string, names []string) *tapp.Order {
	var of v1alpha1.PlacementPolicySpec
	if err := yaml.UnmarshalStrict([]byte(spec), &of); err != nil {
		t.Fatal(err)
	}
	var nodes []tapp.Node
	for _, name := range names {
		nodes = append(nodes, tapp.Node{Name: name, Reachable: true})
	}
	program, err := tapp.Compile("gpu", &of, tapp.NewNodes(nodes), tapp.Options{PlacesPods: true})
	if err != nil {
		t.Fatal(err)
	}
	return tapp.NewOrder("gpu", types.NamespacedName{Namespace: "shop", Name: "cart-00001"}, program, nil)
}

// readingOf returns what a node has, in the domain shop and in another.
func readingOf(idle, surplus, lacks int64) *reading {
	r := &reading{domains: map[string]*domainReading{"shop": {}, "bank": {}}}
	r.idle.Store(idle)
	r.domains["shop"].surplus.Store(surplus)
	r.domains["shop"].lacks.Store(lacks)
	r.domains["bank"].surplus.Store(5000)
	r.domains["bank"].lacks.Store(5000)
	return r
}

// inShop returns what is lent and lacks in the domain shop.
func (r *reading) inShop() (surplus, lacks int64) {
	if d := r.domains["shop"]; d != nil {
		return d.surplus.Load(), d.lacks.Load()
	}
	return 0, 0
}

func TestScores(t *testing.T) {
	nodes := map[string]*reading{"a": readingOf(4000, 1000, 0), "b": readingOf(1000, 2000, 300), "c": readingOf(0, 0, 600), "d": {}}
	names := slices.Sorted(maps.Keys(nodes))
	for name, tc := range map[string]struct {
		world world
		need  int64
		want  map[string]int64
	}{
		"a borrower, of owners":             {world{mode: api.ModeFull, source: api.SourceOwners}, 1500, map[string]int64{"a": 50, "b": 100, "c": 0, "d": 0}},
		"a borrower of more than any has":   {world{mode: api.ModeFull, source: api.SourceOwners}, 5000, map[string]int64{"a": 25, "b": 50, "c": 0, "d": 0}},
		"a borrower, of nodes":              {world{mode: api.ModeFull, source: api.SourceNode}, 1500, map[string]int64{"a": 100, "b": 25, "c": 0, "d": 0}},
		"a donor":                           {world{mode: api.ModeFull, source: api.SourceOwners}, 400, map[string]int64{"a": 0, "b": 50, "c": 100, "d": 0}},
		"a donor that lends alone":          {world{mode: api.ModeLend, source: api.SourceOwners}, 400, map[string]int64{"a": 0, "b": 50, "c": 100, "d": 0}},
		"a donor where none is needed":      {world{mode: api.ModeFull, source: api.SourceNode}, 400, nil},
		"a donor, needed on one node":       {world{mode: api.ModeFull, source: api.SourceNode, labels: map[string]string{"b": "owners"}}, 400, map[string]int64{"a": 0, "b": 60, "c": 0, "d": 0}},
		"a borrower that may not":           {world{mode: api.ModeLend, source: api.SourceOwners}, 1500, nil},
		"a donor that is observed":          {world{mode: api.ModeObserve, source: api.SourceOwners}, 400, nil},
		"neither":                           {world{mode: api.ModeFull, source: api.SourceOwners}, 900, nil},
		"a borrower, of owners on one node": {world{mode: api.ModeFull, source: api.SourceNode, labels: map[string]string{"b": "owners"}}, 1500, map[string]int64{"a": 100, "b": 50, "c": 0, "d": 0}},
		"a borrower, of nodes on one":       {world{mode: api.ModeFull, source: api.SourceOwners, labels: map[string]string{"c": "node", "a": "node"}}, 1500, map[string]int64{"a": 100, "b": 50, "c": 0, "d": 0}},
		"labels that cannot be read":        {world{mode: api.ModeFull, source: api.SourceOwners, labels: map[string]string{"a": "Node", "b": ""}}, 1500, map[string]int64{"a": 50, "b": 100, "c": 0, "d": 0}},
		"one never heard of":                {world{mode: api.ModeFull, source: api.SourceOwners}, 0, nil},
	} {
		t.Run(name, func(t *testing.T) {
			left, got, _ := schedule(t, newTestPlugin(&tc.world, nodes, tc.need), functionPod(), names)
			if !slices.Equal(left, names) || !maps.Equal(got, tc.want) {
				t.Errorf("nodes %v, scores %v, want all and %v", left, got, tc.want)
			}
		})
	}
}

func TestNothingIsSaidOfStrangersNorByAnOldPicture(t *testing.T) {
	w := &world{mode: api.ModeFull, source: api.SourceOwners}
	nodes := map[string]*reading{"a": readingOf(0, 1000, 1000), "b": {}}
	names := []string{"a", "b"}
	p := newTestPlugin(w, nodes, 1500)
	if _, scores, _ := schedule(t, p, functionPod(), names); scores == nil {
		t.Fatal("nothing is said of a function")
	}
	stranger := functionPod()
	delete(stranger.Labels, api.EnabledLabel)
	w.order = orderOf(t, "{followup: fail, blocks: [{workers: [{node: b}]}]}", names)
	if left, scores, _ := schedule(t, p, stranger, names); len(left) != 2 || scores != nil {
		t.Errorf("of a stranger: nodes %v, scores %v", left, scores)
	}
	w.order = nil
	unlimited := functionPod()
	unlimited.Spec.Containers[1].Resources.Limits = nil
	if _, scores, _ := schedule(t, p, unlimited, names); scores != nil {
		t.Errorf("of a function without a limit: scores %v", scores)
	}
	p.follower.clock.(*testingclock.FakeClock).Step(staleAfter + 1)
	if _, scores, _ := schedule(t, p, functionPod(), names); scores != nil {
		t.Errorf("with an old picture: scores %v", scores)
	}
}

// CPU that a pod just placed will use is not there for the next pod.
func TestPodsInARowAreSpread(t *testing.T) {
	w := &world{mode: api.ModeFull, source: api.SourceOwners}
	nodes := map[string]*reading{"a": readingOf(0, 1000, 0), "b": readingOf(0, 900, 0)}
	p := newTestPlugin(w, nodes, 1500)
	ctx, pod := context.Background(), functionPod()
	var last fwk.CycleState
	place := func() string {
		_, scores, _ := schedule(t, p, pod, []string{"a", "b"})
		best := "a"
		if scores["b"] > scores["a"] {
			best = "b"
		}
		state := framework.NewCycleState()
		last = state
		p.PreFilter(ctx, state, pod, nil)
		pod.UID = types.UID(fmt.Sprint(len(pod.UID)) + string(pod.UID))
		p.Reserve(ctx, state, pod, best)
		return best
	}
	got := []string{place(), place(), place(), place()}
	if want := []string{"a", "b", "a", "b"}; !slices.Equal(got, want) {
		t.Errorf("they go to %v, want %v", got, want)
	}
	p.Unreserve(ctx, last, pod, "b")
	if left, _ := nodes["b"].inShop(); left != 400 {
		t.Errorf("%d is left of b when one was not placed after all, want 400 of 900", left)
	}
	for after, want := range map[time.Duration]int64{0: 0, window / 2: 500, window - time.Second: 984, window: 1000} {
		r := readingOf(0, 1000, 0)
		// A copy, because what was placed before the window is forgotten.
		lately := placed{pods: slices.Clone(nodes["a"].placed.pods)}
		lately.show(r, start.Add(after))
		if left, _ := r.inShop(); left != want {
			t.Errorf("after %s %d is left of a, want %d", after, left, want)
		}
	}
}

// What is left does not depend on how often means were taken meanwhile, and all of it is there again in the end.
func TestWhatIsPlacedIsSubtractedOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p, now := &placed{}, start
		r := readingOf(4000, 3000, 2000)
		p.show(r, now)
		next := 0
		for i := range rapid.IntRange(1, 40).Draw(t, "steps") {
			switch rapid.IntRange(0, 3).Draw(t, fmt.Sprint("step ", i)) {
			case 0:
				p.add(placing{
					pod: types.UID(fmt.Sprint(next)), at: now, milli: rapid.Int64Range(1, 5000).Draw(t, "milli"),
					role: rapid.SampledFrom([]role{borrower, donor}).Draw(t, "role"), domain: rapid.SampledFrom([]string{"shop", "bank", "new"}).Draw(t, "domain"),
				})
				next++
			case 1:
				p.remove(types.UID(fmt.Sprint(rapid.IntRange(0, max(0, next-1)).Draw(t, "removed"))))
			case 2:
				now = now.Add(time.Duration(rapid.IntRange(0, 40).Draw(t, "seconds")) * time.Second)
			default:
				r = readingOf(4000, 3000, 2000)
				p.show(r, now)
			}
			var idle, surplus, lacks int64
			for _, l := range p.pods {
				if l.role == borrower {
					idle += l.taken
				}
				if l.role == borrower && l.domain == "shop" {
					surplus += l.taken
				}
				if l.role == donor && l.domain == "shop" {
					lacks += l.taken
				}
				if l.taken <= 0 && l.milli >= 60 || l.taken > l.milli {
					t.Fatalf("%d is taken of %d", l.taken, l.milli)
				}
			}
			if s, k := r.inShop(); r.idle.Load() != 4000-idle || s != 3000-surplus || k != 2000-lacks {
				t.Fatalf("left are %d idle, %d and %d, and %+v was placed", r.idle.Load(), s, k, p.pods)
			}
		}
		for _, l := range slices.Clone(p.pods) {
			p.remove(l.pod)
		}
		if s, k := r.inShop(); r.idle.Load() != 4000 || s != 3000 || k != 2000 {
			t.Fatalf("left are %d idle, %d and %d when nothing is placed", r.idle.Load(), s, k)
		}
	})
}

// The scheduler skips scoring when only one node can have the pod.
func TestPodsWithOneFeasibleNodeAreRemembered(t *testing.T) {
	w := &world{mode: api.ModeFull, source: api.SourceOwners}
	nodes := map[string]*reading{"a": readingOf(3000, 1000, 0)}
	p := newTestPlugin(w, nodes, 1500)
	reserve := func(pod *corev1.Pod) {
		state := framework.NewCycleState()
		p.PreFilter(t.Context(), state, pod, nil)
		p.Reserve(t.Context(), state, pod, "a")
	}
	stranger := functionPod()
	delete(stranger.Labels, api.EnabledLabel)
	reserve(stranger)
	reserve(functionPod())
	w.order = orderOf(t, "{blocks: [{workers: [{node: a}]}]}", []string{"a"})
	reserve(functionPod())
	if left, _ := nodes["a"].inShop(); left != 0 || nodes["a"].idle.Load() != 2000 {
		t.Errorf("two borrowers of 500 leave %d of 1000 that is lent, and %d of 3000 that is idle", left, nodes["a"].idle.Load())
	}
}

// The scheduler scores nodes only if more than one is left, and none if it refuses the pod.
func TestEveryAttemptIsCounted(t *testing.T) {
	w := &world{mode: api.ModeFull, source: api.SourceOwners}
	p := newTestPlugin(w, map[string]*reading{"a": {}}, 1500)
	reader := sdkmetric.NewManualReader()
	var err error
	if p.metrics, err = newMetrics(sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))); err != nil {
		t.Fatal(err)
	}
	attempt := func(pod *corev1.Pod) {
		p.PreFilter(t.Context(), framework.NewCycleState(), pod, w.infosOf([]string{"a"}))
	}
	attempt(functionPod())
	w.order = orderOf(t, "{followup: fail, blocks: [{workers: [{node: gone}]}]}", []string{"a"})
	attempt(functionPod())
	stranger := functionPod()
	delete(stranger.Labels, api.EnabledLabel)
	attempt(stranger)
	var all metricdata.ResourceMetrics
	if err := reader.Collect(t.Context(), &all); err != nil {
		t.Fatal(err)
	}
	got := map[bool]int64{}
	for _, m := range all.ScopeMetrics[0].Metrics {
		if m.Name != "libra.scheduler.pods" {
			continue
		}
		for _, point := range m.Data.(metricdata.Sum[int64]).DataPoints {
			if is, _ := point.Attributes.Value("outcome"); is.AsString() != string(outcomeBorrower) {
				t.Errorf("The outcome is %s", is.AsString())
			}
			policy, _ := point.Attributes.Value("policy")
			got[policy.AsBool()] += point.Value
		}
	}
	if want := map[bool]int64{false: 1, true: 1}; !maps.Equal(got, want) {
		t.Errorf("Attempts with and without a policy are %v, want %v", got, want)
	}
}

func TestScoresAreWithinBoundsAndMonotone(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := &world{
			mode:   rapid.SampledFrom([]api.Mode{api.ModeObserve, api.ModeLend, api.ModeFull}).Draw(t, "mode"),
			source: rapid.SampledFrom([]api.Source{api.SourceNode, api.SourceOwners}).Draw(t, "source"),
		}
		milli := rapid.OneOf(rapid.Int64Range(0, 200), rapid.Int64Range(0, 256_000), rapid.Just(int64(1)<<50))
		nodes, names := map[string]*reading{}, []string{}
		for i := range rapid.IntRange(1, 8).Draw(t, "nodes") {
			name := fmt.Sprint("node-", i)
			names = append(names, name)
			nodes[name] = readingOf(milli.Draw(t, "idle"), milli.Draw(t, "surplus"), milli.Draw(t, "lacks"))
		}
		if rapid.Bool().Draw(t, "policy") {
			w.order = orderOf(t, rapid.SampledFrom([]string{
				"{blocks: [{workers: [{node: node-0}]}, {workers: [{node: node-1}, {node: node-2}]}]}",
				"{followup: fail, blocks: [{workers: [{node: node-0}]}, {workers: [{node: node-1}, {node: node-2}]}]}",
				"{strategy: random, blocks: [{workers: [{node: node-0}]}, {workers: [{node: node-1}]}]}",
				"{followup: fail, strategy: platform, blocks: [{workers: [{node: node-3}]}, {workers: [{set: {}}]}]}",
			}).Draw(t, "spec"), names)
		}
		need := rapid.SampledFrom([]int64{0, 100, 950, 1100, 9000}).Draw(t, "need")
		p := newTestPlugin(w, nodes, need)
		left, scores, refused := schedule(t, p, functionPod(), names)
		if w.order == nil || !w.order.Refuses() {
			if len(left) != len(names) || refused != "" {
				t.Fatalf("of %v are left %v (%s), and no policy says fail", names, left, refused)
			}
		}
		use := func(name string) int64 {
			surplus, lacks := nodes[name].inShop()
			switch role, _ := roleOf(need, 1000, w.mode); {
			case need == 0 || role == neither || role == donor && w.source == api.SourceNode:
				return 0
			case role == donor:
				return lacks
			case w.source == api.SourceNode:
				return nodes[name].idle.Load()
			default:
				return surplus
			}
		}
		rank := func(name string) int {
			if w.order == nil {
				return 0
			}
			r, _ := w.order.Rank(name)
			return r
		}
		for a, score := range scores {
			if score < fwk.MinScore || score > fwk.MaxScore {
				t.Fatalf("the score of %s is %d", a, score)
			}
			for b := range scores {
				switch {
				case rank(a) < rank(b) && score <= scores[b]:
					t.Fatalf("%s comes before %s by policy, and has %d where that has %d", a, b, score, scores[b])
				case rank(a) == rank(b) && use(a) >= use(b) && score < scores[b]:
					t.Fatalf("%s has %d of use and %s %d, but the scores are %d and %d", a, use(a), b, use(b), score, scores[b])
				}
			}
		}
	})
}

// Whatever its name and its place among the pod's containers, the one that Knative sends requests to counts.
func TestAllocation(t *testing.T) {
	limited := func(name, cpu string, ports ...string) corev1.Container {
		c := corev1.Container{Name: name, Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}}}
		for _, port := range ports {
			c.Ports = append(c.Ports, corev1.ContainerPort{Name: port})
		}
		return c
	}
	helper, proxy := limited("helper", "250m", "metrics"), limited(api.QueueProxyContainer, "1", "queue-port")
	for name, tc := range map[string]struct {
		containers []corev1.Container
		want       int64
	}{
		"Knative's name":        {[]corev1.Container{limited(api.UserContainer, "2"), proxy}, 2000},
		"a name of its own":     {[]corev1.Container{proxy, limited("mine", "2", servingv1.UserPortName)}, 2000},
		"a helper comes first":  {[]corev1.Container{helper, limited("mine", "2", servingv1.UserPortName), proxy}, 2000},
		"a helper comes second": {[]corev1.Container{limited("mine", "2", servingv1.UserPortName), helper, proxy}, 2000},
		"none":                  {[]corev1.Container{helper, proxy}, 0},
	} {
		if got := allocation(&corev1.Pod{Spec: corev1.PodSpec{Containers: tc.containers}}); got != tc.want {
			t.Errorf("%s: the allocation is %d, want %d", name, got, tc.want)
		}
	}
}

func TestFilter(t *testing.T) {
	names := []string{"a", "b", "c"}
	for name, tc := range map[string]struct {
		spec    string
		left    []string
		refused string
	}{
		"fail":                    {"{followup: fail, blocks: [{workers: [{node: b}]}, {workers: [{node: c}]}]}", []string{"b", "c"}, ""},
		"fail, no node":           {"{followup: fail, blocks: [{workers: [{node: x}]}]}", nil, "placement policy gpu names no existing node"},
		"default":                 {"{blocks: [{workers: [{node: b}]}]}", names, ""},
		"default, no node":        {"{blocks: [{workers: [{node: x}]}]}", names, ""},
		"a moment is not counted": {"{followup: fail, blocks: [{workers: [{node: b}], invalidate: {capacityUsedPercent: 1}}]}", []string{"b"}, ""},
		"zones of activators":     {"{followup: fail, blocks: [{controller: {zone: z, topologyTolerance: none}, workers: [{node: b}]}]}", []string{"b"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			w := &world{mode: api.ModeFull, source: api.SourceNode, order: orderOf(t, tc.spec, names)}
			left, _, refused := schedule(t, newTestPlugin(w, nil, 0), functionPod(), names)
			if !slices.Equal(left, tc.left) || refused != tc.refused {
				t.Errorf("left are %v (%q), want %v (%q)", left, refused, tc.left, tc.refused)
			}
		})
	}
}

// edited is a policy that is replaced by another while the first pod is looked at.
type edited struct {
	*world
	then *tapp.Order
}

func (e *edited) OrderOf(name types.NamespacedName, label string) *tapp.Order {
	order := e.world.OrderOf(name, label)
	e.world.order = e.then
	return order
}

// After an edit, waiting pods are tried again, and a pod that is not waiting yet follows the edit.
func TestPolicyEditedWhileAPodIsLookedAt(t *testing.T) {
	names := []string{"a", "b"}
	w := &world{mode: api.ModeFull, source: api.SourceNode, order: orderOf(t, "{followup: fail, blocks: [{workers: [{node: gone}]}]}", names)}
	p := newTestPlugin(w, nil, 0)
	p.orders = &edited{w, orderOf(t, "{followup: fail, blocks: [{workers: [{node: b}]}]}", names)}
	if left, _, refused := schedule(t, p, functionPod(), names); !slices.Equal(left, []string{"b"}) {
		t.Errorf("left are %v (%q), want the node that the edit names", left, refused)
	}
}

// BenchmarkScore scores 1,000 nodes for a borrower, with 4,000 pods placed in the last minute.
func BenchmarkScore(b *testing.B) {
	const nodes, pods = 1000, 4000
	w := &world{mode: api.ModeFull, source: api.SourceOwners}
	known, names := map[string]*reading{}, []string{}
	for i := range nodes {
		name := fmt.Sprintf("ip-10-0-%03d-%03d.eu-central-1.compute.internal", i>>8, i&255)
		known[name], names = readingOf(4000, 3000, 100), append(names, name)
	}
	p, infos := newTestPlugin(w, known, 1500), w.infosOf(names)
	ctx, pod, state := context.Background(), functionPod(), framework.NewCycleState()
	p.PreFilter(ctx, state, pod, infos)
	for i := range pods {
		pod.UID = types.UID(fmt.Sprint(i))
		p.Reserve(ctx, state, pod, names[i%nodes])
	}
	for b.Loop() {
		for _, info := range infos {
			p.Score(ctx, state, pod, info)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*nodes), "ns/node")
}
