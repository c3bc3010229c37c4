package eligible

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"libra.dev/libra/pkg/api"
)

func TestObstacle(t *testing.T) {
	const user, proxy = 0, 1
	limits := corev1.ResourceRequirements{Limits: api.Resources{CPUMilli: 500}.List()}
	policy := func(p corev1.ResourceResizeRestartPolicy) []corev1.ContainerResizePolicy {
		return []corev1.ContainerResizePolicy{{ResourceName: corev1.ResourceMemory, RestartPolicy: p}}
	}
	for name, tc := range map[string]struct {
		change func(*corev1.PodSpec)
		want   string // what it is to say; nothing when it says nothing
	}{
		"as Knative makes it":     {func(*corev1.PodSpec) {}, ""},
		"queue-proxy has limits":  {func(s *corev1.PodSpec) { s.Containers[proxy].Resources = limits }, "queue-proxy"},
		"the pod has limits":      {func(s *corev1.PodSpec) { s.Resources = &limits }, "spec.resources"},
		"the pod has requests":    {func(s *corev1.PodSpec) { s.Resources = &corev1.ResourceRequirements{Requests: limits.Limits} }, ""},
		"a resize restarts it":    {func(s *corev1.PodSpec) { s.Containers[user].ResizePolicy = policy(corev1.RestartContainer) }, "resizePolicy"},
		"a resize restarts none":  {func(s *corev1.PodSpec) { s.Containers[user].ResizePolicy = policy(corev1.NotRequired) }, ""},
		"a resize restarts other": {func(s *corev1.PodSpec) { s.Containers[proxy].ResizePolicy = policy(corev1.RestartContainer) }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "mine", Resources: limits}, {Name: api.QueueProxyContainer}}}}
			tc.change(&pod.Spec)
			if got := Obstacle(pod, "mine"); (got == "") != (tc.want == "") || !strings.Contains(got, tc.want) {
				t.Errorf("it says %q, want %q", got, tc.want)
			}
		})
	}
}
