package stack

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

const (
	readyInterval = 300 * time.Millisecond
	// If a webhook is not served, the API server answers late, not never.
	checkTimeout = 5 * time.Second
)

// check is one condition for the stack to be ready.
type check struct {
	name string
	// ready returns an error that says what is missing.
	ready func(context.Context, applier) error
}

// readinessOf returns the checks for the applied objects.
func readinessOf(objects []object) []check {
	var checks []check
	for _, o := range objects {
		switch o.GetKind() {
		case "Deployment":
			checks = append(checks, deploymentCheck(o.GetNamespace(), o.GetName()))
		case "Gateway":
			// istiod makes the Deployment of the gateway's proxy.
			checks = append(checks, gatewayCheck(o), deploymentCheck(o.GetNamespace(), o.GetName()+"-istio"))
		}
	}
	checks = append(checks, webhookCheck("knative's webhooks", probeService))
	if _, err := find(objects, "Namespace", kserveNamespace); err == nil {
		checks = append(checks, webhookCheck("kserve's webhooks", probeInferenceService))
	}
	return checks
}

// waitReady waits until each check has passed once. Its error names those that
// did not, and why.
func (a applier) waitReady(ctx context.Context, checks []check, timeout time.Duration, log Logf) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	start := time.Now()
	for {
		var waiting []check
		var why []error
		for _, c := range checks {
			if err := c.try(ctx, a); err != nil {
				waiting = append(waiting, c)
				why = append(why, fmt.Errorf("%s: %w", c.name, err))
				continue
			}
			log("%s: ready after %.0f s", c.name, time.Since(start).Seconds())
		}
		if len(waiting) == 0 {
			return nil
		}
		checks = waiting
		select {
		case <-ctx.Done():
			return fmt.Errorf("not ready after %.0f s:\n%w", time.Since(start).Seconds(), errors.Join(why...))
		case <-time.After(readyInterval):
		}
	}
}

func (c check) try(ctx context.Context, a applier) error {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	return c.ready(ctx, a)
}

var (
	deployments = schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}
	pods        = schema.GroupVersionResource{Version: "v1", Resource: "pods"}
)

func deploymentCheck(namespace, name string) check {
	return check{"deployment " + namespace + "/" + name, func(ctx context.Context, a applier) error {
		u, err := a.client.Resource(deployments).Namespace(namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		var d appsv1.Deployment
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, &d); err != nil {
			return err
		}
		if s := d.Status; s.ObservedGeneration < d.Generation || s.UpdatedReplicas < *d.Spec.Replicas || s.AvailableReplicas < *d.Spec.Replicas {
			return fmt.Errorf("%d of %d replicas available%s", s.AvailableReplicas, *d.Spec.Replicas, a.trouble(ctx, &d))
		}
		return nil
	}}
}

// trouble says why the pods of a Deployment do not run, if they report it.
func (a applier) trouble(ctx context.Context, d *appsv1.Deployment) string {
	selector, err := metav1.LabelSelectorAsSelector(d.Spec.Selector)
	if err != nil {
		return ""
	}
	list, err := a.client.Resource(pods).Namespace(d.Namespace).List(ctx, metav1.ListOptions{LabelSelector: selector.String()})
	if err != nil {
		return ""
	}
	var reasons []string
	for _, u := range list.Items {
		var p corev1.Pod
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, &p); err != nil {
			continue
		}
		for _, c := range p.Status.Conditions {
			if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
				reasons = append(reasons, p.Name+": "+c.Message)
			}
		}
		for _, c := range p.Status.ContainerStatuses {
			if w := c.State.Waiting; w != nil {
				reasons = append(reasons, p.Name+": "+strings.TrimSpace(w.Reason+" "+w.Message))
			}
		}
	}
	if len(reasons) == 0 {
		return ""
	}
	return " (" + strings.Join(reasons, "; ") + ")"
}

func gatewayCheck(gateway object) check {
	return check{"gateway " + gateway.GetNamespace() + "/" + gateway.GetName(), func(ctx context.Context, a applier) error {
		resource, err := a.resource(gateway)
		if err != nil {
			return err
		}
		u, err := resource.Get(ctx, gateway.GetName(), metav1.GetOptions{})
		if err != nil {
			return err
		}
		return conditionTrue(u, "Programmed")
	}}
}

// conditionTrue returns an error unless the condition is true of the object's
// current generation.
func conditionTrue(u object, condition string) error {
	conditions, _, err := unstructured.NestedSlice(u.Object, "status", "conditions")
	if err != nil {
		return err
	}
	for _, c := range conditions {
		c, ok := c.(map[string]any)
		if !ok || c["type"] != condition {
			continue
		}
		if observed, ok := c["observedGeneration"].(int64); ok && observed < u.GetGeneration() {
			return fmt.Errorf("the condition %s is for an earlier generation", condition)
		}
		if c["status"] != "True" {
			return fmt.Errorf("%s is %v: %v", condition, c["status"], c["message"])
		}
		return nil
	}
	return fmt.Errorf("there is no condition %s yet", condition)
}

// webhookCheck passes when the API server would accept an object that webhooks
// must see. An available Deployment of a webhook does not mean that the API
// server reaches the webhook, nor that it trusts it.
func webhookCheck(name, manifest string) check {
	return check{name, func(ctx context.Context, a applier) error {
		objects, err := ParseObjects([]byte(manifest))
		if err != nil {
			return err
		}
		for _, o := range objects {
			if err := a.try(ctx, o, true); err != nil {
				return err
			}
		}
		return nil
	}}
}

const probeService = `apiVersion: serving.knative.dev/v1
kind: Service
metadata: {name: box-probe, namespace: default}
spec:
  template:
    spec:
      containers: [{image: dev.local/box-probe:1}]
`

const probeInferenceService = `apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {name: box-probe, namespace: default}
spec:
  predictor:
    containers: [{name: kserve-container, image: dev.local/box-probe:1}]
`
