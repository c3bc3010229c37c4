package policies

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	testingclock "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	"knative.dev/serving/pkg/apis/serving"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/yaml"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/api/v1alpha1"
	"libra.dev/libra/pkg/apiservertest"
	"libra.dev/libra/pkg/settings"
)

const account = "system:serviceaccount:libra-system:libra-resizer"

// cluster is an API server on which a Writer has the rights that the resizer has.
type cluster struct {
	*testing.T
	clock  *testingclock.FakeClock
	kube   client.Client
	cached client.Client
	live   *settings.Live
	events *events.FakeRecorder
	writer *Writer
	as     client.Client
}

func start(t *testing.T, objects ...client.Object) *cluster {
	t.Helper()
	config := apiservertest.Start(t, "../../manifests/base/crds")
	config.QPS = -1
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, servingv1.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	clientAs := func(user string) client.Client {
		as := rest.CopyConfig(config)
		as.Impersonate.UserName = user
		c, err := client.New(as, client.Options{Scheme: scheme})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	c := &cluster{
		T: t, clock: testingclock.NewFakeClock(time.Now().Truncate(time.Second)), kube: clientAs(""), as: clientAs(account), events: events.NewFakeRecorder(100),
		cached: fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).Build(),
	}
	for _, name := range []string{"shop", settings.Namespace} {
		c.do(c.kube.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}))
	}
	c.do(c.kube.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: settings.Namespace, Name: settings.ConfigMap}}))
	var role rbacv1.ClusterRole
	text, err := os.ReadFile("../../manifests/base/resizer/clusterrole.yaml")
	c.do(err)
	c.do(yaml.UnmarshalStrict(text, &role))
	c.do(c.kube.Create(t.Context(), &role))
	c.do(c.kube.Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "resizer"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.Name},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: account}},
	}))
	apiservertest.AwaitRight(t, config, account, authorizationv1.ResourceAttributes{Group: v1alpha1.GroupVersion.Group, Resource: "harvestpolicies", Subresource: "status", Verb: "patch"})
	kube, err := kubernetes.NewForConfig(config)
	c.do(err)
	dynamics, err := dynamic.NewForConfig(config)
	c.do(err)
	c.live, err = settings.NewLive(kube, dynamics, func(error) {})
	c.do(err)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var running sync.WaitGroup
	running.Go(func() { c.live.Run(ctx) })
	t.Cleanup(func() {
		cancel()
		running.Wait()
	})
	c.await("all is read", c.live.Synced)
	c.lead()
	return c
}

// lead has another Writer write from now on.
func (c *cluster) lead() {
	c.writer = NewWriter(c.clock, logr.Discard(), c.cached, c.as, c.live, c.events)
}

func (c *cluster) do(err error) {
	c.Helper()
	if err != nil {
		c.Fatal(err)
	}
}

func (c *cluster) await(what string, is func() bool) {
	c.Helper()
	for until := time.Now().Add(30 * time.Second); !is(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(until) {
			c.Fatalf("it does not come to be that %s", what)
		}
	}
}

// write sets the spec of a policy.
func (c *cluster) write(namespace string, spec v1alpha1.HarvestPolicySpec) {
	c.Helper()
	policy := &v1alpha1.HarvestPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "default"}, Spec: spec}
	err := c.kube.Create(c.Context(), policy)
	if err != nil {
		there := c.read(namespace)
		there.Spec = spec
		c.do(c.kube.Update(c.Context(), there))
		policy = there
	}
	c.seen(policy)
}

// seen waits until a policy is followed and also in the settings, which take it in a moment later.
func (c *cluster) seen(policy *v1alpha1.HarvestPolicy) {
	c.Helper()
	c.await("the policy is seen", func() bool {
		var byDefault, own *v1alpha1.HarvestPolicy
		for _, object := range c.live.HarvestPolicies() {
			typed, _ := settings.PolicyOf(object)
			if typed.Namespace == settings.Namespace {
				byDefault = &typed
			}
			if typed.Namespace == policy.Namespace && typed.ResourceVersion == policy.ResourceVersion {
				own = &typed
			}
		}
		want := settings.Default
		if byDefault != nil {
			want, _ = want.WithDefault(byDefault.Spec)
		}
		if own != nil && own.Namespace != settings.Namespace {
			want, _ = want.With(own.Spec)
		}
		return own != nil && c.live.For(policy.Namespace) == want
	})
}

func (c *cluster) read(namespace string) *v1alpha1.HarvestPolicy {
	c.Helper()
	policy := &v1alpha1.HarvestPolicy{}
	c.do(c.kube.Get(c.Context(), client.ObjectKey{Namespace: namespace, Name: "default"}, policy))
	return policy
}

// round runs a round after a time, and waits until all that it wrote has been seen.
func (c *cluster) round(after time.Duration) {
	c.Helper()
	c.clock.Step(after)
	c.do(c.writer.round(c.Context()))
	for _, object := range c.live.HarvestPolicies() {
		c.seen(c.read(object.GetNamespace()))
	}
}

// expectEvents expects the Events since its last call, each with its text.
func (c *cluster) expectEvents(want ...string) {
	c.Helper()
	var got []string
	for len(c.events.Events) > 0 {
		got = append(got, <-c.events.Events)
	}
	if len(got) != len(want) {
		c.Errorf("told %q, want %d Events", got, len(want))
		return
	}
	for i := range want {
		if !strings.Contains(got[i], want[i]) {
			c.Errorf("told %q, want %q in it", got[i], want[i])
		}
	}
}

func (c *cluster) expect(namespace string, functions, pods int32, conditions map[string]string) {
	c.Helper()
	policy := c.read(namespace)
	status := policy.Status
	if status.ObservedGeneration != policy.Generation || status.Functions != functions || status.Pods != pods {
		c.Errorf("%s: generation %d of %d, %d functions, %d pods; want %d and %d", namespace, status.ObservedGeneration, policy.Generation, status.Functions, status.Pods, functions, pods)
	}
	for name, want := range conditions {
		got := meta.FindStatusCondition(status.Conditions, name)
		if got == nil || want == "" && got.Status != metav1.ConditionTrue || want != "" && (got.Status != metav1.ConditionFalse || !strings.Contains(got.Message, want)) {
			c.Errorf("%s: condition %s is %+v, want %q", namespace, name, got, want)
		}
	}
}

func revision(namespace, name, cpu string, replicas int32, labels map[string]string) *servingv1.Revision {
	r := &servingv1.Revision{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{api.EnabledLabel: api.EnabledValue}}}
	for key, value := range labels {
		r.Labels[key] = value
	}
	r.Spec.Containers = []corev1.Container{{Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}}}}
	r.Status.ActualReplicas = ptr.To(replicas)
	return r
}

func node(name, cpu string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.NodeStatus{Allocatable: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}}}
}

const accepted, inForce = v1alpha1.ConditionAccepted, v1alpha1.ConditionInForce

// The Writer needs no more rights than the resizer has, and works with an API server that keeps a status
// apart from a spec.
func TestStatusOfPolicies(t *testing.T) {
	c := start(t,
		revision("shop", "cart-1", "1", 3, nil), revision("shop", "pay-1", "2", 1, nil), revision("bank", "audit-1", "500m", 2, nil),
		revision("shop", "cart-0", "1", 0, map[string]string{serving.RoutingStateLabelKey: string(servingv1.RoutingStateReserve)}),
		node("a", "2"), node("b", "8"))
	c.round(every) // without a policy

	c.write("shop", v1alpha1.HarvestPolicySpec{Mode: "full", MaxMode: "lend", MaxCPU: resource.NewMilliQuantity(1500, resource.DecimalSI)})
	c.write(settings.Namespace, v1alpha1.HarvestPolicySpec{Mode: "lend", CPUReserve: resource.NewQuantity(1, resource.DecimalSI)})
	c.round(every)
	c.expect("shop", 2, 4, map[string]string{
		accepted: "",
		inForce:  "spec.mode is full, but functions get no more than lend: that is the lowest of maxMode in this policy, maxMode in HarvestPolicy libra-system/default and max-mode in ConfigMap config-libra; spec.maxCPU is 1500m, which does not lower the higher CPU limit of 1 of the functions",
	})
	c.expect(settings.Namespace, 3, 6, map[string]string{accepted: "", inForce: ""})
	c.expectEvents("Normal Bounded spec.mode is full")

	// No Event is repeated: not later, and not by another leader.
	written := c.read("shop").ResourceVersion
	c.round(2 * recount)
	c.lead()
	c.round(every)
	c.expectEvents()
	if now := c.read("shop").ResourceVersion; now != written {
		t.Error("a status that says the same is written")
	}

	// A bound of the cluster shows at once; numbers are counted now and then.
	c.write("shop", v1alpha1.HarvestPolicySpec{Mode: "lend"})
	c.round(every)
	c.expect("shop", 2, 4, map[string]string{accepted: "", inForce: ""})
	c.write(settings.Namespace, v1alpha1.HarvestPolicySpec{MaxMode: "observe", CPUReserve: resource.NewQuantity(2, resource.DecimalSI)})
	c.round(every)
	c.expect("shop", 2, 4, map[string]string{inForce: "spec.mode is lend, but functions get no more than observe"})
	c.expect(settings.Namespace, 3, 6, map[string]string{inForce: "spec.cpuReserve is 2, and 1 of 2 nodes have no more allocatable CPU than that: no function goes beyond its limit there"})
	c.expectEventsOf("Bounded", 2)

	c.do(c.cached.Create(t.Context(), revision("shop", "new-1", "1", 1, nil)))
	c.round(every)
	c.expect("shop", 2, 4, nil)
	c.round(recount)
	c.expect("shop", 3, 5, nil)
	c.expectEvents()
}

func (c *cluster) expectEventsOf(reason string, n int) {
	c.Helper()
	for range n {
		select {
		case got := <-c.events.Events:
			if !strings.Contains(got, reason) {
				c.Errorf("told %q, want one of %s", got, reason)
			}
		default:
			c.Errorf("fewer than %d Events are told", n)
		}
	}
	c.expectEvents()
}

// Where the admission policy is not in force, the status names what only the cluster's default may say.
func TestARefusedPolicyIsNamed(t *testing.T) {
	c := start(t)
	c.write("shop", v1alpha1.HarvestPolicySpec{Mode: "full", CPUReserve: resource.NewQuantity(1, resource.DecimalSI)})
	c.round(every)
	const says = "spec.cpuReserve is ignored: it applies to nodes, so only HarvestPolicy libra-system/default may set it"
	c.expect("shop", 0, 0, map[string]string{accepted: says, inForce: "see the condition Accepted"})
	c.expectEvents("Warning Refused " + says)
	c.write("shop", v1alpha1.HarvestPolicySpec{Mode: "full"})
	c.round(every)
	c.expect("shop", 0, 0, map[string]string{accepted: "", inForce: ""})
	c.expectEvents()
}

// turned has policies, and returns them in another order each time, as an informer's store does.
type turned []*unstructured.Unstructured

func (turned) For(string) settings.Settings { return settings.Default }

func (t turned) HarvestPolicies() []*unstructured.Unstructured {
	slices.Reverse(t)
	return slices.Clone(t)
}

// What fails in the same way in each round is told once, so it must read the same.
func TestTheSameFailuresReadTheSame(t *testing.T) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, servingv1.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	kube := fake.NewClientBuilder().WithScheme(scheme).WithInterceptorFuncs(interceptor.Funcs{
		SubResourcePatch: func(context.Context, client.Client, string, client.Object, client.Patch, ...client.SubResourcePatchOption) error {
			return errors.New("refused")
		},
	}).Build()
	var live turned
	for _, namespace := range []string{"bank", "shop"} {
		policy := &unstructured.Unstructured{}
		policy.SetNamespace(namespace)
		policy.SetUID(types.UID(namespace))
		live = append(live, policy)
	}
	clock := testingclock.NewFakeClock(time.Now())
	w := NewWriter(clock, logr.Discard(), kube, kube, live, events.NewFakeRecorder(100))
	first := w.round(t.Context())
	clock.Step(recount)
	if second := w.round(t.Context()); first == nil || second == nil || second.Error() != first.Error() {
		t.Errorf("two rounds fail with %v and %v", first, second)
	}
}

func TestStatusOfWhatCannotBeRead(t *testing.T) {
	refused := errors.New("spec.mode: none")
	p := &v1alpha1.HarvestPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Generation: 3}}
	now := time.Now()
	status := statusOf(p, refused, &found{}, settings.Default, now)
	p.Status = status
	if again := statusOf(p, refused, &found{}, settings.Default, now.Add(time.Hour)); !again.Conditions[0].LastTransitionTime.Equal(&status.Conditions[0].LastTransitionTime) {
		t.Error("a condition that is as it was has another time")
	}
	if c := meta.FindStatusCondition(status.Conditions, accepted); c.Message != refused.Error() || c.Reason != eventRefused || c.ObservedGeneration != 3 {
		t.Errorf("it is %+v", c)
	}
}

// mode counts as bounded exactly when a revision without an annotation has another mode, and maxMode exactly
// when the most that functions get is another.
func TestBoundsAreThoseThatHold(t *testing.T) {
	modes := []v1alpha1.Mode{"", "observe", "lend", "full"}
	for _, cluster := range modes {
		for _, mode := range modes {
			for _, most := range modes {
				of, err := settings.Default.WithDefault(v1alpha1.HarvestPolicySpec{MaxMode: cluster})
				if err != nil {
					t.Fatal(err)
				}
				spec := v1alpha1.HarvestPolicySpec{Mode: mode, MaxMode: most}
				if of, err = of.With(spec); err != nil {
					t.Fatal(err)
				}
				want := 0
				if mode != "" && of.ModeOf(nil) != api.Mode(mode) {
					want++
				}
				if most != "" && of.MaxMode != api.Mode(most) {
					want++
				}
				if got := bounds(&spec, &functions{}, nil, of); len(got) != want {
					t.Errorf("the cluster's most is %q, the policy says %q and %q: %q, want %d", cluster, mode, most, got, want)
				}
			}
		}
	}
}
