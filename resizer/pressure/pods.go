package pressure

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"libra.dev/libra/resizer/cgroup"
)

const (
	// parentDepth is how deep below the root of the cgroups the parents of pods may be, because a
	// kubelet can have a cgroup root of its own.
	parentDepth = 4
	// deepest is how many levels of cgroups there may be below a pod's.
	deepest = 6

	// notLimited stands for the throttling of a pod without CPU limits.
	notLimited = time.Duration(-1)
)

// pod is a bystander's cgroup, with its containers'.
type pod struct {
	dir      string
	dirs     []string            // its own first
	limited  map[string]*counter // by directory: those with a CPU limit, and how long it held them up
	pressure *counter            // nil unless it is read

	usage   *counter // CPU used, when threads are read
	list    string   // name of the file that lists threads
	threads map[int]*thread
	listed  bool          // whether its threads were listed since it was last followed
	ahead   time.Duration // waiting that the kernel has not counted yet

	foundAt   time.Time
	busyAt    time.Time     // when it was last seen to have run, or on v2 to have waited
	unread    time.Duration // since it was read last
	turn      int           // decides which followEach-th listings and restEach-th readings it is in
	throttled time.Duration // as last read, or notLimited
	own       own
	patience  patience
}

func (p *pod) close() {
	for _, c := range p.limited {
		c.close()
	}
	for _, c := range p.threads {
		c.close()
	}
	for _, c := range []*counter{p.pressure, p.usage} {
		if c != nil {
			c.close()
		}
	}
}

// readThrottled reads how long the limits of the pod's own containers held them up.
func (p *pod) readThrottled(buffer []byte) error {
	p.throttled = notLimited
	for dir, c := range p.limited {
		held, err := c.since(buffer)
		if cgroup.Gone(err) {
			c.close()
			delete(p.limited, dir)
			continue
		} else if err != nil {
			return err
		}
		p.throttled = max(0, p.throttled) + held
	}
	return nil
}

// tree is where the cgroups of pods are.
type tree struct {
	cpu, cpuacct string   // hierarchies; the same on v2
	parents      []string // of pods

	// missing is the error of a search at soughtAt that found no parents. A search walks all of the
	// node's cgroups, which is too much for every reading.
	missing  error
	soughtAt time.Time
}

// list finds the bystanders, and what to read of them.
func (n *Node) list(now time.Time) error {
	shared, err := cgroup.SharedCPUs()
	if err != nil {
		return err
	}
	online, err := cgroup.OnlineCPUs()
	if err != nil {
		return err
	}
	n.shared, n.online = int64(shared.Count()), int64(online)
	if err := n.findParents(now); err != nil {
		return err
	}
	found := map[string]struct{}{}
	for _, parent := range n.tree.parents {
		entries, err := os.ReadDir(parent)
		if errors.Is(err, fs.ErrNotExist) {
			n.tree.parents = nil // search for them again
			continue
		} else if err != nil {
			return fmt.Errorf("looking for pods: %w", err)
		}
		for _, e := range entries {
			if uid, ok := podUID(e.Name()); ok && e.IsDir() && !n.ours(uid) {
				found[filepath.Join(parent, e.Name())] = struct{}{}
			}
		}
	}
	for dir, p := range n.pods {
		if _, ok := found[dir]; !ok {
			p.close()
			delete(n.pods, dir)
		}
	}
	stale := now.Sub(n.listedAt) >= followEach*listEvery
	n.listings++
	for dir := range found {
		if p, ok := n.pods[dir]; ok && !stale && now.Sub(p.foundAt) >= youngTime && p.turn%followEach != n.listings%followEach {
			continue
		}
		if err := n.follow(dir, now); cgroup.Gone(err) {
			continue // it disappeared meanwhile
		} else if err != nil {
			return fmt.Errorf("following a pod that did not opt in: %w", err)
		}
	}
	n.order = slices.SortedFunc(maps.Values(n.pods), func(a, b *pod) int { return strings.Compare(a.dir, b.dir) })
	n.choose()
	return nil
}

// choose decides what the readings come from.
func (n *Node) choose() {
	for _, p := range n.pods {
		if p.pressure != nil {
			n.source = SourceCgroups
			return
		}
	}
	if len(n.pods) == 0 || n.source == SourceThreads && n.anyThreads() {
		n.source = SourceThreads
		return
	}
	for _, p := range n.pods {
		if p.listThreads(n.procRoot) == nil && len(p.threads) > 0 {
			n.source = SourceThreads
			return
		}
	}
	n.source = SourceNode
}

func (n *Node) anyThreads() bool {
	for _, p := range n.pods {
		if len(p.threads) > 0 {
			return true
		}
	}
	return false
}

// findParents finds the cgroups that pods are in: one for each QoS class, below one whose name is
// the same for every kubelet, wherever it is. A node without any is an error, since nothing would
// tell whether its pods wait.
func (n *Node) findParents(now time.Time) error {
	if n.tree.cpu == "" {
		cpu, cpuacct := n.cgroupRoot, n.cgroupRoot
		if !n.v2 {
			var err error
			if cpu, err = cgroup.Hierarchy(n.cgroupRoot, "cpu"); err != nil {
				return err
			}
			if cpuacct, err = cgroup.Hierarchy(n.cgroupRoot, "cpuacct"); err != nil {
				return err
			}
		}
		n.tree.cpu, n.tree.cpuacct = cpu, cpuacct
	}
	if len(n.tree.parents) > 0 {
		return nil
	}
	if n.tree.missing != nil && now.Sub(n.tree.soughtAt) < listEvery {
		return n.tree.missing
	}
	n.tree.missing, n.tree.soughtAt = nil, now
	err := filepath.WalkDir(n.tree.cpu, func(path string, d fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist) || err == nil && !d.IsDir():
			return nil
		case err != nil:
			return err
		case isParent(d.Name()):
			n.tree.parents = append(n.tree.parents, path)
			for _, class := range []string{"burstable", "besteffort"} {
				if slice, ok := strings.CutSuffix(d.Name(), ".slice"); ok {
					class = slice + "-" + class + ".slice"
				}
				if _, err := os.Stat(filepath.Join(path, class)); err == nil {
					n.tree.parents = append(n.tree.parents, filepath.Join(path, class))
				}
			}
			return fs.SkipDir
		case strings.Count(path[len(n.tree.cpu):], string(filepath.Separator)) >= parentDepth:
			return fs.SkipDir
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("looking for the cgroups of pods below %s: %w", n.tree.cpu, err)
	}
	if len(n.tree.parents) == 0 {
		n.tree.missing = fmt.Errorf("looking for the cgroups of pods: no cgroup within %d levels below %s is called kubepods, kubepods.slice or <cgroup root>-kubepods.slice, "+
			"which a kubelet with cgroups for its QoS classes makes", parentDepth, n.tree.cpu)
	}
	return n.tree.missing
}

// isParent reports whether name is of a cgroup in which a kubelet has all its pods. With the
// systemd driver it begins with the names of the cgroups above it, which are the kubelet's cgroup
// root.
func isParent(name string) bool {
	return name == "kubepods" || name == "kubepods.slice" || strings.HasSuffix(name, "-kubepods.slice")
}

// podUID returns the UID of the pod whose cgroup has this name, with either driver.
func podUID(name string) (string, bool) {
	if slice, ok := strings.CutSuffix(name, ".slice"); ok {
		_, uid, ok := strings.Cut(slice, "-pod")
		return strings.ReplaceAll(uid, "_", "-"), ok && uid != ""
	}
	uid, ok := strings.CutPrefix(name, "pod")
	return uid, ok && uid != ""
}

// follow opens what must be read of a pod, or what has appeared in it since it was last followed.
func (n *Node) follow(dir string, now time.Time) error {
	p, ok := n.pods[dir]
	if !ok {
		p = &pod{dir: dir, limited: map[string]*counter{}, threads: map[int]*thread{}, list: "tasks"}
		if n.v2 {
			p.list = "cgroup.threads"
		}
		if err := n.open(p, dir); err != nil {
			p.close()
			return err
		}
		n.pods[dir] = p
		p.foundAt, p.busyAt, p.turn = now, now, n.found
		n.found++
	}
	p.listed, p.dirs = false, p.dirs[:0]
	if err := p.findDirs(dir, 0); err != nil {
		return err
	}
	for _, dir := range p.dirs {
		if err := n.followLimit(p, dir); err != nil && !cgroup.Gone(err) {
			return err
		}
	}
	return nil
}

func (n *Node) open(p *pod, dir string) (err error) {
	if n.v2 {
		p.pressure, err = openCounter(filepath.Join(dir, "cpu.pressure"), parsePressure)
		if err == nil {
			// The file can be there and say that the kernel keeps no pressure.
			if _, err = p.pressure.since(n.buffer); err == nil {
				return nil
			}
			p.pressure.close()
		}
		p.pressure = nil
		p.usage, err = openCounter(filepath.Join(dir, "cpu.stat"), parseUsageV2)
		return err
	}
	below, err := filepath.Rel(n.tree.cpu, dir)
	if err != nil {
		return err
	}
	p.usage, err = openCounter(filepath.Join(n.tree.cpuacct, below, "cpuacct.usage"), parseNanos)
	return err
}

func (p *pod) findDirs(dir string, depth int) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	p.dirs = append(p.dirs, dir)
	for _, e := range entries {
		if !e.IsDir() || depth == deepest {
			continue
		}
		if err := p.findDirs(filepath.Join(dir, e.Name()), depth+1); err != nil && !cgroup.Gone(err) {
			return err
		}
	}
	return nil
}

// followLimit starts to read how long a CPU limit holds up a cgroup, and stops when the cgroup has
// no limit.
func (n *Node) followLimit(p *pod, dir string) error {
	name := "cpu.cfs_quota_us"
	if n.v2 {
		name = "cpu.max"
	}
	limit, err := cgroup.OpenFile(filepath.Join(dir, name), false)
	if err != nil {
		return err
	}
	defer limit.Close() //nolint:errcheck // read only
	text, err := limit.Read(n.buffer)
	if err != nil {
		return err
	}
	quota, limited := int64(0), true
	if quota, err = number(text); err != nil || quota <= 0 {
		limited = false // "-1" or "max"
	}
	c, followed := p.limited[dir]
	switch {
	case limited && !followed:
		parse := parseThrottledV1
		if n.v2 {
			parse = parseThrottledV2
		}
		if p.limited[dir], err = openCounter(filepath.Join(dir, "cpu.stat"), parse); err != nil {
			delete(p.limited, dir)
			return err
		}
	case !limited && followed:
		c.close()
		delete(p.limited, dir)
	}
	return nil
}
