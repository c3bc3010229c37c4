package kubectl

import (
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"libra.dev/libra/pkg/kubectl/swap"
	"libra.dev/libra/pkg/settings"
)

const missing = "it is not installed: `kubectl libra check` says what to do"

// partReadiness says how many pods of the parts in a namespace are ready.
type partReadiness struct {
	Namespace string `json:"namespace"`
	Parts     string `json:"parts"`
	// Problem is what is wrong, and what to look at; empty when nothing is wrong.
	Problem string `json:"problem,omitempty"`
}

// readParts returns a line for each namespace that has parts of Libra. A part that cannot be read
// is no error: its line says so.
func readParts(ctx context.Context, kube client.Client) []partReadiness {
	var deployments appsv1.DeploymentList
	system := partReadiness{Namespace: settings.Namespace}
	if err := kube.List(ctx, &deployments, client.InNamespace(settings.Namespace)); err != nil {
		system.Problem = unreadable(err)
	} else {
		for _, d := range deployments.Items {
			system.add(d.Name, d.Status.ReadyReplicas, ptr.Deref(d.Spec.Replicas, 1))
		}
		system.expectParts()
	}

	var daemonSets appsv1.DaemonSetList
	nodes := partReadiness{Namespace: settings.AgentNamespace}
	if err := kube.List(ctx, &daemonSets, client.InNamespace(settings.AgentNamespace)); err != nil {
		nodes.Problem = unreadable(err)
	} else {
		for _, d := range daemonSets.Items {
			nodes.add(d.Name, d.Status.NumberReady, d.Status.DesiredNumberScheduled)
		}
		nodes.expectParts()
	}

	var activator appsv1.Deployment
	serving := partReadiness{Namespace: swap.Namespace}
	if err := kube.Get(ctx, client.ObjectKey{Namespace: swap.Namespace, Name: swap.Name}, &activator); err != nil {
		serving.Problem = unreadable(err)
	} else {
		serving.add(swap.Name, activator.Status.ReadyReplicas, ptr.Deref(activator.Spec.Replicas, 1))
		if image, err := swap.ImageOf(&activator); err != nil || !swap.IsLibras(&activator, image) {
			serving.Problem = "the activator is not Libra's, so Libra sees no requests: `kubectl libra check` says how to install Libra's"
		}
	}
	return []partReadiness{system, nodes, serving}
}

func unreadable(err error) string {
	if apierrors.IsNotFound(err) {
		return missing
	}
	return fmt.Sprintf("not known: %v", err)
}

// add adds a part with its number of ready pods. The API server's lists are sorted by name.
func (p *partReadiness) add(name string, ready, want int32) {
	if p.Parts != "" {
		p.Parts += ", "
	}
	p.Parts += fmt.Sprintf("%s %d/%d", name, ready, want)
	if ready < want {
		p.Problem = fmt.Sprintf("not all are ready: look at `kubectl -n %s get pods`", p.Namespace)
	}
}

func (p *partReadiness) expectParts() {
	if p.Parts == "" {
		p.Problem = missing
	}
}

func partsTable(parts []partReadiness) *metav1.Table {
	table := newTable("namespace", "ready", "look at")
	for _, p := range parts {
		addRow(table, p.Namespace, p.Parts, p.Problem)
	}
	return table
}
