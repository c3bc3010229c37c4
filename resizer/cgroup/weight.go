package cgroup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// PodWeight is the CPU weight of a pod's cgroup: its share of the CPU time for which it competes
// with the pods beside it, below the same parent. The container's own weight only divides what the
// pod gets. Weights are in the kernel's unit: cpu.shares on v1, cpu.weight on v2. It is not safe
// for concurrent use.
type PodWeight interface {
	// Dir returns the pod's directory. Pods with the same parent compete.
	Dir() string

	// Read does not allocate.
	Read() (int64, error)

	// Set writes a weight from Least to Most, unless it is set already.
	Set(weight int64) error

	// Least and Most bound the weights that the kernel takes.
	Least() int64
	Most() int64

	Close() error
}

// The kernel's ranges: MIN_SHARES and MAX_SHARES, CGROUP_WEIGHT_MIN and _MAX.
const (
	leastShares, mostShares = 2, 262_144
	leastWeight, mostWeight = 1, 10_000
)

const (
	sharesFile = "cpu.shares"
	weightFile = "cpu.weight"
)

type podWeight struct {
	files
	dir         string
	least, most int64
}

// OpenPodWeight opens the weight of the pod whose directory is dir, which on v1 is below the
// hierarchy of the cpu controller. It fails with ErrNotFound when dir is gone.
func OpenPodWeight(dir string) (PodWeight, error) {
	w := &podWeight{dir: dir, least: leastWeight, most: mostWeight}
	err := w.add(true, filepath.Join(dir, weightFile))
	if errors.Is(err, os.ErrNotExist) {
		w.least, w.most = leastShares, mostShares
		err = w.add(true, filepath.Join(dir, sharesFile))
	}
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("there is neither %s nor %s in %s: %w", weightFile, sharesFile, dir, ErrNotFound)
	}
	if err != nil {
		return nil, fmt.Errorf("opening the weight of a pod: %w", err)
	}
	return w, nil
}

// Dir implements PodWeight.
func (w *podWeight) Dir() string { return w.dir }

// Least implements PodWeight.
func (w *podWeight) Least() int64 { return w.least }

// Most implements PodWeight.
func (w *podWeight) Most() int64 { return w.most }

// Read implements PodWeight.
func (w *podWeight) Read() (int64, error) { return w.int(0) }

// Set implements PodWeight.
func (w *podWeight) Set(weight int64) error {
	if weight < w.least || weight > w.most {
		return fmt.Errorf("the CPU weight for %s is %d, want %d to %d", w.dir, weight, w.least, w.most)
	}
	if there, err := w.Read(); err != nil || there == weight {
		return err
	}
	return w.writeInt(0, weight)
}
