package uninstall

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"libra.dev/libra/pkg/api/v1alpha1"
	"libra.dev/libra/pkg/apiservertest"
	"libra.dev/libra/pkg/kubectl/check"
	"libra.dev/libra/pkg/kubectl/swap"
)

// start returns a removal on an API server that has Libra's definitions, and more. Nothing collects garbage there, nor deletes
// the objects of namespaces that go.
func start(t *testing.T, definitions ...string) (Uninstall, *bytes.Buffer) {
	t.Helper()
	config := apiservertest.Start(t, append(definitions, "../../../manifests/base/crds")...)
	config.QPS = -1
	kube, err := client.New(config, client.Options{Scheme: check.NewScheme()})
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	return Uninstall{Client: kube, Out: &out, Timeout: time.Minute}, &out
}

func create(t *testing.T, u Uninstall, objects ...client.Object) {
	t.Helper()
	for _, o := range objects {
		if err := u.Client.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
}

func clusterRole(name, partOfLabel string) *rbacv1.ClusterRole {
	return &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{partOf: partOfLabel}}}
}

func TestOnlyWhatIsShippedIsRemoved(t *testing.T) {
	u, out := start(t)
	create(t, u,
		clusterRole("libra-resizer", libra), clusterRole("libra-team", "bank"), clusterRole("horoscope", libra), clusterRole(Job, libra),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop", Labels: map[string]string{"libra.dev/source": "owners", "team": "a"}}},
		&v1alpha1.PlacementPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "here"},
			Spec: v1alpha1.PlacementPolicySpec{Blocks: []v1alpha1.Block{{Workers: []v1alpha1.Worker{{Node: "a"}}}}}},
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "libra-system"}},
		&v1alpha1.HarvestPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "libra-system", Name: v1alpha1.HarvestPolicyName}},
	)
	steps := func(u Uninstall) {
		t.Helper()
		for _, step := range []func() error{
			func() error { return u.removeShipped(t.Context()) },
			func() error { return u.removeDefinitions(t.Context()) },
			func() error { return u.labels(t.Context()) },
		} {
			if err := step(); err != nil {
				t.Fatal(err)
			}
		}
	}
	has := func(name string, o client.Object) bool {
		t.Helper()
		err := u.Client.Get(t.Context(), client.ObjectKey{Name: name}, o)
		if client.IgnoreNotFound(err) != nil {
			t.Fatal(err)
		}
		return !apierrors.IsNotFound(err)
	}
	definition := func() *metav1.PartialObjectMetadata {
		var o metav1.PartialObjectMetadata
		o.SetGroupVersionKind(definitionKind)
		return &o
	}

	dry := u
	dry.DryRun, dry.DeletePolicies, dry.Labels = true, true, true
	steps(dry)
	if !has("libra-resizer", &rbacv1.ClusterRole{}) || !has("placementpolicies.libra.dev", definition()) {
		t.Error("a dry run has deleted something")
	}

	steps(u)
	for name, want := range map[string]bool{"libra-resizer": false, "libra-team": true, "horoscope": true, Job: true} {
		if got := has(name, &rbacv1.ClusterRole{}); got != want {
			t.Errorf("the ClusterRole %s is there: %v", name, got)
		}
	}
	if !has("placementpolicies.libra.dev", definition()) || !strings.Contains(out.String(), "placementpolicy/here in shop") {
		t.Errorf("a policy has gone, or nobody is told that it stays: %s", out)
	}
	left, err := u.left(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"customresourcedefinition/placementpolicies.libra.dev",
		"clusterrole/libra-team, which is not labelled as Libra's",
		"namespace/shop has libra.dev/source (--labels removes labels)",
	}
	if diff := cmp.Diff(want, left); diff != "" {
		t.Errorf("left (-want +got):\n%s", diff)
	}

	u.DeletePolicies, u.Labels = true, true
	steps(u)
	var shop corev1.Namespace
	if !has("shop", &shop) || shop.Labels["libra.dev/source"] != "" || shop.Labels["team"] != "a" {
		t.Errorf("the namespace's labels are %v", shop.Labels)
	}
	if d := definition(); has("placementpolicies.libra.dev", d) && d.DeletionTimestamp == nil {
		t.Error("the policies are to go, and stay")
	}
}

// This includes the one that a cluster may not have had when the others were shipped.
func TestTheOptInOfNamespacesIsRemoved(t *testing.T) {
	u, _ := start(t)
	var shipped []*unstructured.Unstructured
	for _, name := range []string{"mutatingadmissionpolicy.yaml", "mutatingadmissionpolicybinding.yaml"} {
		text, err := os.ReadFile(filepath.Join("../../../manifests/components/namespace-opt-in", name))
		if err != nil {
			t.Fatal(err)
		}
		o := &unstructured.Unstructured{}
		if err := yaml.Unmarshal(text, o); err != nil {
			t.Fatal(err)
		}
		o.SetLabels(map[string]string{partOf: libra}) // as the kustomization has it
		create(t, u, o)
		shipped = append(shipped, o)
	}
	if err := u.removeShipped(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, o := range shipped {
		if err := u.Client.Get(t.Context(), client.ObjectKeyFromObject(o), o); !apierrors.IsNotFound(err) {
			t.Errorf("%s %s is still there: %v", o.GetKind(), o.GetName(), err)
		}
	}
}

// refusing does not delete the object of that name.
type refusing struct {
	client.Client
	name string
}

func (r refusing) Delete(ctx context.Context, o client.Object, options ...client.DeleteOption) error {
	if o.GetName() == r.name {
		return apierrors.NewForbidden(schema.GroupResource{Resource: "clusterroles"}, r.name, errors.New("it is kept"))
	}
	return r.Client.Delete(ctx, o, options...)
}

func TestWhatMayNotBeDeletedKeepsNothingElse(t *testing.T) {
	u, _ := start(t)
	create(t, u, clusterRole("libra-agent", libra), clusterRole("libra-resizer", libra))
	u.Client = refusing{u.Client, "libra-agent"}
	if err := u.removeShipped(t.Context()); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "clusterrole/libra-agent") {
		t.Errorf("got error %v, want one that names what stays", err)
	}
	if err := u.Client.Get(t.Context(), client.ObjectKey{Name: "libra-resizer"}, &rbacv1.ClusterRole{}); !apierrors.IsNotFound(err) {
		t.Errorf("what comes after it stays, too: %v", err)
	}
}

func TestTheChecksNamespaceGoes(t *testing.T) {
	for label, goes := range map[string]bool{libra: true, "bank": false} {
		u, _ := start(t)
		u.Timeout = time.Second // nothing deletes the objects of a namespace here, so that it stays
		ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: checkNamespace, Labels: map[string]string{partOf: label}}}
		create(t, u, ns)
		if err := u.removeCheck(t.Context()); (err != nil) != goes {
			t.Errorf("part of %s: %v", label, err)
		}
		if err := u.Client.Get(t.Context(), client.ObjectKeyFromObject(ns), ns); err != nil || (ns.DeletionTimestamp != nil) != goes {
			t.Errorf("part of %s: it goes %v (%v), want %v", label, ns.DeletionTimestamp != nil, err, goes)
		}
	}
}

// If rights went while they are needed, the Job would end half-way.
func TestTheJobsRightsGoWithItsNamespace(t *testing.T) {
	u, _ := start(t)
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: Job}}
	create(t, u, ns, clusterRole(Job, libra))
	if err := u.removeJob(t.Context()); err != nil {
		t.Fatal(err)
	}
	var role rbacv1.ClusterRole
	if err := u.Client.Get(t.Context(), client.ObjectKey{Name: Job}, &role); err != nil {
		t.Fatal(err)
	}
	want := []metav1.OwnerReference{{APIVersion: "v1", Kind: "Namespace", Name: Job, UID: ns.UID}}
	if diff := cmp.Diff(want, role.OwnerReferences); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if err := u.Client.Get(t.Context(), client.ObjectKeyFromObject(ns), ns); err == nil && ns.DeletionTimestamp == nil {
		t.Error("the namespace stays")
	}
}

// A removal that cannot go on says what it waits for, and has done nothing of what comes later.
func TestAWaitEndsAndSaysForWhat(t *testing.T) {
	u, _ := start(t)
	create(t, u, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "libra-system"}})
	kept := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "libra-system", Name: "libra-resizer"}}
	kept.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "a"}}
	kept.Spec.Template.Labels = kept.Spec.Selector.MatchLabels
	kept.Spec.Template.Spec.Containers = []corev1.Container{{Name: "a", Image: "a"}}
	kept.Finalizers = []string{"test.example/kept"}
	create(t, u, kept)
	u.Timeout = time.Millisecond
	err := u.remover(&appsv1.Deployment{}, "libra-system", "libra-resizer")(t.Context())
	if err == nil || !strings.Contains(err.Error(), "libra-resizer") {
		t.Errorf("it says %v, want what is left", err)
	}

	// A pod on a node that is down is not waited for, or at least named with what to do.
	create(t, u, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: swap.Namespace}})
	for name, ready := range map[string]corev1.ConditionStatus{"up": corev1.ConditionTrue, "down": corev1.ConditionUnknown} {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
		create(t, u, node)
		node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready}}
		if err := u.Client.Status().Update(t.Context(), node); err != nil {
			t.Fatal(err)
		}
	}
	end := func(namespace, app, node string) {
		t.Helper()
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: app + "-" + node, Labels: map[string]string{"app": app}, Finalizers: kept.Finalizers}}
		pod.Spec = kept.Spec.Template.Spec
		pod.Spec.NodeName = node
		create(t, u, pod)
		if err := u.Client.Delete(t.Context(), pod); err != nil {
			t.Fatal(err)
		}
	}
	end("libra-system", "libra-resizer", "down")
	err = u.remover(&appsv1.Deployment{}, "libra-system", "libra-resizer")(t.Context())
	if err == nil || !strings.Contains(err.Error(), "on the node down, which is down: kubectl -n libra-system delete pod libra-resizer-down --force") {
		t.Errorf("it says %v, want how to go on", err)
	}
	end(swap.Namespace, swap.Name, "down")
	if err := u.awaitActivators(t.Context()); err != nil {
		t.Errorf("an activator on a node that is down: %v", err)
	}
	end(swap.Namespace, swap.Name, "up")
	if err := u.awaitActivators(t.Context()); err == nil || !strings.Contains(err.Error(), "activator-up") {
		t.Errorf("it says %v, want that an activator drains", err)
	}
}
