package cluster

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"libra.dev/libra/loadtest/box/layout"
)

const (
	// MostNodes is the number of nodes that the addresses are laid out for.
	MostNodes = 9
	// ControlTaint keeps other pods off the control node if there are workers.
	ControlTaint = "node-role.kubernetes.io/control-plane"

	// controlLabel marks the control node among several; a kubelet may not label itself with a role.
	controlLabel = "box.libra.dev/control"
	zoneLabel    = "topology.kubernetes.io/zone"

	// How fast a lost node is noticed, in seconds: after the grace period its pods are no longer
	// ready, and after the toleration they are recreated elsewhere. A kubelet that chaos stops must
	// not count as lost.
	graceOfNodes      = 20
	tolerationOfNodes = 5
	leaseOfNodes      = 8
)

// member is one of the cluster's nodes: the control node, whose number is 0, or a worker.
type member struct {
	layout layout.Layout
	number int
	of     int // number of nodes in the cluster
}

// alone returns the only node of a cluster.
func alone(l layout.Layout) member { return member{layout: l, of: 1} }

// membersOf returns the nodes of a cluster, the control node first.
func membersOf(l layout.Layout, nodes int) []member {
	members := []member{{layout: l, of: nodes}}
	for i := 1; i < nodes; i++ {
		w := member{layout: l, number: i, of: nodes}
		w.layout = l.Of(w.name())
		members = append(members, w)
	}
	return members
}

func (m member) isWorker() bool { return m.number > 0 }
func (m member) alone() bool    { return m.of == 1 }

// name returns the node's name in Kubernetes.
func (m member) name() string {
	if !m.isWorker() {
		return NodeName
	}
	return "w" + strconv.Itoa(m.number)
}

// own returns the node's name for a thing of which each node has one.
func (m member) own(thing string) string {
	if !m.isWorker() {
		return thing
	}
	return thing + "-" + m.name()
}

func (m member) podCIDR() string       { return fmt.Sprintf("10.244.%d.0/24", m.number) }
func (m member) ip() string            { return fmt.Sprintf("10.244.%d.1", m.number) }
func (m member) podRangeStart() string { return fmt.Sprintf("10.244.%d.10", m.number) }

// clusterCIDR contains the pods of all nodes.
func (m member) clusterCIDR() string {
	if m.alone() {
		return podCIDR
	}
	return podsCIDR
}

// cgroup returns the node's folder in every hierarchy.
func (m member) cgroup() string {
	if m.alone() {
		return cgroupName
	}
	return filepath.Join(cgroupName, m.name())
}

// cgroupRoot is the kubelet's root of the cgroups. If there are several nodes, each sees only its own
// folder, as a machine sees its own cgroups.
func (m member) cgroupRoot() string {
	if m.alone() {
		return "/" + cgroupName
	}
	return "/"
}

// labels returns the node's labels, for the kubelet's command line.
func (m member) labels() string {
	if !m.isWorker() {
		return controlLabel + "=," + zoneLabel + "=control"
	}
	return fmt.Sprintf("%s=zone-%d", zoneLabel, m.number)
}

// cpus returns the node's share of the machine's CPUs: all, or for a worker an equal part.
func (m member) cpus(machine []int) []int {
	if !m.isWorker() {
		return machine
	}
	workers := m.of - 1
	return machine[(m.number-1)*len(machine)/workers : m.number*len(machine)/workers]
}

// memoryBytes is the node's part of the machine's memory.
func (m member) memoryBytes(machine uint64) uint64 { return machine / uint64(m.of) }

// PlatformAnnotations returns the annotations for a namespace whose pods belong on the control node
// if there are workers. They make the API server place the pods there.
func PlatformAnnotations(nodes int) map[string]string {
	if nodes == 1 {
		return nil
	}
	return map[string]string{
		"scheduler.alpha.kubernetes.io/node-selector":      controlLabel + "=",
		"scheduler.alpha.kubernetes.io/defaultTolerations": `[{"key":"` + ControlTaint + `","operator":"Exists","effect":"NoSchedule"}]`,
	}
}

// ofPlatform are the images whose pods run on the control node if there are workers: their
// namespaces' annotations say so.
var ofPlatform = []string{
	"knative-activator", "knative-autoscaler", "knative-controller", "knative-webhook", "knative-net-gateway-api", "knative-net-kourier",
	"pilot", "proxyv2", "kserve-manager", "redis", "libra-resizer", "libra-predictor", "libra-scheduler",
}

// runs reports whether the node may run an image, by its name.
func (m member) runs(image string) bool { return !m.isWorker() || !slices.Contains(ofPlatform, image) }

// told names the node for a line of progress, if there are several.
func (m member) told() string {
	if m.alone() {
		return ""
	}
	return " on " + m.name()
}

// machineCPUs returns the CPUs that the box may use.
func machineCPUs() ([]int, error) {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return nil, fmt.Errorf("read the CPUs of this process: %w", err)
	}
	var cpus []int
	for cpu := 0; len(cpus) < set.Count(); cpu++ {
		if set.IsSet(cpu) {
			cpus = append(cpus, cpu)
		}
	}
	return cpus, nil
}

// cpuList formats a set of CPUs as the kernel does.
func cpuList(cpus []int) string {
	words := make([]string, 0, len(cpus))
	for _, cpu := range cpus {
		words = append(words, strconv.Itoa(cpu))
	}
	return strings.Join(words, ",")
}

// nodesPath is the file with the number of nodes of a running box.
func nodesPath(l layout.Layout) string { return filepath.Join(l.Run(), "nodes") }

func writeNodes(l layout.Layout, nodes int) error {
	return os.WriteFile(nodesPath(l), []byte(strconv.Itoa(nodes)), 0o644)
}

// members returns the nodes of the running box, or only the control node if none runs.
func (c Cluster) members() ([]member, error) {
	data, err := os.ReadFile(nodesPath(c.Layout))
	if errors.Is(err, fs.ErrNotExist) {
		return membersOf(c.Layout, 1), nil
	}
	if err != nil {
		return nil, err
	}
	nodes, err := strconv.Atoi(string(data))
	if err != nil || nodes < 1 || nodes > MostNodes {
		return nil, fmt.Errorf("%s has %.20q, want a number of nodes from 1 to %d", nodesPath(c.Layout), data, MostNodes)
	}
	return membersOf(c.Layout, nodes), nil
}

// member returns the node of that name; an empty name means the control node.
func (c Cluster) member(name string) (member, error) {
	members, err := c.members()
	if err != nil {
		return member{}, err
	}
	var names []string
	for _, m := range members {
		if m.name() == name || name == "" && !m.isWorker() {
			return m, nil
		}
		names = append(names, m.name())
	}
	return member{}, fmt.Errorf("%.64q is not a node of the box, which has %s", name, strings.Join(names, ", "))
}

// worker returns the worker of that name.
func (c Cluster) worker(name string) (member, error) {
	m, err := c.member(name)
	if err == nil && !m.isWorker() {
		err = fmt.Errorf("%.64q is not a worker but the control node, which runs as long as the box", name)
	}
	return m, err
}
