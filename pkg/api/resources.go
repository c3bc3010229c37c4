package api

import (
	"fmt"

	"k8s.io/apimachinery/pkg/api/resource"

	corev1 "k8s.io/api/core/v1"
)

// Resources is a volume of CPU and memory. Libra treats the two separately.
type Resources struct {
	CPUMilli    int64 `json:"cpu_milli"`
	MemoryBytes int64 `json:"memory_bytes"`
}

// Add returns r + o.
func (r Resources) Add(o Resources) Resources {
	return Resources{CPUMilli: r.CPUMilli + o.CPUMilli, MemoryBytes: r.MemoryBytes + o.MemoryBytes}
}

// Sub returns r - o.
func (r Resources) Sub(o Resources) Resources {
	return Resources{CPUMilli: r.CPUMilli - o.CPUMilli, MemoryBytes: r.MemoryBytes - o.MemoryBytes}
}

// Max returns the larger of r and o, each resource by itself.
func (r Resources) Max(o Resources) Resources {
	return Resources{CPUMilli: max(r.CPUMilli, o.CPUMilli), MemoryBytes: max(r.MemoryBytes, o.MemoryBytes)}
}

// Min returns the smaller of r and o, each resource by itself.
func (r Resources) Min(o Resources) Resources {
	return Resources{CPUMilli: min(r.CPUMilli, o.CPUMilli), MemoryBytes: min(r.MemoryBytes, o.MemoryBytes)}
}

// IsZero reports whether r is no CPU and no memory.
func (r Resources) IsZero() bool { return r == Resources{} }

func (r Resources) String() string {
	return fmt.Sprintf("%dm/%dMi", r.CPUMilli, r.MemoryBytes>>20)
}

// FromList returns the CPU and memory in l. One that is not in l is 0.
func FromList(l corev1.ResourceList) Resources {
	return Resources{CPUMilli: l.Cpu().MilliValue(), MemoryBytes: l.Memory().Value()}
}

// List returns r as Kubernetes writes it, without the resources that are zero.
func (r Resources) List() corev1.ResourceList {
	l := corev1.ResourceList{}
	if r.CPUMilli != 0 {
		l[corev1.ResourceCPU] = *resource.NewMilliQuantity(r.CPUMilli, resource.DecimalSI)
	}
	if r.MemoryBytes != 0 {
		l[corev1.ResourceMemory] = *resource.NewQuantity(r.MemoryBytes, resource.BinarySI)
	}
	return l
}
