package duplicator

import (
	"maps"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"knative.dev/networking/pkg/apis/networking"
	"knative.dev/pkg/kmeta"
	"knative.dev/serving/pkg/apis/autoscaling"
	"knative.dev/serving/pkg/apis/serving"
	v1 "knative.dev/serving/pkg/apis/serving/v1"

	"libra.dev/libra/pkg/api"
)

const (
	copySuffix = "-libra-copy"

	// parallel is how many replays are in flight at once, each in a pod of its own.
	parallel = 2
)

// copyName returns the name of a revision's copy, which has at most 63 characters, as a
// Service's name must.
func copyName(revision string) string { return kmeta.ChildName(revision, copySuffix) }

// copyOf returns a Service that runs what the revision runs, with the larger of largest
// and the revision's own limits.
func copyOf(rev *v1.Revision, largest api.Resources) *v1.Service {
	template := v1.RevisionTemplateSpec{
		// None of the revision's own labels: its owner's selectors would match the copy and
		// send it real requests.
		ObjectMeta: metav1.ObjectMeta{
			Labels: map[string]string{
				api.EnabledLabel: api.EnabledValue,
				api.CopyOfLabel:  rev.Name,
			},
			Annotations: copyAnnotations(rev),
		},
		Spec: *rev.Spec.DeepCopy(),
	}
	template.Spec.ContainerConcurrency = ptr.To[int64](1)
	pinImages(template.Spec.Containers, rev.Status.ContainerStatuses)
	pinImages(template.Spec.InitContainers, rev.Status.InitContainerStatuses)
	container := template.Spec.GetContainer()
	container.Resources = copyResources(container.Resources, largest)

	return &v1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: rev.Namespace,
			Name:      copyName(rev.Name),
			Labels: map[string]string{
				api.CopyOfLabel:               rev.Name,
				networking.VisibilityLabelKey: serving.VisibilityClusterLocal,
			},
			OwnerReferences: []metav1.OwnerReference{ownerOf(rev)},
		},
		Spec: v1.ServiceSpec{ConfigurationSpec: v1.ConfigurationSpec{Template: template}},
	}
}

// ownerOf has the copy garbage-collected with the revision. It does not block the
// revision's deletion, which would need a permission on the revision's finalizers.
func ownerOf(rev *v1.Revision) metav1.OwnerReference {
	return metav1.OwnerReference{
		APIVersion: v1.SchemeGroupVersion.String(),
		Kind:       "Revision",
		Name:       rev.Name,
		UID:        rev.UID,
	}
}

// copyAnnotations returns the revision's own annotations, except those that Knative gave
// it, that scale it, or that would have the copy duplicated in turn.
func copyAnnotations(rev *v1.Revision) map[string]string {
	annotations := map[string]string{
		autoscaling.InitialScaleAnnotationKey: "1",
		autoscaling.MaxScaleAnnotationKey:     strconv.Itoa(parallel),
		// The activator stays in the path.
		autoscaling.TargetBurstCapacityKey: "-1",
	}
	if configuration := rev.Labels[serving.ConfigurationLabelKey]; configuration != "" {
		annotations[api.CopyOfConfigurationAnnotation] = configuration
	}
	for name, value := range rev.Annotations {
		switch {
		case strings.HasPrefix(name, serving.GroupNamePrefix),
			strings.HasPrefix(name, autoscaling.GroupName+"/"),
			strings.HasPrefix(name, "client.knative.dev/"),
			strings.HasPrefix(name, "kubectl.kubernetes.io/"),
			name == api.DuplicateInputsAnnotation:
		default:
			annotations[name] = value
		}
	}
	return annotations
}

// pinImages pins the images that a revision runs: its tags may have moved on.
func pinImages(containers []corev1.Container, statuses []v1.ContainerStatus) {
	for i := range containers {
		for _, status := range statuses {
			if status.Name == containers[i].Name && status.ImageDigest != "" {
				containers[i].Image = status.ImageDigest
			}
		}
	}
}

// copyResources raises the limits and keeps the requests. Kubernetes derives a missing
// request from the limit, so each is set.
func copyResources(own corev1.ResourceRequirements, largest api.Resources) corev1.ResourceRequirements {
	r := *own.DeepCopy()
	requests, limits := corev1.ResourceList{}, corev1.ResourceList{}
	maps.Copy(requests, r.Requests)
	maps.Copy(limits, r.Limits)
	for name, most := range largest.List() {
		limit, limited := limits[name]
		if _, requested := requests[name]; !requested {
			requests[name] = resource.Quantity{}
			if limited {
				requests[name] = limit
			}
		}
		if limited && limit.Cmp(most) > 0 {
			most = limit
		}
		if request := requests[name]; request.Cmp(most) > 0 {
			most = request
		}
		limits[name] = most
	}
	r.Requests, r.Limits = requests, limits
	return r
}

// isCopyOf reports whether a Duplicator made the Service of the revision with that name.
func isCopyOf(service *v1.Service, revision string) bool {
	if service.Name != copyName(revision) || service.Labels[api.CopyOfLabel] != revision {
		return false
	}
	for _, owner := range service.OwnerReferences {
		if owner.Kind == "Revision" && owner.Name == revision {
			return true
		}
	}
	return false
}
