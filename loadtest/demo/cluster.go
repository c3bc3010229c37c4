package main

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"libra.dev/libra/loadtest/bench/machine"
)

// boxNode is the name of the box's only node, or of its control node among several.
const boxNode = "box"

// boxWorker matches the names of the box's workers.
var boxWorker = regexp.MustCompile(`^w[1-9]$`)

// checkBox refuses a cluster that is not the box: on any other one, a person has to
// confirm first. It also finds the box's workers.
func (d *demo) checkBox(ctx context.Context) error {
	var nodes corev1.NodeList
	if err := d.kubectl.get(ctx, &nodes, "nodes"); err != nil {
		return fmt.Errorf("the box does not answer (`box up` starts it): %w", err)
	}
	var workers []string
	control := false
	for _, n := range nodes.Items {
		switch {
		case n.Name == boxNode:
			control = true
		case boxWorker.MatchString(n.Name):
			workers = append(workers, n.Name)
		}
	}
	if !control || len(workers) != len(nodes.Items)-1 {
		return fmt.Errorf("the cluster of %s is not the box: name another cluster with --context", d.kubeconfig)
	}
	slices.Sort(workers)
	d.workers = workers
	return nil
}

// checkOther refuses a cluster that has Libra, or one of the namespaces: their content
// would be changed, and removed at the end.
func (d *demo) checkOther(ctx context.Context, namespaces ...string) error {
	for _, n := range append(namespaces, libraNamespace, agentNamespace) {
		switch there, err := d.kubectl.exists(ctx, "namespace", n); {
		case err != nil:
			return err
		case there:
			return fmt.Errorf("the namespace %s exists already, and this would change it and remove it at the end: if you do not need it, remove it first", n)
		}
	}
	return nil
}

// machine describes in one line what the cluster runs on.
func (d *demo) machine(ctx context.Context) (string, error) {
	var nodes corev1.NodeList
	if err := d.kubectl.get(ctx, &nodes, "nodes"); err != nil {
		return "", err
	}
	var cpus, gib int64
	for _, n := range nodes.Items {
		cpus += n.Status.Capacity.Cpu().Value()
		gib += n.Status.Capacity.Memory().Value() >> 30
	}
	if len(d.workers) > 0 { // the nodes are parts of this machine
		cpus, gib = int64(coresOf(nodes.Items)), 0
		for _, n := range nodes.Items {
			gib = max(gib, n.Status.Capacity.Memory().Value()>>30)
		}
	}
	said := []string{fmt.Sprintf("%d node(s)", len(nodes.Items)), fmt.Sprintf("%d CPUs", cpus), fmt.Sprintf("%d GiB", gib)}
	if len(nodes.Items) > 0 {
		info := nodes.Items[0].Status.NodeInfo
		said = append(said, info.Architecture, "Linux "+info.KernelVersion, "Kubernetes "+info.KubeletVersion)
	}
	if model := machine.CPUModel(); d.boxed() && model != "" {
		said = append(said, model)
	}
	return strings.Join(said, ", "), nil
}
