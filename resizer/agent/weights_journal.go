package agent

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

const (
	weightVersion = 1
	// weightSuffix marks files beside those of debts, which earlier agents did not know.
	weightSuffix = ".weight"
)

// weightDebt is the weight of a pod without Libra. The pod's cgroup outlives its
// containers, so the debt names it by its path.
type weightDebt struct {
	Version   int    `json:"v"`
	Container string `json:"container"` // names the file
	Pod       string `json:"pod"`       // namespace/name
	Function  string `json:"function"`  // namespace/revision
	Path      string `json:"path"`      // relative to where cgroups are mounted
	Weight    int64  `json:"weight"`    // in the kernel's unit

	// found is the weight that was there when giving it back failed; zero before the first
	// try. A different weight later is new from the kubelet.
	found int64
}

// loadWeights reads the weights that are owed and returns an error for each file that it
// could not read, which stays.
func (j *journal) loadWeights() (debts []weightDebt, unread []error) {
	entries, err := os.ReadDir(j.dir)
	if err != nil {
		return nil, []error{fmt.Errorf("reading the journal: %w", err)}
	}
	for _, e := range entries {
		id, ok := strings.CutSuffix(e.Name(), weightSuffix)
		if !ok || e.IsDir() {
			continue
		}
		d, err := j.readWeight(e.Name(), id)
		if err != nil {
			unread = append(unread, err)
			continue
		}
		debts = append(debts, d)
	}
	return debts, unread
}

func (j *journal) readWeight(name, container string) (weightDebt, error) {
	var d weightDebt
	text, err := os.ReadFile(filepath.Join(j.dir, name))
	if err != nil {
		return d, fmt.Errorf("reading the journal: %w", err)
	}
	if err := json.Unmarshal(text, &d); err != nil {
		return d, fmt.Errorf("reading journal file %s: %w", name, err)
	}
	if d.Version != weightVersion || d.Container != container || d.Pod == "" || d.Weight <= 0 || !filepath.IsLocal(d.Path) {
		return d, fmt.Errorf("journal file %s has a wrong version, container, pod, weight or path: "+
			"want version %d, the container of the file's name, a pod, a weight above 0, and a path below the cgroups", name, weightVersion)
	}
	return d, nil
}

// putWeight writes down a weight, replacing any earlier one of its container.
func (j *journal) putWeight(d weightDebt) error {
	d.Version = weightVersion
	return j.write(d.Container, weightSuffix, d.Pod, d)
}

func (j *journal) removeWeight(container string) error { return j.erase(container, weightSuffix) }
