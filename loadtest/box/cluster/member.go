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
	// MostNodes is as many as the addresses are laid out for.
	MostNodes = 9
	// ControlTaint keeps pods off the control node that have no place there, where there are workers.
	ControlTaint = "node-role.kubernetes.io/control-plane"

	// controlLabel is the control node's among several; a kubelet may not give itself a role's.
	controlLabel = "box.libra.dev/control"
	zoneLabel    = "topology.kubernetes.io/zone"

	// What is known of a node that is gone, in seconds: after the grace its pods are no longer ready,
	// and after the toleration they are made anew elsewhere. A kubelet that is stopped for as long as
	// chaos does it is not gone.
	graceOfNodes      = 20
	tolerationOfNodes = 5
	leaseOfNodes      = 8
)

// member is one of the cluster's nodes: the control node, whose number is 0, or a worker.
type member struct {
	layout layout.Layout
	number int
	of     int // nodes of the cluster
}

// alone is the only node of a cluster.
func alone(l layout.Layout) member { return member{layout: l, of: 1} }

// membersOf are the nodes of a cluster, the control node first.
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

// name is the node's in Kubernetes.
func (m member) name() string {
	if !m.isWorker() {
		return NodeName
	}
	return "w" + strconv.Itoa(m.number)
}

// own is the name of a thing of which each node has one.
func (m member) own(thing string) string {
	if !m.isWorker() {
		return thing
	}
	return thing + "-" + m.name()
}

func (m member) podCIDR() string       { return fmt.Sprintf("10.244.%d.0/24", m.number) }
func (m member) ip() string            { return fmt.Sprintf("10.244.%d.1", m.number) }
func (m member) podRangeStart() string { return fmt.Sprintf("10.244.%d.10", m.number) }

// clusterCIDR has the pods of all nodes.
func (m member) clusterCIDR() string {
	if m.alone() {
		return podCIDR
	}
	return podsCIDR
}

// cgroup is the node's folder in every hierarchy.
func (m member) cgroup() string {
	if m.alone() {
		return cgroupName
	}
	return filepath.Join(cgroupName, m.name())
}

// cgroupRoot is what the kubelet takes for the root of the cgroups. Of several nodes each sees
// its own folder only, as a machine sees its own cgroups.
func (m member) cgroupRoot() string {
	if m.alone() {
		return "/" + cgroupName
	}
	return "/"
}

// labels are the node's, for the kubelet's command line.
func (m member) labels() string {
	if !m.isWorker() {
		return controlLabel + "=," + zoneLabel + "=control"
	}
	return fmt.Sprintf("%s=zone-%d", zoneLabel, m.number)
}

// cpus are those of the machine that the node has: all, or as a worker an equal part.
func (m member) cpus(machine []int) []int {
	if !m.isWorker() {
		return machine
	}
	workers := m.of - 1
	return machine[(m.number-1)*len(machine)/workers : m.number*len(machine)/workers]
}

// memoryBytes is the node's part of the machine's memory.
func (m member) memoryBytes(machine uint64) uint64 { return machine / uint64(m.of) }

// PlatformAnnotations are those of a namespace whose pods are to be on the control node, where
// there are workers: by them the API server gives each pod its place.
func PlatformAnnotations(nodes int) map[string]string {
	if nodes == 1 {
		return nil
	}
	return map[string]string{
		"scheduler.alpha.kubernetes.io/node-selector":      controlLabel + "=",
		"scheduler.alpha.kubernetes.io/defaultTolerations": `[{"key":"` + ControlTaint + `","operator":"Exists","effect":"NoSchedule"}]`,
	}
}

// ofPlatform are the images whose pods are on the control node, where there are workers: their
// namespaces say so.
var ofPlatform = []string{
	"knative-activator", "knative-autoscaler", "knative-controller", "knative-webhook", "knative-net-gateway-api", "knative-net-kourier",
	"pilot", "proxyv2", "kserve-manager", "redis", "libra-resizer", "libra-predictor", "libra-scheduler",
}

// runs says whether the node may run an image, by its name.
func (m member) runs(image string) bool { return !m.isWorker() || !slices.Contains(ofPlatform, image) }

// told names the node in a line of progress, where there are several.
func (m member) told() string {
	if m.alone() {
		return ""
	}
	return " on " + m.name()
}

// machineCPUs are the CPUs that the box may use.
func machineCPUs() ([]int, error) {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return nil, fmt.Errorf("CPUs of this process: %w", err)
	}
	var cpus []int
	for cpu := 0; len(cpus) < set.Count(); cpu++ {
		if set.IsSet(cpu) {
			cpus = append(cpus, cpu)
		}
	}
	return cpus, nil
}

// cpuList is how the kernel writes and reads a set of CPUs.
func cpuList(cpus []int) string {
	words := make([]string, 0, len(cpus))
	for _, cpu := range cpus {
		words = append(words, strconv.Itoa(cpu))
	}
	return strings.Join(words, ",")
}

// A box that runs has a file with the number of its nodes.
func nodesPath(l layout.Layout) string { return filepath.Join(l.Run(), "nodes") }

func writeNodes(l layout.Layout, nodes int) error {
	return os.WriteFile(nodesPath(l), []byte(strconv.Itoa(nodes)), 0o644)
}

// members are the nodes of the box that runs; without one, the control node.
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
		return nil, fmt.Errorf("%s says %.20q, not a number of nodes from 1 to %d", nodesPath(c.Layout), data, MostNodes)
	}
	return membersOf(c.Layout, nodes), nil
}

// member is the node of that name; an empty one is the control node's.
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
	return member{}, fmt.Errorf("%.64q is no node of the box, which has %s", name, strings.Join(names, ", "))
}

// worker is the worker of that name.
func (c Cluster) worker(name string) (member, error) {
	m, err := c.member(name)
	if err == nil && !m.isWorker() {
		err = fmt.Errorf("%.64q is not a worker's name: the control node is there as long as the box is", name)
	}
	return m, err
}
