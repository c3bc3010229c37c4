package apiservertest

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Accepts fails the test for each object that the API server would not accept, by a dry run in which it must know
// every field. It returns the namespaces that it created for the objects: without controllers, they cannot be
// deleted.
func Accepts(t *testing.T, kube client.Client, objects []unstructured.Unstructured) (made []string) {
	t.Helper()
	strict := client.WithFieldValidation(kube, metav1.FieldValidationStrict)
	for _, o := range objects {
		if ns := o.GetNamespace(); ns != "" {
			err := kube.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}})
			if err == nil {
				made = append(made, ns)
			} else if !apierrors.IsAlreadyExists(err) {
				t.Fatal(err)
			}
		}
		err := strict.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(o.DeepCopy()),
			client.DryRunAll, client.ForceOwnership, client.FieldOwner("libra-test"))
		if err != nil {
			t.Errorf("%s %s/%s: %v", o.GetKind(), o.GetNamespace(), o.GetName(), err)
		}
	}
	return made
}
