package pressure

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"libra.dev/libra/resizer/cgroup"
)

// mostThreads is how many threads of a pod are followed: each keeps a file open. The rest
// of a pod of that many waits with them.
const mostThreads = 256

// parseDelay is how long a thread was ready and did not run, the second of the numbers in
// its schedstat: what it ran, what it waited, in nanoseconds, and how often it ran.
func parseDelay(text []byte) (time.Duration, error) {
	_, rest, ok := bytes.Cut(text, []byte(" "))
	if !ok {
		return 0, errors.New("it has no second number")
	}
	n, err := number(rest)
	return time.Duration(n), err
}

// looksEach is how many threads of pods that have not run a reading looks at, whether they
// want to: it costs as much as to see of five pods that they have not run.
const looksEach = 16

// thread is one of a pod's.
type thread struct {
	*counter              // how long it waited
	stat     *cgroup.File // its stat, which stays open once it was looked at; nil before
}

func (t *thread) close() {
	t.counter.close()
	if t.stat != nil {
		t.stat.Close() //nolint:errcheck // read only
	}
}

// ready says that a thread runs or waits to. One that has ended does not.
func (t *thread) ready(procRoot string, id int, buffer []byte) bool {
	if t.stat == nil {
		file, err := cgroup.OpenFile(filepath.Join(procRoot, strconv.Itoa(id), "stat"), false)
		if err != nil {
			return false
		}
		t.stat = &file
	}
	text, err := t.stat.Read(buffer)
	return err == nil && isReady(text)
}

// threadsWaited is how long the pod's threads waited in a time. The kernel counts what a
// thread waits when it runs again, which can be seconds later for one of little weight. So
// a pod that has not run, and of which a thread is ready, waits; what it is counted for
// then is not counted again.
func (n *Node) threadsWaited(p *pod, passed time.Duration) (time.Duration, error) {
	first := !p.usage.known
	ran, err := p.usage.since(n.buffer)
	if err != nil {
		return 0, err
	}
	if ran == 0 && !first {
		if !n.ready(p) {
			return 0, nil
		}
		p.busyAt = n.readAt
		p.ahead += passed
		return passed, nil
	}
	p.busyAt = n.readAt
	if !p.listed {
		if err := p.listThreads(n.procRoot); err != nil {
			return 0, err
		}
	}
	waited, err := p.delayed(n.buffer)
	counted := min(p.ahead, waited)
	p.ahead = 0
	return waited - counted, err
}

// ready says that a thread of the pod is, of one that has not run. Pods that were waiting
// are looked at each time, and of the others, in turn, as many as there is time for.
func (n *Node) ready(p *pod) bool {
	if n.nobodyWaits() {
		return false
	}
	if p.ahead == 0 {
		if n.looks <= 0 {
			if n.first == nil {
				n.first = p
			}
			return false
		}
		n.looks -= max(1, len(p.threads))
	}
	for id, t := range p.threads {
		if t.ready(n.procRoot, id, n.buffer) {
			return true
		}
	}
	return false
}

// nobodyWaits says that no more threads are ready on the node than it has CPUs, so that none
// is kept from running, but for a moment. It is asked once in a reading.
func (n *Node) nobodyWaits() bool {
	if n.crowded == unasked {
		n.crowded = yes
		if count, err := n.readyOnNode(); err == nil && count <= n.cpus {
			n.crowded = no
		}
	}
	return n.crowded == no
}

// answer is one that was given in a reading.
type answer int

const (
	unasked answer = iota
	yes
	no
)

// readyOnNode is how many threads run or are ready to, this one too: the load averages are
// followed by "ready/all".
func (n *Node) readyOnNode() (int64, error) {
	if n.load == nil {
		file, err := cgroup.OpenFile(filepath.Join(n.procRoot, "loadavg"), false)
		if err != nil {
			return 0, err
		}
		n.load = &file
	}
	text, err := n.load.Read(n.buffer)
	if err != nil {
		return 0, err
	}
	return parseReady(text)
}

func parseReady(text []byte) (int64, error) {
	ready, _, ok := bytes.Cut(text, []byte("/"))
	if !ok {
		return 0, errors.New(`it has no "<ready>/<all>"`)
	}
	return number(ready[bytes.LastIndexByte(ready, ' ')+1:])
}

// isReady says that a thread runs or waits to, by its stat: "7 (name) R ...", in which the
// name can be anything.
func isReady(text []byte) bool {
	end := bytes.LastIndexByte(text, ')')
	return end >= 0 && bytes.HasPrefix(text[end+1:], []byte(" R "))
}

// delayed is how long threads waited that have run since.
func (p *pod) delayed(buffer []byte) (time.Duration, error) {
	var waited time.Duration
	for id, t := range p.threads {
		delay, err := t.since(buffer)
		if cgroup.Gone(err) {
			t.close()
			delete(p.threads, id)
			continue
		} else if err != nil {
			return 0, err
		}
		if len(p.limited) > 0 {
			// A limit holds up all threads at once, and is said to have done so once.
			waited = max(waited, delay)
		} else {
			waited += delay
		}
	}
	return waited, nil
}

// listThreads follows the threads that the pod has now. What a new one has waited before
// is not counted.
func (p *pod) listThreads(procRoot string) error {
	p.listed = true
	now := map[int]struct{}{}
	for _, dir := range p.dirs {
		ids, err := threadsOf(filepath.Join(dir, p.list))
		if cgroup.Gone(err) {
			continue
		} else if err != nil {
			return err
		}
		for _, id := range ids {
			now[id] = struct{}{}
		}
	}
	for id, t := range p.threads {
		if _, ok := now[id]; !ok {
			t.close()
			delete(p.threads, id)
		}
	}
	for id := range now {
		if _, ok := p.threads[id]; ok || len(p.threads) >= mostThreads {
			continue
		}
		delay, err := openCounter(filepath.Join(procRoot, strconv.Itoa(id), "schedstat"), parseDelay)
		if cgroup.Gone(err) {
			continue
		} else if err != nil {
			return err
		}
		p.threads[id] = &thread{counter: delay}
	}
	return nil
}

// threadsOf are those in a list of a cgroup, of which those of processes that cannot be
// seen from here are missing (v1) or 0 (v2).
func threadsOf(path string) (ids []int, err error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	for line := range bytes.Lines(text) {
		if id, err := strconv.Atoi(string(bytes.TrimSpace(line))); err == nil && id > 0 {
			ids = append(ids, id)
		}
	}
	return ids, nil
}
