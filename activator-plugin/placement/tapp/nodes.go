package tapp

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// Node is what a policy can ask about a node.
type Node struct {
	Name   string
	Labels labels.Set
	// Reachable says that the node is ready. Pressed says that its kubelet reports pressure on memory,
	// disk or processes.
	Reachable, Pressed bool
	// unknown says that there is no such node, or not yet: its labels are not known.
	unknown bool
}

// NodeOf returns what a policy can ask about n.
func NodeOf(n *corev1.Node) Node {
	node := Node{Name: n.Name, Labels: n.Labels}
	for i := range n.Status.Conditions {
		is := n.Status.Conditions[i].Status == corev1.ConditionTrue
		switch n.Status.Conditions[i].Type {
		case corev1.NodeReady:
			node.Reachable = is
		case corev1.NodeMemoryPressure, corev1.NodeDiskPressure, corev1.NodePIDPressure:
			node.Pressed = node.Pressed || is
		}
	}
	return node
}

func (n Node) zone() string { return n.Labels[corev1.LabelTopologyZone] }

// Nodes are the nodes of a cluster at one time. They are immutable.
type Nodes struct {
	sorted []Node           // by name
	index  map[string]int32 // in sorted
}

// NewNodes returns Nodes with a copy of nodes.
func NewNodes(nodes []Node) *Nodes {
	sorted := slices.Clone(nodes)
	slices.SortFunc(sorted, func(a, b Node) int { return cmp.Compare(a.Name, b.Name) })
	n := &Nodes{sorted: sorted, index: make(map[string]int32, len(sorted))}
	for i := range sorted {
		n.index[sorted[i].Name] = int32(i)
	}
	return n
}

// zone returns the zone of a node, or "".
func (n *Nodes) zone(name string) string {
	if i, ok := n.index[name]; ok {
		return n.sorted[i].zone()
	}
	return ""
}
