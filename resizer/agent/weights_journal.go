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
	// weightSuffix is of files beside those of debts, which agents of before did not know.
	weightSuffix = ".weight"
)

// weightDebt is what the weight of a pod is without Libra. The pod's cgroup outlives its
// containers, so it is found by its path.
type weightDebt struct {
	Version   int    `json:"v"`
	Container string `json:"container"` // that names the file
	Pod       string `json:"pod"`       // namespace/name
	Function  string `json:"function"`  // namespace/revision
	Path      string `json:"path"`      // below where cgroups are mounted
	Weight    int64  `json:"weight"`    // in the kernel's unit

	// found is what was there when it could not be given back; zero before it was tried.
	// Something else there later is new from the kubelet.
	found int64
}

// loadWeights reads what is owed of weights, and says what it could not read, which stays.
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
		return d, fmt.Errorf("reading %s in the journal: %w", name, err)
	}
	if d.Version != weightVersion || d.Container != container || d.Pod == "" || d.Weight <= 0 || !filepath.IsLocal(d.Path) {
		return d, fmt.Errorf("%s in the journal is not of version %d, of that container and of a pod, with a weight and a path below the cgroups", name, weightVersion)
	}
	return d, nil
}

// putWeight writes down a weight, in place of any of its container.
func (j *journal) putWeight(d weightDebt) error {
	d.Version = weightVersion
	return j.write(d.Container, weightSuffix, d.Pod, d)
}

func (j *journal) removeWeight(container string) error { return j.erase(container, weightSuffix) }
