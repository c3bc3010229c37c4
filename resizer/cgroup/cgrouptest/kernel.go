package cgrouptest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// NeedEnv names the environment variable with the version of cgroups, 1 or 2, that the machine must have: a
// test that would be skipped without it fails.
const NeedEnv = "LIBRA_TEST_CGROUP"

// root is where cgroups are mounted on every node.
const root = "/sys/fs/cgroup"

// Container is the cgroup of a container in a pod, in the machine's own kernel.
type Container struct {
	Root string // where cgroups are mounted
	ID   string // the container's
	V2   bool

	t testing.TB
	// dirs are the directories of cpu, cpuacct and memory on v1, and a single one on v2.
	dirs []string
}

// New makes a container's cgroup, without limits, until the test ends. It is below a cgroup for pods, without
// which nothing tells whether pods wait. The test is skipped where that is not permitted.
func New(t testing.TB) *Container {
	t.Helper()
	name := Name()
	return NewIn(t, name, "kubepods", "pod", name+"-container")
}

// Name returns the name of a cgroup that no other test has.
func Name() string { return fmt.Sprintf("libra-test-%d", time.Now().UnixNano()) }

// NewIn makes the cgroup of a container, the last of the names, and those above it that are not there yet.
func NewIn(t testing.TB, names ...string) *Container {
	t.Helper()
	c := &Container{Root: root, ID: names[len(names)-1], V2: version(t) == 2, t: t}
	hierarchies := []string{"cpu", "cpuacct", "memory"}
	if c.V2 {
		hierarchies = []string{""}
	}
	for _, hierarchy := range hierarchies {
		c.dirs = append(c.dirs, c.make(filepath.Join(root, hierarchy), names...))
	}
	return c
}

// Beside makes a container in another pod, which competes with c's.
func (c *Container) Beside() *Container {
	c.t.Helper()
	name := Name()
	other := &Container{Root: c.Root, ID: name + "-container", V2: c.V2, t: c.t}
	for _, dir := range c.dirs {
		other.dirs = append(other.dirs, c.make(filepath.Dir(filepath.Dir(dir)), "pod-"+name, other.ID))
	}
	return other
}

// make makes directories, each below the one before it, and returns the last. Those above the last may exist
// already, and are removed by the test that made them.
func (c *Container) make(dir string, names ...string) string {
	c.t.Helper()
	for _, below := range names {
		if c.V2 {
			c.Write("+cpu +memory", filepath.Join(dir, "cgroup.subtree_control"))
		}
		made := filepath.Join(dir, below)
		dir = made
		if err := os.Mkdir(made, 0o755); errors.Is(err, os.ErrExist) && below != c.ID {
			continue
		} else if err != nil {
			c.t.Fatal(err)
		}
		c.t.Cleanup(func() { removeGroup(c.t, made) })
	}
	return dir
}

func removeGroup(t testing.TB, dir string) {
	if err := syscall.Rmdir(dir); err != nil && !errors.Is(err, syscall.ENOENT) {
		t.Errorf("removing cgroup %s: %v", dir, err)
	}
}

// End removes the container's cgroup, which must have no process.
func (c *Container) End() {
	c.t.Helper()
	for _, dir := range c.dirs {
		removeGroup(c.t, dir)
	}
}

// File returns a file of the container, by its name on v1 and on v2.
func (c *Container) File(v1, v2 string) string {
	if c.V2 {
		return filepath.Join(c.dirs[0], v2)
	}
	dir := c.dirs[0]
	if strings.HasPrefix(v1, "memory.") {
		dir = c.dirs[2]
	}
	return filepath.Join(dir, v1)
}

// PodFile returns a file of the container's pod that concerns CPU.
func (c *Container) PodFile(v1, v2 string) string {
	path := c.File(v1, v2)
	return filepath.Join(filepath.Dir(filepath.Dir(path)), filepath.Base(path))
}

// Prefer gives the cgroups that New made most of the CPU, whatever else runs on the machine.
func (c *Container) Prefer() {
	c.t.Helper()
	path := c.PodFile("cpu.shares", "cpu.weight")
	top := filepath.Dir(filepath.Dir(filepath.Dir(path)))
	c.Write("10000", filepath.Join(top, filepath.Base(path)))
}

// Write writes a file as anybody but Libra would.
func (c *Container) Write(text, path string) {
	c.t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		c.t.Fatal(err)
	}
}

// OOMKills returns how many processes the kernel has killed for lack of memory.
func (c *Container) OOMKills() int {
	c.t.Helper()
	path := c.File("memory.oom_control", "memory.events")
	text, err := os.ReadFile(path)
	if err != nil {
		c.t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		var kills int
		if _, err := fmt.Sscanf(line, "oom_kill %d", &kills); err == nil {
			return kills
		}
	}
	c.t.Fatalf("%s has no oom_kill: %s", path, text)
	return 0
}

// version returns the version of this machine's cgroups. It skips the test where they may not be written.
func version(t testing.TB) int {
	t.Helper()
	version, writable := 1, filepath.Join(root, "memory")
	if _, err := os.Stat(filepath.Join(root, "cgroup.controllers")); err == nil {
		version, writable = 2, root
	}
	need := os.Getenv(NeedEnv)
	if need != "" && need != strconv.Itoa(version) {
		t.Fatalf("%s is %s, but the cgroups in %s are of version %d", NeedEnv, need, root, version)
	}
	const mayWrite = 2
	if err := syscall.Access(writable, mayWrite); err != nil {
		skip := t.Skipf
		if need != "" {
			skip = t.Fatalf
		}
		skip("this test makes cgroups, and may not do so here: %s: %v", writable, err)
	}
	return version
}
