package kubectl

import (
	"bytes"
	"context"
	"io"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"knative.dev/serving/pkg/apis/serving"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/resizer/actuate"
)

// resized makes a pod that runs at the limits to, which by has set.
func (p *plane) resized(revision *servingv1.Revision, name, mode string, to api.Resources, by string) {
	p.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: revision.Namespace, Name: name,
			Labels:      map[string]string{api.EnabledLabel: api.EnabledValue, serving.RevisionLabelKey: revision.Name, serving.RevisionUID: string(revision.UID)},
			Annotations: map[string]string{api.ModeAnnotation: mode},
		},
		Spec: corev1.PodSpec{NodeName: "worker", Containers: []corev1.Container{{
			Name: api.UserContainer, Image: "f", Resources: corev1.ResourceRequirements{Limits: list("500m", "256Mi"), Requests: list("100m", "64Mi")},
		}}},
	}
	p.create(pod)
	switch by {
	case "":
	case actuate.FieldManager:
		p.do(actuate.SetLimits(p.Context(), p.client, pod, api.UserContainer, to))
	default:
		pod.Spec.Containers[0].Resources.Limits = to.List()
		p.do(p.client.SubResource("resize").Update(p.Context(), pod, client.FieldOwner(by)))
	}
	pod.Status.Phase = corev1.PodRunning
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: api.UserContainer, Resources: &corev1.ResourceRequirements{Limits: to.List()}}}
	p.status(pod)
}

func (p *plane) limits(namespace, name string) api.Resources {
	p.Helper()
	var pod corev1.Pod
	p.do(p.client.Get(p.Context(), client.ObjectKey{Namespace: namespace, Name: name}, &pod))
	return api.FromList(pod.Spec.Containers[0].Resources.Limits)
}

func (p *plane) restores() {
	// The API server resizes no pod beyond what its node has.
	node := worker()
	p.create(node)
	node.Status.Allocatable = list("8", "16Gi")
	p.status(node)
	p.namespace("resized")
	cart := p.revision("resized", "cart-00001", list("500m", "256Mi"))
	gone, anew := cart.DeepCopy(), cart.DeepCopy()
	gone.Name, gone.UID = "gone-00001", "gone"
	anew.UID = "of-the-one-before"
	above, owed := api.Resources{CPUMilli: 1500, MemoryBytes: 512 << 20}, api.Resources{CPUMilli: 500, MemoryBytes: 256 << 20}
	p.resized(cart, "both", "observe", above, actuate.FieldManager)
	p.resized(gone, "orphan", "observe", above, actuate.FieldManager)
	p.resized(anew, "older", "observe", above, actuate.FieldManager)
	p.resized(cart, "others", "observe", above, "vpa")
	p.resized(cart, "whole", "observe", owed, "")

	p.refuses("no pods: name a POD", "restore")
	p.refuses("leave --all-namespaces and --node out", "restore", "both", "--node", "worker")
	out, err := p.run("restore", "-n", "resized", "--dry-run=server")
	if err == nil || !strings.Contains(out, "accepted (server dry run)") || !strings.Contains(out, `its Revision "gone-00001" is gone`) || !strings.Contains(out, `its Revision "cart-00001" is gone`) {
		p.Errorf("the dry run ends with %v, after\n%s", err, out)
	}
	if got := p.limits("resized", "both"); got != above {
		p.Errorf("a dry run has set %v", got)
	}
	p.golden("restore", "restore", "both", "-n", "resized", "--timeout", "0s")
	for name, want := range map[string]api.Resources{"both": owed, "others": above, "whole": owed, "orphan": above} {
		if got := p.limits("resized", name); got != want {
			p.Errorf("pod %s has %v, want %v", name, got, want)
		}
	}
	p.prints("Nothing to restore", "restore", "whole", "-n", "resized")

	// There is no kubelet: restore says that the limits are not in force, now and the next time.
	out, err = p.run("restore", "both", "-n", "resized")
	if err == nil || !strings.Contains(out, "requested earlier, but not in force") {
		p.Errorf("of a kubelet that does nothing the error is %v, after\n%s", err, out)
	}
	p.pending("resized", "both", "attempting to set pod memory limit below current usage")
	out, _ = p.run("restore", "both", "-n", "resized")
	if !strings.Contains(out, "the kubelet says Error: attempting to set pod memory limit below current usage") {
		p.Errorf("why the kubelet waits is not told:\n%s", out)
	}

	// The resizer runs, and would change what is restored.
	p.namespace("acting")
	p.resized(p.revision("acting", "cart-00001", list("500m", "256Mi")), "full", "full", above, actuate.FieldManager)
	p.refuses("the resizer runs and acts on 1 of the pods, such as acting/full in the mode full", "restore", "--node", "worker")
	if got := p.limits("acting", "full"); got != above {
		p.Errorf("what is refused has set %v", got)
	}
	// The namespace bounds which pods of the node are changed.
	out, err = p.run("restore", "-n", "acting", "--node", "worker", "--dry-run=server")
	if err != nil || !strings.Contains(out, "acting") || strings.Contains(out, "resized") {
		p.Errorf("of the namespace acting on the node worker the dry run ends with %v, after\n%s", err, out)
	}
	out, _ = p.run("restore", "--node", "worker", "--dry-run=server")
	if !strings.Contains(out, "acting") || !strings.Contains(out, "resized") {
		p.Errorf("without a namespace the node's pods are not of all of them:\n%s", out)
	}
	p.prints("accepted", "restore", "-n", "acting", "--force", "--timeout", "0s")
	if got := p.limits("acting", "full"); got != owed {
		p.Errorf("with --force it is %v, want %v", got, owed)
	}
}

// pending has the kubelet say why it has not resized a pod.
func (p *plane) pending(namespace, name, message string) {
	p.Helper()
	var pod corev1.Pod
	p.do(p.client.Get(p.Context(), client.ObjectKey{Namespace: namespace, Name: name}, &pod))
	pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{Type: corev1.PodResizeInProgress, Status: corev1.ConditionTrue, Reason: corev1.PodReasonError, Message: message})
	p.status(&pod)
}

// A pod that goes is owed nothing any more, whether it went before anything was restored or after its CPU was.
func TestRestoreOfPodsThatGo(t *testing.T) {
	revision := &servingv1.Revision{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "cart-00001", UID: "1"}}
	revision.Spec.Containers = []corev1.Container{{Resources: corev1.ResourceRequirements{Limits: list("500m", "256Mi")}}}
	pod := func(name string) *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "shop", Name: name, UID: "1", Labels: map[string]string{serving.RevisionLabelKey: revision.Name, serving.RevisionUID: string(revision.UID)},
				ManagedFields: []metav1.ManagedFieldsEntry{{Manager: actuate.FieldManager, Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: "v1", FieldsType: "FieldsV1", Subresource: "resize", FieldsV1: &metav1.FieldsV1{
					Raw: []byte(`{"f:spec":{"f:containers":{"k:{\"name\":\"user-container\"}":{"f:resources":{"f:limits":{"f:cpu":{},"f:memory":{}}}}}}}`),
				}}},
			},
			Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: api.UserContainer, Resources: corev1.ResourceRequirements{Limits: list("1500m", "512Mi")}}}},
		}
	}
	kube := fake.NewClientBuilder().WithScheme(scheme).WithObjects(revision, pod("during")).WithInterceptorFuncs(interceptor.Funcs{
		SubResourcePatch: func(ctx context.Context, c client.Client, name string, o client.Object, patch client.Patch, opts ...client.SubResourcePatchOption) error {
			if err := c.SubResource(name).Patch(ctx, o, patch, opts...); err != nil {
				return err
			}
			return c.Delete(ctx, o)
		},
	}).Build()
	var out bytes.Buffer
	o := &options{IOStreams: genericiooptions.IOStreams{Out: &out, ErrOut: io.Discard}}
	f := restoreFlags{changeFlags: changeFlags{output{outputTable}, dryRun{dryRunNone}, time.Minute}, force: true}
	err := o.restore(t.Context(), kube, f, []corev1.Pod{*pod("before"), *pod("during")})
	if err != nil || strings.Count(out.String(), "the pod is gone") != 2 {
		t.Errorf("it ends with %v, after\n%s", err, out.String())
	}
}
