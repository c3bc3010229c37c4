package controller

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"
	"knative.dev/serving/pkg/apis/serving"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/settings"
	"libra.dev/libra/resizer/actuate"
)

// agentLabel is the label that node agents' pods have, with settings.Agent, as in manifests/base/agent.
const agentLabel = "app"

// CacheOptions returns the options of the cache that the controller reads: opted-in pods and Revisions,
// node agents and Nodes, each with only the fields that the controller looks at. A pod
// in Kubernetes is several times as large, and a cluster can have tens of thousands. Pods and Revisions
// are read without being copied, so callers must not change them.
func CacheOptions() cache.Options {
	optedIn := labels.SelectorFromSet(labels.Set{api.EnabledLabel: api.EnabledValue})
	agents := labels.SelectorFromSet(labels.Set{agentLabel: settings.Agent})
	return cache.Options{ByObject: map[client.Object]cache.ByObject{
		&corev1.Pod{}: {Transform: transform(keepPod), UnsafeDisableDeepCopy: ptr.To(true), Namespaces: map[string]cache.Config{
			cache.AllNamespaces:     {LabelSelector: optedIn},
			settings.AgentNamespace: {LabelSelector: agents},
		}},
		&servingv1.Revision{}: {Label: optedIn, Transform: transform(keepRevision), UnsafeDisableDeepCopy: ptr.To(true)},
		&corev1.Node{}:        {Transform: transform(keepSize)},
	}}
}

// transform makes a cache keep less of each object: the result of the function of. A cache also passes
// in the last state of an object whose deletion it missed; that holds an object that was transformed
// before.
func transform[T client.Object](of func(T) T) func(any) (any, error) {
	return func(obj any) (any, error) {
		if object, ok := obj.(T); ok {
			return of(object), nil
		}
		return obj, nil
	}
}

// keepPod returns the part of a pod that the controller looks at.
func keepPod(pod *corev1.Pod) *corev1.Pod {
	kept := &corev1.Pod{
		ObjectMeta: keepMeta(&pod.ObjectMeta),
		Spec: corev1.PodSpec{
			NodeName: pod.Spec.NodeName, Resources: pod.Spec.Resources,
		},
		Status: corev1.PodStatus{Phase: pod.Status.Phase, ObservedGeneration: pod.Status.ObservedGeneration},
	}
	kept.ManagedFields = actuate.Resizes(pod)
	for _, c := range pod.Spec.Containers {
		if c.Name == api.QueueProxyContainer && len(c.Resources.Limits) == 0 {
			continue // most have no limits, and nothing else of a queue-proxy matters
		}
		limits := corev1.ResourceRequirements{Limits: limitLists.of(c.Resources.Limits)}
		kept.Spec.Containers = append(kept.Spec.Containers, corev1.Container{Name: c.Name, Resources: limits, ResizePolicy: c.ResizePolicy})
	}
	for _, c := range pod.Status.Conditions {
		if slices.Contains(conditionsKept, c.Type) {
			kept.Status.Conditions = append(kept.Status.Conditions, corev1.PodCondition{Type: c.Type, Status: c.Status, Reason: c.Reason, Message: c.Message})
		}
	}
	for _, s := range pod.Status.ContainerStatuses {
		if s.Name == api.QueueProxyContainer {
			continue
		}
		status := corev1.ContainerStatus{Name: s.Name}
		if s.Resources != nil {
			status.Resources = &corev1.ResourceRequirements{Limits: limitLists.of(s.Resources.Limits)}
		}
		if s.State.Running != nil {
			status.State.Running = &corev1.ContainerStateRunning{}
		}
		kept.Status.ContainerStatuses = append(kept.Status.ContainerStatuses, status)
	}
	return kept
}

// libraGroup is the group of Libra's own labels and annotations.
const libraGroup = "libra.dev"

var conditionsKept = []corev1.PodConditionType{corev1.PodReady, corev1.PodResizePending, corev1.PodResizeInProgress}

// keepRevision returns the part of a Revision that the controller looks at: what its container is owed,
// and how many pods it has.
func keepRevision(revision *servingv1.Revision) *servingv1.Revision {
	kept := &servingv1.Revision{ObjectMeta: keepMeta(&revision.ObjectMeta)}
	kept.Status.ActualReplicas = revision.Status.ActualReplicas
	user := revision.Spec.GetContainer()
	kept.Spec.Containers = []corev1.Container{{Name: user.Name, Resources: corev1.ResourceRequirements{Limits: limitLists.of(user.Resources.Limits)}}}
	return kept
}

// limitLists has the limits of all cached objects.
var limitLists sharedLists

// sharedLists makes equal lists share memory: there are few different ones, since all pods of a function
// have the same one, and each takes the better part of a kilobyte. They are never changed.
type sharedLists struct {
	mu     sync.Mutex
	byText map[string]corev1.ResourceList
}

// sharedMost bounds how many lists are remembered for sharing. Objects keep the lists that are dropped
// here.
const sharedMost = 10_000

func (s *sharedLists) of(list corev1.ResourceList) corev1.ResourceList {
	if len(list) == 0 {
		return list
	}
	var text strings.Builder
	for _, name := range slices.Sorted(maps.Keys(list)) {
		quantity := list[name]
		fmt.Fprintf(&text, "%s=%s,", name, quantity.String())
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if shared, ok := s.byText[text.String()]; ok {
		return shared
	}
	if s.byText == nil || len(s.byText) >= sharedMost {
		s.byText = map[string]corev1.ResourceList{}
	}
	s.byText[text.String()] = list
	return list
}

// keepMeta returns the part of an object's metadata that the controller looks at.
func keepMeta(meta *metav1.ObjectMeta) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace: meta.Namespace, Name: meta.Name, UID: meta.UID,
		ResourceVersion: meta.ResourceVersion, Generation: meta.Generation,
		CreationTimestamp: meta.CreationTimestamp, DeletionTimestamp: meta.DeletionTimestamp,
		Labels:      keepKeys(meta.Labels, libraGroup, serving.GroupName),
		Annotations: keepKeys(meta.Annotations, libraGroup),
	}
}

// keepKeys returns the labels or annotations of some groups.
func keepKeys(all map[string]string, groups ...string) map[string]string {
	var kept map[string]string
	for key, value := range all {
		if group, _, _ := strings.Cut(key, "/"); slices.Contains(groups, group) {
			if kept == nil {
				kept = map[string]string{}
			}
			kept[key] = value
		}
	}
	return kept
}
