package swap_test

import (
	"bytes"
	"context"
	"encoding/json"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/util/retry"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"libra.dev/libra/pkg/apiservertest"
	"libra.dev/libra/pkg/kubectl/swap"
)

const (
	stock  = "registry.test/knative/activator@sha256:1111"
	stock2 = "registry.test/knative/activator@sha256:2222"
	libra  = "registry.test:5000/libra-activator:1"
	libra2 = "registry.test:5000/libra-activator:2"

	// patience is how long a rollout that is to end may take.
	patience = time.Minute
)

// plane is an API server that has Knative's activator, and what must be there before Libra's.
type plane struct {
	*testing.T
	kube client.Client
	swap swap.Swap
	out  *bytes.Buffer
}

func startPlane(t *testing.T) *plane {
	t.Helper()
	config := apiservertest.Start(t)
	config.QPS = -1
	kube, err := client.New(config, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	p := &plane{T: t, kube: kube, out: &bytes.Buffer{}}
	p.swap = swap.Swap{Client: kube, Out: p.out, Timeout: patience}
	subject := []rbacv1.Subject{{Kind: "ServiceAccount", Name: "activator", Namespace: swap.Namespace}}
	role := rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "libra-activator"}
	for _, o := range []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: swap.Namespace}},
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "libra-system"}},
		&rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "libra-activator"}, Subjects: subject, RoleRef: role},
		&rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "libra-activator", Namespace: "libra-system"}, Subjects: subject, RoleRef: role},
	} {
		p.do(kube.Create(t.Context(), o))
	}
	p.applyKnative(stock, "kubectl")
	return p
}

func (p *plane) do(err error) {
	p.Helper()
	if err != nil {
		p.Fatal(err)
	}
}

// applyKnative applies the manifest of the activator with a stock image, as an install or an upgrade of Knative does.
func (p *plane) applyKnative(image, manager string) {
	p.Helper()
	var o unstructured.Unstructured
	p.do(yaml.Unmarshal([]byte(`
apiVersion: apps/v1
kind: Deployment
metadata:
  name: activator
  namespace: knative-serving
  labels: {app.kubernetes.io/version: 1.23.1}
spec:
  selector: {matchLabels: {app: activator}}
  template:
    metadata: {labels: {app: activator}}
    spec:
      containers:
      - name: activator
        image: `+image+`
        env: [{name: GOGC, value: "500"}]
`), &o.Object))
	p.do(p.kube.Apply(p.Context(), client.ApplyConfigurationFromUnstructured(&o), client.FieldOwner(manager), client.ForceOwnership))
}

func (p *plane) deployment() *appsv1.Deployment {
	p.Helper()
	var d appsv1.Deployment
	p.do(p.kube.Get(p.Context(), client.ObjectKey{Namespace: swap.Namespace, Name: swap.Name}, &d))
	return &d
}

func (p *plane) change(change func(d *appsv1.Deployment)) {
	p.Helper()
	p.do(retry.RetryOnConflict(retry.DefaultRetry, func() error {
		d := p.deployment()
		change(d)
		return p.kube.Update(p.Context(), d, client.FieldOwner("keeper"))
	}))
}

// rollOut does the work of the Deployment's controller until the test ends: it rolls out every image but bad at once.
func (p *plane) rollOut(bad string) {
	p.Helper()
	p.do(p.rollOutOnce(p.Context(), bad))
	ctx, cancel := context.WithCancel(context.WithoutCancel(p.Context()))
	var done sync.WaitGroup
	p.Cleanup(func() { cancel(); done.Wait() })
	done.Go(func() {
		for ctx.Err() == nil {
			if err := p.rollOutOnce(ctx, bad); client.IgnoreNotFound(err) != nil && !apierrors.IsConflict(err) && ctx.Err() == nil {
				p.Error(err)
				return
			}
			select {
			case <-ctx.Done():
			case <-time.After(20 * time.Millisecond):
			}
		}
	})
}

func (p *plane) rollOutOnce(ctx context.Context, bad string) error {
	var d appsv1.Deployment
	if err := p.kube.Get(ctx, client.ObjectKey{Namespace: swap.Namespace, Name: swap.Name}, &d); err != nil {
		return err
	}
	if d.Status.ObservedGeneration == d.Generation {
		return nil
	}
	n := ptr.Deref(d.Spec.Replicas, 1)
	d.Status = appsv1.DeploymentStatus{ObservedGeneration: d.Generation, Replicas: n, UpdatedReplicas: n, AvailableReplicas: n, ReadyReplicas: n}
	if d.Spec.Template.Spec.Containers[0].Image == bad {
		d.Status.Replicas++
		d.Status.AvailableReplicas = 0
	}
	return p.kube.Status().Update(ctx, &d, client.FieldOwner("kube-controller-manager"))
}

// waitingPod creates a pod that waits for its image.
func (p *plane) waitingPod(image, reason, message string) {
	p.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "activator-new", Namespace: swap.Namespace, Labels: map[string]string{"app": "activator"}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: swap.Container, Image: image}}},
	}
	p.do(p.kube.Create(p.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default", Namespace: swap.Namespace}}))
	p.do(p.kube.Create(p.Context(), pod))
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: swap.Container, Image: image,
		State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}}}}
	p.do(p.kube.Status().Update(p.Context(), pod))
}

// found returns what an owner of the Deployment finds: all but what the server and its controller count.
func (p *plane) found() string {
	p.Helper()
	d := p.deployment()
	for i := range d.ManagedFields {
		d.ManagedFields[i].Time = nil
	}
	d.ResourceVersion, d.Generation, d.Status = "", 0, appsv1.DeploymentStatus{}
	data, err := json.MarshalIndent(d, "", "  ")
	p.do(err)
	return string(data)
}

func (p *plane) runs(image, stock string) {
	p.Helper()
	d := p.deployment()
	if got := d.Spec.Template.Spec.Containers[0].Image; got != image {
		p.Errorf("the activator runs %s, want %s", got, image)
	}
	if got := d.Annotations[swap.StockImageAnnotation]; got != stock {
		p.Errorf("the stock image is written down as %q, want %q", got, stock)
	}
}
