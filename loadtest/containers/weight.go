package containers

import "path/filepath"

// Pod is the cgroup of a pod, which has its CPU weight. It outlives the pod's containers.
// Two Pods of the same pod are equal.
type Pod struct {
	dir string
	v2  bool
}

// Parent returns the folder that contains the pod's.
func (p Pod) Parent() string { return filepath.Dir(p.dir) }

// Weight returns the weight in force: cpu.shares on cgroup v1, cpu.weight on v2.
func (p Pod) Weight() (int64, error) {
	file := "cpu.shares"
	if p.v2 {
		file = "cpu.weight"
	}
	return readField(filepath.Join(p.dir, file), 0)
}

// The kernel's range of shares, and the shares that Kubernetes gives to a core.
const (
	leastShares, mostShares = 2, 262_144
	coreShares              = 1024
	// The kubelet maps shares linearly to the weights of v2, from 1 to 10,000.
	mostWeight = 10_000
)

// KubeletWeight returns the weight that the kubelet gives to a pod whose containers
// request so much CPU in all.
func (p Pod) KubeletWeight(requestMilli int64) int64 {
	shares := min(max(requestMilli*coreShares/1000, leastShares), mostShares)
	if p.v2 {
		return 1 + (shares-leastShares)*(mostWeight-1)/(mostShares-leastShares)
	}
	return shares
}
