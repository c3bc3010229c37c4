package manifests

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"libra.dev/libra/pkg/settings"
)

// The image and the options are the same, whether KServe makes the Deployment or not.
func TestPlainPredictorRunsWhatKServesDoes(t *testing.T) {
	plain := podNamed(t, rendered(t, "predictor-plain"), "libra-predictor").Spec
	kserves := podNamed(t, rendered(t, "base/predictor"), "libra").Spec
	// KServe finds the container by its name, and sets whether pods have links.
	plain.Containers[0].Name, plain.EnableServiceLinks = kserves.Containers[0].Name, kserves.EnableServiceLinks
	if diff := cmp.Diff(kserves, plain); diff != "" {
		t.Errorf("KServe's predictor (-) and the plain one (+) differ:\n%s", diff)
	}
}

// The activator asks http://libra-predictor.libra-system.svc, which is port 80.
func TestPlainPredictorIsWhereTheActivatorAsks(t *testing.T) {
	objects := rendered(t, "predictor-plain")
	services := decodeOf[corev1.Service](t, objects, "Service")
	if len(services) != 1 || services[0].Name != "libra-predictor" {
		t.Fatalf("the Services are %v, want libra-predictor", services)
	}
	for _, o := range objects {
		if o.Metadata.Namespace != settings.Namespace {
			t.Errorf("%s %s is in %q", o.Kind, o.Metadata.Name, o.Metadata.Namespace)
		}
	}
	pod := podNamed(t, objects, "libra-predictor")
	if diff := cmp.Diff(pod.Labels, services[0].Spec.Selector); diff != "" {
		t.Errorf("the pods' labels (-) are not those that the Service selects (+):\n%s", diff)
	}
	want := []corev1.ServicePort{{Name: "http", Port: 80, TargetPort: intstr.FromString("http")}}
	if diff := cmp.Diff(want, services[0].Spec.Ports); diff != "" {
		t.Errorf("its ports are not as KServe's (-want +got):\n%s", diff)
	}
}
