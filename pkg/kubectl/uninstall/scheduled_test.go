package uninstall

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"knative.dev/serving/pkg/apis/serving"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"libra.dev/libra/pkg/apiservertest"
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
