//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"knative.dev/serving/pkg/apis/serving"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"
	"sigs.k8s.io/yaml"

	"libra.dev/libra/pkg/api"
)

const servingNamespace = "knative-serving"

// A function is learned from three inputs if its owner and the cluster's administrator
// allow it, and nothing is left of the copy that taught it.
func TestDuplicatorTeachesFromThreeInputs(t *testing.T) {
	ctx := t.Context()
	installDuplicator(ctx, t)
	revision := deployCopy(ctx, t, "compression", "duplicated",
		map[string]string{api.DuplicateInputsAnnotation: api.DuplicateInputsValue})
	function := nameOf(revision)

	// A few more than three: on the first, the activator only asks whether the revision
	// was duplicated. The activator that was replaced, which does not duplicate, takes
	// requests, too, until its connections are drained.
	sent := 0
	eventually(t, 2*time.Minute, "begin of the duplication of "+function, func() error {
		if err := send(ctx, revision.Labels[serving.ServiceLabelKey], text(uint64(sent), 32<<10<<(sent%4))); err != nil {
			t.Fatalf("request failed: %v", err)
		}
		sent++
		// Rarely, because the function should be learned from the copy, not from these.
		<-time.After(time.Second)
		return duplicationReached(ctx, t, revision, "DuplicationStarted")
	})
	eventually(t, 6*time.Minute, "end of the duplication of "+function, func() error {
		return duplicationReached(ctx, t, revision, "DuplicationFinished")
	})
	eventually(t, 2*time.Minute, "end of the copy of "+function, func() error { return noCopies(ctx) })

	eventually(t, time.Minute, "model of "+function, func() error {
		stage, err := stageOf(ctx, function)
		if err == nil && stage != "modelled" && stage != "drifted" {
			err = fmt.Errorf("it is %s", stage)
		}
		return err
	})
}

// duplicationReached returns an error until the revision has an Event with the reason.
// It fails the test if the duplication fails.
func duplicationReached(ctx context.Context, t *testing.T, revision *servingv1.Revision, reason string) error {
	t.Helper()
	// By UID, because Events outlive their objects.
	events, err := kube.CoreV1().Events(functionsNamespace).List(ctx, metav1.ListOptions{
		FieldSelector: "involvedObject.uid=" + string(revision.UID),
	})
	if err != nil {
		return err
	}
	last, reached := "none", false
	for _, event := range events.Items {
		last = event.Reason + ": " + event.Message
		switch event.Reason {
		case reason:
			t.Log(last)
			reached = true
		case "DuplicationFailed", "DuplicationRefused":
			t.Fatal(last)
		}
	}
	if !reached {
		return fmt.Errorf("the last Event is %s", last)
	}
	return nil
}

// noCopies returns an error if a duplication has left something behind.
func noCopies(ctx context.Context) error {
	copies := metav1.ListOptions{LabelSelector: api.CopyOfLabel}
	services, err := knative.ServingV1().Services(metav1.NamespaceAll).List(ctx, copies)
	if err != nil {
		return err
	}
	pods, err := kube.CoreV1().Pods(metav1.NamespaceAll).List(ctx, copies)
	if err != nil {
		return err
	}
	if len(services.Items)+len(pods.Items) > 0 {
		return fmt.Errorf("%d Services and %d pods are left", len(services.Items), len(pods.Items))
	}
	return nil
}

// installDuplicator does what docs/duplicator.md asks for, until the end of the test.
func installDuplicator(ctx context.Context, t *testing.T) {
	t.Helper()
	var role rbacv1.ClusterRole
	var binding rbacv1.ClusterRoleBinding
	readComponent(t, "clusterrole.yaml", &role)
	readComponent(t, "clusterrolebinding.yaml", &binding)
	rbac := kube.RbacV1()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		err := errors.Join(
			rbac.ClusterRoleBindings().Delete(ctx, binding.Name, metav1.DeleteOptions{}),
			rbac.ClusterRoles().Delete(ctx, role.Name, metav1.DeleteOptions{}))
		if err != nil {
			t.Errorf("removing the duplicator's rights: %v", err)
		}
	})
	if _, err := rbac.ClusterRoles().Create(ctx, &role, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	if _, err := rbac.ClusterRoleBindings().Create(ctx, &binding, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}

	t.Cleanup(func() {
		setActivatorVariable(context.Background(), t, `{"$patch": "delete", "name": "LIBRA_DUPLICATOR"}`)
	})
	setActivatorVariable(ctx, t, `{"name": "LIBRA_DUPLICATOR", "value": "true"}`)
}

// setActivatorVariable sets or removes a variable of the activator's environment.
func setActivatorVariable(ctx context.Context, t *testing.T, variable string) {
	t.Helper()
	patchActivator(ctx, t, fmt.Appendf(nil, `{"spec": {"template": {"spec": {"containers": [{"name": "activator", "env": [%s]}]}}}}`, variable))
}

// patchActivator patches the activator, and returns when only pods with the patch are
// ready.
func patchActivator(ctx context.Context, t *testing.T, patch []byte) {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, 4*time.Minute)
	defer cancel()
	data, err := yaml.YAMLToJSON(patch)
	if err != nil {
		t.Fatal(err)
	}
	deployments := kube.AppsV1().Deployments(servingNamespace)
	patched, err := deployments.Patch(ctx, "activator", types.StrategicMergePatchType, data, metav1.PatchOptions{})
	if err != nil {
		t.Fatalf("patching the activator: %v", err)
	}
	eventually(t, 3*time.Minute, "roll-out of the activator", func() error {
		var now *appsv1.Deployment
		if now, err = deployments.Get(ctx, "activator", metav1.GetOptions{}); err != nil {
			return err
		}
		s := now.Status
		if s.ObservedGeneration < patched.Generation || s.UpdatedReplicas != *now.Spec.Replicas ||
			s.AvailableReplicas != s.UpdatedReplicas || s.Replicas != s.UpdatedReplicas {
			return fmt.Errorf("its status is %d replicas, %d updated, %d available", s.Replicas, s.UpdatedReplicas, s.AvailableReplicas)
		}
		return nil
	})
}

func component(file string) string {
	return filepath.Join("..", "..", "manifests", "components", "duplicator", file)
}

func readComponent(t *testing.T, file string, into any) {
	t.Helper()
	data, err := os.ReadFile(component(file))
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.UnmarshalStrict(data, into); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
}
