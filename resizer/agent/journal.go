package agent

import (
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

	"libra.dev/libra/pkg/api"
)

const (
	journalVersion = 1
	journalSuffix  = ".json"
	journalLock    = "lock"

	journalUnfinished = ".new"
)

// errHeld says that another agent holds the journal.
var errHeld = errors.New("another agent of this node holds it")

var containerIDPattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,127}$`)

// debt is what the agent owes a container that it has changed or is about to change.
type debt struct {
	Version    int           `json:"v"`
	Container  string        `json:"container"`
	Pod        string        `json:"pod"`        // namespace/name
	Function   string        `json:"function"`   // namespace/revision
	Allocation api.Resources `json:"allocation"` // zero where the user set no limit
}

// journal keeps debts in a directory, a file each, so that they outlive the agent. They need not
// outlive the machine, which takes the containers with it, so nothing is flushed to disk.
type journal struct {
	dir  string
	lock *os.File
}

// openJournal creates the directory if it is missing, and locks it until close. It fails with
// errHeld while another agent holds the lock, and while an agent that ends removes it.
func openJournal(dir string) (*journal, error) {
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
	return &journal{dir: dir, lock: lock}, nil
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

// load reads all debts and returns an error for each file that it could not read. Such a file
// stays: it may be a newer agent's debt. Unfinished files are removed, since nothing was owed for
// them yet.
func (j *journal) load() (debts []debt, unread []error) {
	entries, err := os.ReadDir(j.dir)
	if err != nil {
		return nil, []error{fmt.Errorf("reading the journal: %w", err)}
	}
	for _, e := range entries {
		if e.Name() == journalLock || strings.HasSuffix(e.Name(), weightSuffix) || e.IsDir() {
			continue
		}
		if strings.HasSuffix(e.Name(), journalUnfinished) {
			if err := os.Remove(filepath.Join(j.dir, e.Name())); err != nil {
				unread = append(unread, fmt.Errorf("removing an unfinished file from the journal: %w", err))
			}
			continue
		}
		d, err := j.read(e.Name())
		if err != nil {
			unread = append(unread, err)
			continue
		}
		debts = append(debts, d)
	}
	return debts, unread
}

func (j *journal) read(name string) (debt, error) {
	var d debt
	id, ok := strings.CutSuffix(name, journalSuffix)
	if !ok {
		return d, fmt.Errorf("journal file %s is not a debt: the name of a debt ends in %s", name, journalSuffix)
	}
	text, err := os.ReadFile(filepath.Join(j.dir, name))
	if err != nil {
		return d, fmt.Errorf("reading the journal: %w", err)
	}
	if err := json.Unmarshal(text, &d); err != nil {
		return d, fmt.Errorf("reading journal file %s: %w", name, err)
	}
	if d.Version != journalVersion || d.Container != id || d.Pod == "" {
		return d, fmt.Errorf("journal file %s has a wrong version, container or pod: want version %d, the container of the file's name, and a pod", name, journalVersion)
	}
	return d, nil
}

// put writes a debt, replacing any earlier one to its container.
func (j *journal) put(d debt) error {
	d.Version = journalVersion
	return j.write(d.Container, journalSuffix, d.Pod, d)
}

// write writes what is owed to a container, replacing what was there.
func (j *journal) write(container, suffix, pod string, owed any) error {
	if !containerIDPattern.MatchString(container) {
		return fmt.Errorf("container ID %q cannot name a journal file: it must match %s", container, containerIDPattern)
	}
	text, err := json.Marshal(owed)
	if err != nil {
		return fmt.Errorf("recording the debt to pod %s: %w", pod, err)
	}
	path := j.path(container, suffix)
	unfinished := path + journalUnfinished
	if err := os.WriteFile(unfinished, text, 0o600); err != nil {
		return fmt.Errorf("recording the debt to pod %s: %w", pod, err)
	}
	if err := os.Rename(unfinished, path); err != nil {
		return fmt.Errorf("recording the debt to pod %s: %w", pod, err)
	}
	return nil
}

// remove forgets the debt to a container, if there is one.
func (j *journal) remove(container string) error { return j.erase(container, journalSuffix) }

func (j *journal) erase(container, suffix string) error {
	if err := os.Remove(j.path(container, suffix)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("removing a debt from the journal: %w", err)
	}
	return nil
}

func (j *journal) path(container, suffix string) string {
	return filepath.Join(j.dir, container+suffix)
}
