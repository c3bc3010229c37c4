//go:build e2e

package e2e

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"knative.dev/serving/pkg/apis/serving"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"

	"libra.dev/libra/pkg/api"
)

const (
	schedulerName      = "libra-scheduler"
	schedulerManifests = "manifests/scheduler"
)

// Libra's scheduler, and no other, places the pods of a function that asks for it. Deleting its manifests
// removes everything that was installed for that.
func TestFunctionsAreScheduledByLibra(t *testing.T) {
	image := schedulerImage(t)
	ctx := t.Context()
	installScheduler(ctx, t, image)
	allowSchedulerName(ctx, t)
	namespace := newNamespace(ctx, t, "scheduled", api.SourceNode)
	counted := scheduledPods(ctx, t, namespace)

	revision := deployChanged(ctx, t, namespace, "compression", "scheduled", func(template *servingv1.RevisionTemplateSpec) {
		template.Spec.SchedulerName = schedulerName
	})
	name := revision.Labels[serving.ServiceLabelKey]
	pod := podOf(ctx, t, namespace, findIn(ctx, t, namespace, name))
	if pod.Spec.SchedulerName != schedulerName {
		t.Errorf("pod %s names the scheduler %q, want %s", pod.Name, pod.Spec.SchedulerName, schedulerName)
	}
	eventually(t, inForceWithin, "Event of the scheduler", func() error {
		event, err := eventOf(ctx, namespace, pod.Name, "Scheduled")
		if err == nil && event.ReportingController != schedulerName {
			err = fmt.Errorf("it is %q that reports", event.ReportingController)
		}
		return err
	})
	if now := scheduledPods(ctx, t, namespace); now <= counted {
		t.Errorf("the scheduler has counted %v pods, and %v before", now, counted)
	}
	if _, err := sendIn(ctx, namespace, name, []byte("hello")); err != nil {
		t.Error(err)
	}
}

// schedulerImage returns the scheduler's image. It skips the test if the box was loaded without it.
func schedulerImage(t *testing.T) string {
	t.Helper()
	data, err := os.ReadFile(*imagesPath)
	if err != nil {
		t.Fatalf("%v; `make e2e` passes what `box load` writes", err)
	}
	var images map[string]string
	if err := json.Unmarshal(data, &images); err != nil {
		t.Fatal(err)
	}
	if images[schedulerName] == "" {
		t.Skip("there is no image of the scheduler: bin/box load --with scheduler")
	}
	return images[schedulerName]
}

// installScheduler does what docs/scheduling.md says, with the users of Redis, and undoes it at the end of the
// test.
func installScheduler(ctx context.Context, t *testing.T, image string) {
	t.Helper()
	dir := t.TempDir()
	from := func(path string) string {
		full, err := filepath.Abs(filepath.Join("../..", path))
		if err != nil {
			t.Fatal(err)
		}
		relative, err := filepath.Rel(dir, full)
		if err != nil {
			t.Fatal(err)
		}
		return relative
	}
	repository, tag, _ := strings.Cut(image, ":")
	kustomization := fmt.Sprintf("resources: [%s]\ncomponents: [%s]\nimages: [{name: %s, newName: %s, newTag: %q}]\n",
		from(schedulerManifests), from("manifests/components/redis-auth"), schedulerName, repository, tag)
	if err := os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(kustomization), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		kubectl(t, "delete", "--ignore-not-found", "--wait", "--timeout=1m", "--kustomize="+dir)
		// The leader creates the Lease, which the manifests do not have.
		err := kube.CoordinationV1().Leases(libraNamespace).Delete(context.WithoutCancel(ctx), schedulerName, metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			t.Errorf("removing the Lease of the scheduler: %v", err)
		}
		expectNoScheduler(context.WithoutCancel(ctx), t)
	})
	kubectl(t, "apply", "--server-side", "--kustomize="+dir)
	kubectl(t, "--namespace="+libraNamespace, "rollout", "status", "--timeout=1m", "deployment/"+schedulerName)
}

// expectNoScheduler fails the test if deleting the scheduler's manifests has left something.
func expectNoScheduler(ctx context.Context, t *testing.T) {
	t.Helper()
	eventually(t, time.Minute, "end of the scheduler", func() error {
		pods, err := kube.CoreV1().Pods(libraNamespace).List(ctx, metav1.ListOptions{LabelSelector: "app=" + schedulerName})
		if err == nil && len(pods.Items) > 0 {
			err = fmt.Errorf("%d pods are there", len(pods.Items))
		}
		return err
	})
	const kinds = "deployments,configmaps,serviceaccounts,roles,rolebindings,leases,networkpolicies,poddisruptionbudgets,clusterroles,clusterrolebindings"
	for object := range strings.Lines(kubectl(t, "--namespace="+libraNamespace, "get", kinds, "--output=name")) {
		if strings.Contains(object, schedulerName) {
			t.Errorf("%s is left", strings.TrimSpace(object))
		}
	}
}

// allowSchedulerName has Knative accept a scheduler's name in a template, until the test ends.
func allowSchedulerName(ctx context.Context, t *testing.T) {
	t.Helper()
	const feature = "kubernetes.podspec-schedulername"
	set := func(ctx context.Context, value string) error {
		patch := fmt.Appendf(nil, `{"data": {%q: %s}}`, feature, value)
		_, err := kube.CoreV1().ConfigMaps(servingNamespace).Patch(ctx, "config-features", types.MergePatchType, patch, metav1.PatchOptions{})
		return err
	}
	t.Cleanup(func() {
		if err := set(context.WithoutCancel(ctx), "null"); err != nil {
			t.Errorf("taking %s back: %v", feature, err)
		}
	})
	if err := set(ctx, `"enabled"`); err != nil {
		t.Fatal(err)
	}
	probe := &servingv1.Service{ObjectMeta: metav1.ObjectMeta{Name: "probe"}}
	probe.Spec.Template.Spec.SchedulerName = schedulerName
	probe.Spec.Template.Spec.Containers = []corev1.Container{{Image: "dev.local/probe:1"}}
	eventually(t, inForceWithin, "Service with a scheduler's name", func() error {
		_, err := knative.ServingV1().Services(functionsNamespace).Create(ctx, probe, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	})
}

// scheduledPods returns how many pods the running schedulers have placed, by their metrics, which only an
// authorized account may read.
func scheduledPods(ctx context.Context, t *testing.T, namespace string) (sum float64) {
	t.Helper()
	token := metricsToken(ctx, t, namespace)
	pods, err := kube.CoreV1().Pods(libraNamespace).List(ctx, metav1.ListOptions{LabelSelector: "app=" + schedulerName})
	if err == nil && len(pods.Items) == 0 {
		err = errors.New("no scheduler runs")
	}
	if err != nil {
		t.Fatal(err)
	}
	// The scheduler signs its own certificate.
	c := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	for _, pod := range pods.Items {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+pod.Status.PodIP+":10259/metrics", nil)
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Authorization", "Bearer "+token)
		// Libra's own metric counts only pods with a choice of nodes.
		for _, m := range metricOf(t, c, request, "scheduler_schedule_attempts_total").GetMetric() {
			if labelOf(m, "profile") == schedulerName && labelOf(m, "result") == "scheduled" {
				sum += m.GetCounter().GetValue()
			}
		}
	}
	return sum
}

// metricsToken returns the token of an account that may read metrics. The first call grants it that right.
func metricsToken(ctx context.Context, t *testing.T, namespace string) string {
	t.Helper()
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "metrics-of-" + namespace},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "system:monitoring"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: "default"}},
	}
	if _, err := kube.RbacV1().ClusterRoleBindings().Create(ctx, binding, metav1.CreateOptions{}); err == nil {
		t.Cleanup(func() {
			if err := kube.RbacV1().ClusterRoleBindings().Delete(context.WithoutCancel(ctx), binding.Name, metav1.DeleteOptions{}); err != nil {
				t.Errorf("removing the right to read metrics: %v", err)
			}
		})
	} else if !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	var token string
	eventually(t, inForceWithin, "token", func() error {
		got, err := kube.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, "default", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
		if err == nil {
			token = got.Status.Token
		}
		return err
	})
	// The API server knows of a binding a moment later, and the scheduler caches a refusal.
	eventually(t, inForceWithin, "right to read metrics", func() error {
		review, err := kube.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
			User:                  "system:serviceaccount:" + namespace + ":default",
			NonResourceAttributes: &authorizationv1.NonResourceAttributes{Path: "/metrics", Verb: "get"},
		}}, metav1.CreateOptions{})
		if err == nil && !review.Status.Allowed {
			err = fmt.Errorf("not allowed yet: %s", review.Status.Reason)
		}
		return err
	})
	return token
}
