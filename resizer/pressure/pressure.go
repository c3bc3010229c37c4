// Package pressure measures how long bystanders, the pods of a node that did not opt in,
// have waited for CPU.
//
// On cgroup v2 it reads the pressure of their cgroups. Where the kernel keeps none, as on v1,
// it adds up the times that their threads were ready and did not run, which each
// thread's schedstat has. Where it cannot see those, either, it reads the whole node's
// pressure, which counts functions, too.
//
//	pods and their cgroups   pods.go
//	pressure of cgroups      psi.go
//	threads                  threads.go
//	what is tolerated        patience.go
//	open files               files.go
package pressure

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"libra.dev/libra/resizer/cgroup"
)

const (
	// listEvery is how often the node is searched for pods.
	listEvery = time.Second
	// A pod that has been known for youngTime is followed only in every followEach-th listing.
	// Looking for its containers, limits and threads takes a dozen system calls for each container;
	// every second, that was a tenth of the agent's work on a busy node with fifty bystanders. Until
	// it is followed again, the waiting of a new thread is not counted, and waiting because of a new
	// limit of its own is.
	followEach = 4
	youngTime  = 30 * time.Second

	// A pod that has rested for restTime is read only in every restEach-th reading. Most pods rest
	// most of the time, and reading each of two hundred 20 times a second took as much CPU as
	// everything else that the agent does.
	restEach = 4
	restTime = time.Second

	// longestGap is the longest time between two readings after which the waiting in between still
	// says something about now. After a longer one, the first reading only sets the values to count
	// from.
	longestGap = 250 * time.Millisecond
)

// Source says what readings come from.
type Source string

const (
	// SourceCgroups is the pressure of each bystander's cgroup, or its threads' schedstat where that
	// cgroup alone keeps none.
	SourceCgroups Source = "the pressure of cgroups"
	// SourceThreads is what the scheduler keeps of each thread.
	SourceThreads Source = "the threads' schedstat"
	// SourceNode is the pressure of the whole node, where nothing else can be read: everything that
	// waits, functions included, is taken for a bystander.
	SourceNode Source = "the whole node's pressure"
)

// Reading is how long bystanders have waited since they were first read, summed over pods. Waited
// and Beyond only ever grow.
type Reading struct {
	Waited time.Duration
	// Beyond is the part of Waited that is due to what functions use above their allocations, and
	// that exceeds what is tolerated of each pod: see patience.
	Beyond time.Duration
	Source Source
	Pods   int // bystanders
}

// Node reads the bystanders of a node. It is not safe for concurrent use.
type Node struct {
	cgroupRoot, procRoot string
	ours                 func(podUID string) bool
	shared, online       int64 // CPUs that pods share, and all
	v2                   bool

	buffer   []byte
	tree     tree
	pods     map[string]*pod // by directory
	source   Source
	listedAt time.Time
	listings int
	readings int // of pods
	found    int // pods so far
	readAt   time.Time
	node     *counter      // the node's own pressure; nil when it cannot be read
	skipped  time.Duration // since pods were read last
	patience patience      // with the node as a whole
	total    Reading

	order []*pod       // by directory; each reading begins with another
	first *pod         // with which the next reading begins; nil is any
	looks int          // left in this reading
	load  *cgroup.File // the node's load averages; nil before they are read
	// asked says that it was found out in this reading whether the node is crowded.
	asked, crowded bool
}

// New makes a Node that reads below the directories where the host's cgroups and a proc file system
// with the host's processes are mounted. ours reports whether a pod, by its UID, is no bystander: it
// opted in, or belongs to Libra or the platform.
func New(cgroupRoot, procRoot string, ours func(podUID string) bool) *Node {
	return &Node{
		cgroupRoot: cgroupRoot, procRoot: procRoot, ours: ours, v2: cgroup.IsV2(cgroupRoot),
		buffer: make([]byte, readSize), pods: map[string]*pod{},
	}
}

// Read is cheap enough to be called every 20 ms, and need not be called when nobody needs the
// result. It fails when it can read nothing at all that tells whether pods wait.
func (n *Node) Read(now time.Time, functions Functions) (Reading, error) {
	passed := now.Sub(n.readAt)
	fresh := n.readAt.IsZero() || passed > longestGap
	if n.readAt = now; fresh {
		passed = 0
	}
	if now.Sub(n.listedAt) >= listEvery {
		if err := n.list(now); err != nil {
			return n.total, err
		}
		n.listedAt = now
	}
	n.total.Source, n.total.Pods = n.source, len(n.pods)
	if len(n.pods) == 0 {
		return n.total, nil
	}
	moved, known := n.nodeMoved()
	if n.source == SourceNode {
		if !known {
			return n.total, errors.New("reading who waits for CPU: neither cgroups nor threads nor the node show it (does the proc file system have pressure/cpu?)")
		}
		if !fresh {
			n.add(&n.patience, moved, passed, functions)
		}
		return n.total, nil
	}
	n.skipped += passed
	if known && !fresh && n.tooLittle(moved, passed) {
		return n.total, nil
	}
	gone := false
	n.readings++
	for _, p := range n.turn() {
		p.unread += n.skipped
		if !fresh && now.Sub(p.busyAt) >= restTime && p.turn%restEach != n.readings%restEach {
			continue
		}
		unread := p.unread
		p.unread = 0
		waited, err := n.waited(p)
		if cgroup.Gone(err) {
			p.close()
			delete(n.pods, p.dir)
			gone = true
			continue
		} else if err != nil {
			return n.total, fmt.Errorf("reading how long a pod waited for CPU: %w", err)
		}
		if fresh {
			p.own, p.ahead = own{}, 0
			continue
		}
		n.add(&p.patience, p.own.without(waited, p.throttled, now), unread, functions)
	}
	if gone {
		n.order = slices.DeleteFunc(n.order, func(p *pod) bool { return n.pods[p.dir] != p })
	}
	n.skipped = 0
	return n.total, nil
}

// turn begins a reading of all pods, and returns their order in it.
func (n *Node) turn() []*pod {
	if i := slices.Index(n.order, n.first); i > 0 {
		n.order = slices.Concat(n.order[i:], n.order[:i])
	}
	n.looks, n.first, n.asked = looksEach, nil, false
	return n.order
}

// Close closes all open files. The Node can be read again.
func (n *Node) Close() {
	for _, p := range n.pods {
		p.close()
	}
	clear(n.pods)
	if n.node != nil {
		n.node.close()
	}
	if n.load != nil {
		n.load.Close() //nolint:errcheck // read only
	}
	n.order, n.first, n.load = nil, nil, nil
	n.node, n.readAt, n.listedAt = nil, time.Time{}, time.Time{}
}

func (n *Node) add(p *patience, waited, passed time.Duration, functions Functions) {
	n.total.Waited += waited
	n.total.Beyond += p.beyond(waited, passed, functions, n.shared)
}

// waited returns how long a pod has waited since it was last read, including its waiting for its own
// limits, which it stores in p.throttled.
func (n *Node) waited(p *pod) (time.Duration, error) {
	if err := p.readThrottled(n.buffer); err != nil {
		return 0, err
	}
	if p.pressure != nil {
		waited, err := p.pressure.since(n.buffer)
		if waited > 0 {
			p.busyAt = n.readAt
		}
		return waited, err
	}
	return n.threadsWaited(p, n.skipped)
}

// nodeMoved returns how much the node's own pressure has grown since it was read last, 0 the first
// time, and whether it could be read.
func (n *Node) nodeMoved() (time.Duration, bool) {
	if n.node == nil {
		c, err := openCounter(nodePressure(n.procRoot), parsePressure)
		if err != nil {
			return 0, false
		}
		n.node = c
	}
	moved, err := n.node.since(n.buffer)
	return moved, err == nil
}

// tooLittle reports whether the node's pressure is so low that no pod can have waited for longer
// than is tolerated. The node's pressure is the mean over its CPUs, each weighted by how long it was
// in use, which is at least as long as somebody waited there.
func (n *Node) tooLittle(moved, passed time.Duration) bool {
	tolerated := tolerated * float64(passed)
	return float64(moved)*float64(n.online)*float64(passed) < tolerated*tolerated
}
