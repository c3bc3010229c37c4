package duplicator

import (
	"context"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"knative.dev/networking/pkg/apis/networking"
	"knative.dev/pkg/apis"
	"knative.dev/serving/pkg/apis/autoscaling"
	"knative.dev/serving/pkg/apis/serving"
	v1 "knative.dev/serving/pkg/apis/serving/v1"
	"pgregory.net/rapid"

	"libra.dev/libra/pkg/api"
)

var largest = api.Resources{CPUMilli: 2000, MemoryBytes: 1 << 30}

// newRevision returns a revision whose owner asked for duplication.
func newRevision(name string) *v1.Revision {
	rev := &v1.Revision{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns",
			Name:      name,
			UID:       "uid-of-rev",
			Labels: map[string]string{
				api.EnabledLabel:              api.EnabledValue,
				"app":                         "shop",
				serving.ConfigurationLabelKey: "shop",
			},
			Annotations: map[string]string{
				api.DuplicateInputsAnnotation:             api.DuplicateInputsValue,
				"sidecar.istio.io/inject":                 "false",
				autoscaling.MinScaleAnnotationKey:         "7",
				serving.CreatorAnnotation:                 "somebody",
				serving.RoutingStateModifiedAnnotationKey: "now",
			},
		},
		Spec: v1.RevisionSpec{
			PodSpec: corev1.PodSpec{Containers: []corev1.Container{{
				Name:  "user-container",
				Image: "registry.test/shop:latest",
				Env:   []corev1.EnvVar{{Name: "MODE", Value: "live"}},
				Resources: corev1.ResourceRequirements{
					Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m")},
					Limits: corev1.ResourceList{
						corev1.ResourceCPU:    resource.MustParse("500m"),
						corev1.ResourceMemory: resource.MustParse("256Mi"),
					},
				},
			}}},
			ContainerConcurrency: ptr.To[int64](10),
			TimeoutSeconds:       ptr.To[int64](45),
		},
		Status: v1.RevisionStatus{ContainerStatuses: []v1.ContainerStatus{{
			Name: "user-container", ImageDigest: "registry.test/shop@sha256:" + strings.Repeat("a", 64),
		}}},
	}
	return rev
}

func TestCopyIsWhatTheRevisionRuns(t *testing.T) {
	rev := newRevision("shop-00001")
	before := rev.DeepCopy()
	got := copyOf(rev, largest)
	if diff := cmp.Diff(before, rev); diff != "" {
		t.Fatal("the original was changed (-before, +after):\n" + diff)
	}

	want := &v1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns",
			Name:      "shop-00001-libra-copy",
			Labels: map[string]string{
				"libra.dev/copy-of":           "shop-00001",
				networking.VisibilityLabelKey: "cluster-local",
			},
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: "serving.knative.dev/v1", Kind: "Revision", Name: "shop-00001", UID: "uid-of-rev",
			}},
		},
		Spec: v1.ServiceSpec{ConfigurationSpec: v1.ConfigurationSpec{Template: v1.RevisionTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{
				Labels: map[string]string{"libra.dev/enabled": "true", "libra.dev/copy-of": "shop-00001"},
				Annotations: map[string]string{
					"autoscaling.knative.dev/initial-scale":         "1",
					"autoscaling.knative.dev/max-scale":             "2",
					"autoscaling.knative.dev/target-burst-capacity": "-1",
					"libra.dev/copy-of-configuration":               "shop",
					"sidecar.istio.io/inject":                       "false",
				},
			},
			Spec: v1.RevisionSpec{
				PodSpec: corev1.PodSpec{Containers: []corev1.Container{{
					Name:  "user-container",
					Image: "registry.test/shop@sha256:" + strings.Repeat("a", 64),
					Env:   []corev1.EnvVar{{Name: "MODE", Value: "live"}},
					Resources: corev1.ResourceRequirements{
						Requests: corev1.ResourceList{
							corev1.ResourceCPU: resource.MustParse("100m"),
							// Otherwise Kubernetes would derive it from the limit.
							corev1.ResourceMemory: resource.MustParse("256Mi"),
						},
						Limits: corev1.ResourceList{
							corev1.ResourceCPU:    resource.MustParse("2"),
							corev1.ResourceMemory: resource.MustParse("1Gi"),
						},
					},
				}}},
				ContainerConcurrency: ptr.To[int64](1),
				TimeoutSeconds:       ptr.To[int64](45),
			},
		}}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error("copyOf() (-want, +got):\n" + diff)
	}
}

func TestKnativeTakesTheCopy(t *testing.T) {
	rev := newRevision("shop-00001")
	rev.SetDefaults(context.Background())
	service := copyOf(rev, largest)
	ctx := apis.WithinCreate(context.Background())
	service.SetDefaults(ctx)
	if err := service.Validate(ctx).Filter(apis.ErrorLevel); err != nil {
		t.Error("Validate() =", err)
	}
}

func TestCopyHasNoLessThanTheRevision(t *testing.T) {
	for _, tc := range []struct {
		name             string
		requests, limits string
		wantRequest      string
		wantLimit        string
	}{
		{"neither", "", "", "0", "2"},
		{"only a limit", "", "500m", "500m", "2"},
		{"only a request", "100m", "", "100m", "2"},
		{"a larger limit", "100m", "3", "100m", "3"},
		{"a larger request without a limit", "4", "", "4", "4"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			list := func(cpu string) corev1.ResourceList {
				if cpu == "" {
					return nil
				}
				return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}
			}
			got := copyResources(corev1.ResourceRequirements{Requests: list(tc.requests), Limits: list(tc.limits)}, largest)
			if request := got.Requests[corev1.ResourceCPU]; request.Cmp(resource.MustParse(tc.wantRequest)) != 0 {
				t.Errorf("request = %v, want %s", &request, tc.wantRequest)
			}
			if limit := got.Limits[corev1.ResourceCPU]; limit.Cmp(resource.MustParse(tc.wantLimit)) != 0 {
				t.Errorf("limit = %v, want %s", &limit, tc.wantLimit)
			}
		})
	}
}

func TestCopyOfAnyRevisionIsNamedAndKnown(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.StringMatching(`[a-z]([-a-z0-9]{0,61}[a-z0-9])?`).Draw(t, "name")
		other := rapid.StringMatching(`[a-z]([-a-z0-9]{0,61}[a-z0-9])?`).Draw(t, "other")
		service := copyOf(newRevision(name), largest)
		if len(service.Name) > 63 {
			t.Fatalf("%s is %d long", service.Name, len(service.Name))
		}
		if !isCopyOf(service, name) {
			t.Fatalf("%s is not known as a copy of %s", service.Name, name)
		}
		if other != name && isCopyOf(service, other) {
			t.Fatalf("%s is taken for a copy of %s", service.Name, other)
		}
	})
}

func TestAnothersServiceIsNoCopy(t *testing.T) {
	for name, change := range map[string]func(*v1.Service){
		"other label": func(s *v1.Service) { s.Labels[api.CopyOfLabel] = "other" },
		"other name":  func(s *v1.Service) { s.Name = "shop" },
		"no owner":    func(s *v1.Service) { s.OwnerReferences = nil },
	} {
		service := copyOf(newRevision("shop-00001"), largest)
		change(service)
		if isCopyOf(service, "shop-00001") {
			t.Errorf("%s: taken for a copy", name)
		}
	}
}
