package containers

import "path/filepath"

// Pod is the cgroup of a pod, where its weight is. It outlives the pod's containers. Two
// that are the same pod's are equal.
type Pod struct {
	dir string
	v2  bool
}

// Parent is the folder in which the pod's is.
func (p Pod) Parent() string { return filepath.Dir(p.dir) }

// Weight is the one in force: cpu.shares on cgroup v1, cpu.weight on v2.
func (p Pod) Weight() (int64, error) {
	file := "cpu.shares"
	if p.v2 {
		file = "cpu.weight"
	}
	return readField(filepath.Join(p.dir, file), 0)
}

// The kernel's range of shares, and what Kubernetes takes for those of a core.
const (
	leastShares, mostShares = 2, 262_144
	coreShares              = 1024
	// The kubelet maps shares to the weights of v2, from 1 to 10,000, on a straight line.
	mostWeight = 10_000
)

// KubeletWeight is what the kubelet gives a pod whose containers request so much CPU.
func (p Pod) KubeletWeight(requestMilli int64) int64 {
	shares := min(max(requestMilli*coreShares/1000, leastShares), mostShares)
	if p.v2 {
		return 1 + (shares-leastShares)*(mostWeight-1)/(mostShares-leastShares)
	}
	return shares
}
