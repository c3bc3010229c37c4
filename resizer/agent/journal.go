package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"

	"github.com/go-logr/logr"
	"go.opentelemetry.io/otel/metric"

	"libra.dev/libra/pkg/api"
)

const (
	journalVersion = 1
	journalLock    = "lock"

	// The files of the journal are named for the container, and by suffix for what it is owed: its CPU limit,
	// where a loan changes it; the limit of its pod's spec, where the clamps changed it; its pod's CPU weight.
	limitSuffix, ceilingSuffix, weightSuffix = ".json", ".ceiling", ".weight"
	unfinishedSuffix                         = ".new"
)

// errHeld says that another agent holds the journal.
var errHeld = errors.New("another agent of this node holds it")

var containerIDPattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,127}$`)

// debt is the CPU limit that a container gets back.
type debt struct {
	Version    int           `json:"v"`
	Container  string        `json:"container"`
	Pod        string        `json:"pod"`        // namespace/name
	Function   string        `json:"function"`   // namespace/revision
	Allocation api.Resources `json:"allocation"` // zero where the user set no limit
}

func (d debt) check(container string) error {
	if d.Version != journalVersion || d.Container != container || d.Pod == "" {
		return fmt.Errorf("it has a wrong version, container or pod: want version %d, the container of the file's name, and a pod", journalVersion)
	}
	return nil
}

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

func (d weightDebt) check(container string) error {
	if d.Version != journalVersion || d.Container != container || d.Pod == "" || d.Weight <= 0 || !filepath.IsLocal(d.Path) {
		return fmt.Errorf("it has a wrong version, container, pod, weight or path: "+
			"want version %d, the container of the file's name, a pod, a weight above 0, and a path below the cgroups", journalVersion)
	}
	return nil
}

// journal keeps debts in a directory, a file each, so that they outlive the agent. They need not
// outlive the machine, which takes the containers with it, so nothing is flushed to disk.
type journal struct {
	dir    string
	lock   *os.File
	log    logr.Logger
	errors metric.Int64Counter
}

// openJournal creates the directory if it is missing, and locks it until close. It fails with
// errHeld while another agent holds the lock, and while an agent that ends removes it.
func openJournal(dir string, log logr.Logger, errorCount metric.Int64Counter) (*journal, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("making the journal's folder: %w", err)
	}
	lock, err := os.OpenFile(filepath.Join(dir, journalLock), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("opening the journal's lock: %w", err)
	}
	err = syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) || err == nil && !named(lock) {
		err = errHeld
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("locking the journal %s: %w", dir, err), lock.Close())
	}
	return &journal{dir: dir, lock: lock, log: log, errors: errorCount}, nil
}

// named says whether a file still has its name: one that has lost it locks nothing.
func named(f *os.File) bool {
	held, err := f.Stat()
	if err != nil {
		return false
	}
	there, err := os.Stat(f.Name())
	return err == nil && os.SameFile(held, there)
}

// close releases the journal. If nothing is owed, it leaves nothing on the node but the journal's
// own directory, which the kubelet made.
func (j *journal) close() error {
	entries, err := os.ReadDir(j.dir)
	if err == nil && !slices.ContainsFunc(entries, func(e fs.DirEntry) bool { return e.Name() != journalLock }) {
		err = os.Remove(j.lock.Name())
	}
	return errors.Join(err, j.lock.Close())
}

// owed is what a journal holds.
type owed struct {
	limits, ceilings []debt
	weights          []weightDebt
}

// load reads the journal. A file that it cannot read stays: it may be a newer agent's debt. Unfinished
// files are removed, since nothing was owed for them yet.
func (j *journal) load() (found owed) {
	var unread []error
	entries, err := os.ReadDir(j.dir)
	if err != nil {
		unread = append(unread, fmt.Errorf("reading the journal: %w", err))
	}
	for _, e := range entries {
		if e.IsDir() || e.Name() == journalLock {
			continue
		}
		var err error
		switch filepath.Ext(e.Name()) {
		case unfinishedSuffix:
			err = os.Remove(filepath.Join(j.dir, e.Name()))
		case limitSuffix:
			err = read(j, e.Name(), &found.limits)
		case ceilingSuffix:
			err = read(j, e.Name(), &found.ceilings)
		case weightSuffix:
			err = read(j, e.Name(), &found.weights)
		default:
			err = fmt.Errorf("it is not a debt: the name of a debt ends in %s, %s or %s", limitSuffix, ceilingSuffix, weightSuffix)
		}
		if err != nil {
			unread = append(unread, fmt.Errorf("journal file %s: %w", e.Name(), err))
		}
	}
	if len(unread) > 0 {
		j.errors.Add(context.Background(), int64(len(unread)))
		j.log.Error(errors.Join(unread...), "leaving unreadable journal files in place; what they record is not returned")
	}
	return found
}

// read adds to all what a file holds.
func read[T interface{ check(container string) error }](j *journal, name string, all *[]T) error {
	text, err := os.ReadFile(filepath.Join(j.dir, name))
	if err != nil {
		return err
	}
	var one T
	if err := json.Unmarshal(text, &one); err != nil {
		return err
	}
	if err := one.check(strings.TrimSuffix(name, filepath.Ext(name))); err != nil {
		return err
	}
	*all = append(*all, one)
	return nil
}

// put writes what a container is owed, replacing what was there.
func (j *journal) put(container, suffix string, debt any) (err error) {
	defer func() {
		if err != nil {
			j.errors.Add(context.Background(), 1)
		}
	}()
	if !containerIDPattern.MatchString(container) {
		return fmt.Errorf("container ID %q cannot name a journal file: it must match %s", container, containerIDPattern)
	}
	text, err := json.Marshal(debt)
	if err != nil {
		return fmt.Errorf("recording what container %s is owed: %w", container, err)
	}
	path := j.path(container, suffix)
	unfinished := path + unfinishedSuffix
	if err := os.WriteFile(unfinished, text, 0o600); err != nil {
		return fmt.Errorf("recording what container %s is owed: %w", container, err)
	}
	if err := os.Rename(unfinished, path); err != nil {
		return fmt.Errorf("recording what container %s is owed: %w", container, err)
	}
	return nil
}

// forget removes what a container is owed, if the journal has it.
func (j *journal) forget(container, suffix string) {
	if err := os.Remove(j.path(container, suffix)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		j.errors.Add(context.Background(), 1)
		j.log.Error(err, "could not remove a debt from the journal; the next agent to start sets the CPU limit or weight again")
	}
}

func (j *journal) path(container, suffix string) string {
	return filepath.Join(j.dir, container+suffix)
}
