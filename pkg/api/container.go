package api

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// userPort is servingv1.UserPortName. This package does not depend on Knative.
const userPort = "user-port"

// UserContainerOf returns the user's container of a function's pod, or nil. Whatever its name, Knative gives it the port
// user-port.
func UserContainerOf(pod *corev1.Pod) *corev1.Container {
	for i, c := range pod.Spec.Containers {
		serves := slices.ContainsFunc(c.Ports, func(p corev1.ContainerPort) bool { return p.Name == userPort })
		if serves || c.Name == UserContainer {
			return &pod.Spec.Containers[i]
		}
	}
	return nil
}
