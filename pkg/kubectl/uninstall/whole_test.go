package uninstall

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"knative.dev/serving/pkg/apis/serving"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"libra.dev/libra/resizer/actuate"
)

func limits(cpu string) corev1.ResourceRequirements {
	return corev1.ResourceRequirements{Limits: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}}
}

// resized returns a pod whose CPU limit manager was the last to change.
func resized(manager, spec, inForce string) *corev1.Pod {
	status := limits(inForce)
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop", Name: "p", Labels: map[string]string{serving.RevisionLabelKey: "f", serving.RevisionUID: "1"},
			ManagedFields: []metav1.ManagedFieldsEntry{{Manager: manager, Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: "v1", FieldsType: "FieldsV1", Subresource: "resize", FieldsV1: &metav1.FieldsV1{Raw: fmt.Appendf(nil,
				`{"f:spec":{"f:containers":{"k:{\"name\":\"user-container\"}":{"f:resources":{"f:limits":{"f:cpu":{}}}}}}}`)}}},
		},
		Spec: corev1.PodSpec{Containers: []corev1.Container{
			{Name: "queue-proxy", Resources: limits("9")}, {Name: "user-container", Resources: limits(spec)}}},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{{Name: "user-container", Resources: &status}}},
	}
}

func TestAPodIsWholeWhenLibraHasLeftItsRevisionsLimits(t *testing.T) {
	for name, c := range map[string]struct {
		pod   *corev1.Pod
		whole bool
	}{
		"at what it is owed":               {resized(actuate.FieldManager, "500m", "500m"), true},
		"above it":                         {resized(actuate.FieldManager, "2", "2"), false},
		"above it until the kubelet looks": {resized(actuate.FieldManager, "500m", "2"), false},
		"as another manager has it":        {resized("vpa", "2", "2"), true},
		"of a Revision that goes":          {of(resized(actuate.FieldManager, "2", "2"), "deleted", "2"), true},
		"of one before that of its name":   {of(resized(actuate.FieldManager, "2", "2"), "f", "0"), true},
		"that has ended":                   {in(resized(actuate.FieldManager, "2", "2"), corev1.PodSucceeded), true},
	} {
		err := Uninstall{Client: cluster(t, c.pod).Build(), Out: io.Discard}.awaitWhole(t.Context())
		if (err == nil) != c.whole || err != nil && !strings.Contains(err.Error(), "1 pods have other limits than their Revisions; deleting such a pod helps, too: shop/p: its limits") {
			t.Errorf("%s: it says %v", name, err)
		}
	}
}

// The resizer leaves a pod that is about to end as it is. On a node that is down, it stays.
func TestAPodThatIsAboutToEndIsNotWaitedFor(t *testing.T) {
	pod := resized(actuate.FieldManager, "2", "2")
	now := metav1.Now()
	pod.DeletionTimestamp, pod.Finalizers = &now, []string{"example.com/held"}
	away, err := Uninstall{Client: cluster(t, pod).Build()}.lookAt(t.Context(), []client.ObjectKey{client.ObjectKeyFromObject(pod)})
	if err != nil || len(away) > 0 {
		t.Errorf("it is waited for: %v, %v", away, err)
	}
}

// All pods of a cluster at once, in full, take more memory than the Job may use.
func TestPodsAreLookedAtInPagesAndWholeOnlyWhenResized(t *testing.T) {
	wanted := map[client.ObjectKey]bool{}
	var pods []client.Object
	for i := range 7 {
		pod := resized("kubelet", "2", "2")
		if i%3 == 0 {
			pod = resized(actuate.FieldManager, "2", "2")
		}
		pod.Name = fmt.Sprint("p", i)
		pods = append(pods, pod)
		wanted[client.ObjectKeyFromObject(pod)] = i%3 == 0
	}
	lists := 0
	built := cluster(t, pods...).WithInterceptorFuncs(interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			all, partial := list.(*metav1.PartialObjectMetadataList)
			var options client.ListOptions
			options.ApplyOptions(opts)
			if !partial || options.Limit < 1 || options.Limit > 1000 {
				t.Fatalf("it lists %T, %d at a time", list, options.Limit)
			}
			if want := []string{"", "2", "4", "6"}[lists]; options.Continue != want {
				t.Fatalf("list %d goes on from %q, want %q", lists, options.Continue, want)
			}
			if err := c.List(ctx, list, opts...); err != nil {
				return err
			}
			at := 2 * lists
			all.Items, all.Continue = all.Items[at:min(at+2, len(all.Items))], ""
			if lists++; at+2 < len(pods) {
				all.Continue = fmt.Sprint(at + 2)
			}
			return nil
		},
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			if _, pod := o.(*corev1.Pod); pod && !wanted[key] {
				t.Errorf("it gets %v, which was not resized by Libra", key)
			}
			return c.Get(ctx, key, o, opts...)
		},
	}).Build()
	found, err := Uninstall{Client: built}.resized(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(found) != 3 || lists != 4 {
		t.Errorf("%d lists found %v, want three pods, of four lists", lists, found)
	}
}

// Looking at a large cluster's pods each second would be most of what its API server does meanwhile.
func TestAllPodsAreLookedAtFirstAndLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		waiting, whole := resized(actuate.FieldManager, "2", "2"), resized(actuate.FieldManager, "500m", "500m")
		waiting.Name, whole.Name = "waiting", "whole"
		lists, looks := 0, map[string]int{}
		built := cluster(t, waiting, whole).WithInterceptorFuncs(interceptor.Funcs{
			List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
				lists++
				return c.List(ctx, list, opts...)
			},
			Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
				if _, ok := o.(*corev1.Pod); ok {
					looks[key.Name]++
				}
				if err := c.Get(ctx, key, o, opts...); err != nil {
					return err
				}
				if pod, ok := o.(*corev1.Pod); ok && looks[key.Name] > 5 {
					pod.Spec.Containers[1].Resources = limits("500m")
					pod.Status.ContainerStatuses[0].Resources = &pod.Spec.Containers[1].Resources
				}
				return nil
			},
		}).Build()
		if err := (Uninstall{Client: built, Out: io.Discard, Timeout: time.Minute}).awaitWhole(t.Context()); err != nil {
			t.Fatal(err)
		}
		if lists != 2 || looks["whole"] != 2 || looks["waiting"] != 7 {
			t.Errorf("%d lists, and looks at pods are %v; want one list and a look at the whole one first and last", lists, looks)
		}
	})
}

// cluster has a Revision f of 500m, and the pods.
func cluster(t *testing.T, pods ...client.Object) *fake.ClientBuilder {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := errors.Join(servingv1.AddToScheme(scheme), corev1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	revision := &servingv1.Revision{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "f", UID: "1"}}
	revision.Spec.Containers = []corev1.Container{{Resources: limits("500m")}}
	return fake.NewClientBuilder().WithScheme(scheme).WithReturnManagedFields().WithObjects(revision).WithObjects(pods...)
}

func of(pod *corev1.Pod, revision, uid string) *corev1.Pod {
	pod.Labels[serving.RevisionLabelKey], pod.Labels[serving.RevisionUID] = revision, uid
	return pod
}

func in(pod *corev1.Pod, phase corev1.PodPhase) *corev1.Pod {
	pod.Status.Phase = phase
	return pod
}
