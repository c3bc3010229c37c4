package uninstall

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"knative.dev/serving/pkg/apis/serving"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/apiservertest"
	"libra.dev/libra/pkg/kubectl/check"
	"libra.dev/libra/pkg/kubectl/swap"
	"libra.dev/libra/pkg/settings"
)

func revisionOf(name, scheduler string, state servingv1.RoutingState) *servingv1.Revision {
	r := &servingv1.Revision{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, Labels: map[string]string{}}}
	if state != servingv1.RoutingStateUnset {
		r.Labels[serving.RoutingStateLabelKey] = string(state)
	}
	r.Spec.SchedulerName = scheduler
	r.Spec.Containers = []corev1.Container{{Image: "cart"}}
	return r
}

// podOf returns a pod that has an owner, or none.
func podOf(name, scheduler string, phase corev1.PodPhase, owner *metav1.OwnerReference) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name}, Status: corev1.PodStatus{Phase: phase}}
	if owner != nil {
		p.OwnerReferences = []metav1.OwnerReference{*owner}
	}
	p.Spec.SchedulerName, p.Spec.Containers = scheduler, []corev1.Container{{Name: "c", Image: "cart"}}
	return p
}

func ownedBy(kind, name string) *metav1.OwnerReference {
	return &metav1.OwnerReference{APIVersion: "apps/v1", Kind: kind, Name: name, UID: "1", Controller: ptr.To(true)}
}

// New pods would wait for ever, and nobody would notice before there are some.
func TestWhatNamesTheSchedulerKeepsLibra(t *testing.T) {
	u, _ := start(t, filepath.Join(apiservertest.Module(t, "knative.dev/serving"), "config/core/300-resources/revision.yaml"))
	config := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: settings.Namespace, Name: settings.ConfigMap}}
	selector := map[string]string{"app": scheduler}
	deployed := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: settings.Namespace, Name: scheduler},
		Spec: appsv1.DeploymentSpec{Selector: &metav1.LabelSelector{MatchLabels: selector}, Template: corev1.PodTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: selector}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "scheduler"}}},
		}},
	}
	create(t, u, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}}, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: settings.Namespace}}, config, deployed)

	var many []client.Object
	for i := range namedMost + 2 {
		many = append(many, revisionOf(fmt.Sprintf("many-%02d", i), scheduler, servingv1.RoutingStateActive))
	}
	ofRevision := podOf("old-pod", scheduler, corev1.PodRunning, ownedBy("ReplicaSet", "old-deployment"))
	ofRevision.Labels = map[string]string{serving.RevisionLabelKey: "old"}
	others := []client.Object{
		revisionOf("plain", "", servingv1.RoutingStateActive), revisionOf("other", "volcano", servingv1.RoutingStateActive),
		revisionOf("old", scheduler, servingv1.RoutingStateReserve), ofRevision,
		podOf("default", "", corev1.PodRunning, ownedBy("ReplicaSet", "default")), podOf("waits", "volcano", corev1.PodPending, nil),
		podOf("done", scheduler, corev1.PodSucceeded, ownedBy("Job", "done")), podOf("broken", scheduler, corev1.PodFailed, nil),
	}
	for name, tc := range map[string]struct {
		objects   []client.Object
		says, not []string // says is nil if the removal goes on
	}{
		"Revisions that are routed, are about to be, and are not any more": {
			objects: append([]client.Object{
				revisionOf("routed", scheduler, servingv1.RoutingStateActive), revisionOf("new", scheduler, servingv1.RoutingStatePending),
				revisionOf("unset", scheduler, servingv1.RoutingStateUnset),
			}, others...),
			says: []string{"nothing was changed", "Revisions (3): ", "shop/routed", "shop/new", "shop/unset. ", "out of the templates of their Services"},
			not:  []string{"shop/old", "shop/plain", "Others"},
		},
		"more than can be named": {
			objects: many,
			says:    []string{fmt.Sprintf("Revisions (%d): ", len(many)), "shop/many-09 and 2 more"},
			not:     []string{"shop/many-10"},
		},
		"pods that are no functions": {
			objects: append([]client.Object{
				podOf("batch-1", scheduler, corev1.PodRunning, ownedBy("ReplicaSet", "batch")), podOf("batch-2", scheduler, corev1.PodPending, ownedBy("ReplicaSet", "batch")),
				podOf("alone", scheduler, corev1.PodRunning, nil),
			}, others...),
			says: []string{"nothing was changed", "Others (2): Pod shop/alone, ReplicaSet shop/batch. ", "out of their pods' templates"},
			not:  []string{"Revisions", "old-deployment", "done", "broken"},
		},
		"both": {
			objects: []client.Object{revisionOf("routed", scheduler, servingv1.RoutingStateActive), podOf("alone", scheduler, corev1.PodRunning, nil)},
			says:    []string{"Revisions (1): shop/routed. ", "Others (1): Pod shop/alone. "},
		},
		"neither": {objects: others},
	} {
		t.Run(name, func(t *testing.T) {
			for _, o := range tc.objects {
				created := o.DeepCopyObject().(client.Object)
				create(t, u, created)
				defer func() {
					if err := u.Client.Delete(t.Context(), created, client.GracePeriodSeconds(0)); err != nil {
						t.Error(err)
					}
				}()
				if pod, ok := o.(*corev1.Pod); ok {
					running := created.(*corev1.Pod)
					running.Status.Phase = pod.Status.Phase
					if err := u.Client.Status().Update(t.Context(), running); err != nil {
						t.Fatal(err)
					}
				}
			}
			if tc.says == nil {
				if err := u.refuseScheduled(t.Context()); err != nil {
					t.Error(err)
				}
				return
			}
			for _, dryRun := range []bool{false, true} {
				u := u
				u.DryRun = dryRun
				err := u.Run(t.Context())
				if err == nil {
					t.Fatal("it goes on")
				}
				for _, words := range tc.says {
					if !strings.Contains(err.Error(), words) {
						t.Errorf("the error is %q, want %q in it", err, words)
					}
				}
				for _, words := range tc.not {
					if strings.Contains(err.Error(), words) {
						t.Errorf("the error is %q, want no %q in it", err, words)
					}
				}
				if err := u.Client.Get(t.Context(), client.ObjectKeyFromObject(config), config); err != nil || config.Data["max-mode"] != "" {
					t.Errorf("max-mode is %q after a refusal (%v), want it as it was", config.Data["max-mode"], err)
				}
			}
		})
	}

	// A removal that failed half-way goes on when it is run again.
	if err := u.Client.Delete(t.Context(), deployed); err != nil {
		t.Fatal(err)
	}
	create(t, u, many[0].DeepCopyObject().(client.Object), podOf("alone", scheduler, corev1.PodPending, nil))
	if err := u.refuseScheduled(t.Context()); err != nil {
		t.Errorf("a scheduler that is gone keeps Libra: %v", err)
	}
}

// All Revisions of a cluster at once take more memory than the Job may use.
func TestRevisionsAreReadInPages(t *testing.T) {
	var revisions []client.Object
	for i := range 5 {
		revisions = append(revisions, revisionOf(fmt.Sprint("r", i), []string{scheduler, ""}[i%2], servingv1.RoutingStateActive))
	}
	lists := 0
	built := cluster(t, revisions...).WithInterceptorFuncs(interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			var options client.ListOptions
			options.ApplyOptions(opts)
			if want := []string{"", "2", "4"}[lists]; options.Limit < 1 || options.Limit > 1000 || options.Continue != want {
				t.Fatalf("list %d is of %d, from %q, want it from %q", lists, options.Limit, options.Continue, want)
			}
			all := &servingv1.RevisionList{}
			if err := c.List(ctx, all, opts...); err != nil {
				return err
			}
			all.Items = slices.DeleteFunc(all.Items, func(r servingv1.Revision) bool { return !strings.HasPrefix(r.Name, "r") }) // that of all tests
			at := 2 * lists
			all.Items = all.Items[at:min(at+2, len(all.Items))]
			if lists++; lists < 3 {
				all.Continue = fmt.Sprint(2 * lists)
			}
			// As the API server's client does: into what is there.
			text, err := json.Marshal(all)
			if err != nil {
				return err
			}
			return json.Unmarshal(text, list)
		},
	}).Build()
	named, err := Uninstall{Client: built}.scheduledRevisions(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"shop/r0", "shop/r2", "shop/r4"}; lists != 3 || !slices.Equal(named, want) {
		t.Errorf("%d lists found %v, want three lists, and %v", lists, named, want)
	}
}

// A copy still runs, and takes requests, without Libra.
func TestCopiesAreNamed(t *testing.T) {
	copied := revisionOf("f-00001-libra-copy-00001", "", servingv1.RoutingStateActive)
	maps.Copy(copied.Labels, map[string]string{api.EnabledLabel: api.EnabledValue, api.CopyOfLabel: "f-00001", serving.ServiceLabelKey: "f-00001-libra-copy"})
	original := revisionOf("f-00001", "", servingv1.RoutingStateActive)
	original.Labels[api.EnabledLabel] = api.EnabledValue
	optedIn, copies, err := Uninstall{Client: cluster(t, copied, original).Build()}.revisions(t.Context())
	if want := []client.ObjectKey{{Namespace: "shop", Name: "f-00001-libra-copy"}}; err != nil || optedIn != 1 || !slices.Equal(copies, want) {
		t.Errorf("%d have opted in, and the copies are %v (%v), want 1, and %v", optedIn, copies, err, want)
	}
}

// Whoever stops half-way has to know that functions get nothing any more.
func TestAFailureSaysThatLibraOnlyObserves(t *testing.T) {
	labels := map[string]string{"app": swap.Name, "argocd.argoproj.io/instance": "knative"}
	kept := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: swap.Namespace, Name: swap.Name, Labels: labels}}
	kept.Spec.Template.Spec.Containers = []corev1.Container{{Name: swap.Container, Image: "registry.test/libra-activator:1"}}
	config := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: settings.Namespace, Name: settings.ConfigMap}}
	for _, dryRun := range []bool{false, true} {
		built := fake.NewClientBuilder().WithScheme(check.NewScheme()).WithObjects(kept.DeepCopy(), config.DeepCopy()).Build()
		err := Uninstall{Client: built, Out: io.Discard, Timeout: time.Minute, DryRun: dryRun}.Run(t.Context())
		if err == nil || !strings.Contains(err.Error(), "Argo CD manages deployment/activator in knative-serving and keeps it at registry.test/libra-activator:1, so the Deployment was not changed") {
			t.Errorf("dry run %v: the error is %v", dryRun, err)
		}
		if errors.Is(err, errObserves) == dryRun {
			t.Errorf("dry run %v: the error is %v, want what is left of the first step unless it is a dry run", dryRun, err)
		}
	}
}
