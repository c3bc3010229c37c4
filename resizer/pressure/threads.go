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

// mostThreads is how many threads of a pod are followed, because each keeps a file open. In a pod
// with more, the rest wait along with them.
const mostThreads = 256

// parseDelay returns how long a thread was ready and did not run. That is the second number in its
// schedstat: how long it ran, how long it waited, both in nanoseconds, and how often it ran.
func parseDelay(text []byte) (time.Duration, error) {
	_, rest, ok := bytes.Cut(text, []byte(" "))
	if !ok {
		return 0, errors.New("no second number")
	}
	n, err := number(rest)
	return time.Duration(n), err
}

// looksEach is how many threads a reading checks for being ready, in pods that have not run. That
// costs as much as seeing that five pods have not run.
const looksEach = 16

// thread is a thread of a pod.
type thread struct {
	*counter              // how long it waited
	stat     *cgroup.File // its stat file, which stays open once it was read; nil before
}

func (t *thread) close() {
	t.counter.close()
	if t.stat != nil {
		t.stat.Close() //nolint:errcheck // read only
	}
}

// ready reports whether a thread runs or waits to. A thread that has ended does not.
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

// threadsWaited returns how long the pod's threads waited while passed went by. The kernel counts
// the waiting of a thread only when the thread runs again, which can be seconds later at a low
// weight. So a pod that has not run but has a ready thread counts as waiting, and what the kernel
// counts later is reduced by that.
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

// ready reports whether a pod that has not run has a ready thread. It checks pods that were waiting
// each time, and the others in turn, as many as there is time for.
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

// nobodyWaits reports whether no more threads are ready on the node than it has CPUs that pods share, so that none
// is kept from running for more than a moment. It finds out once per reading.
func (n *Node) nobodyWaits() bool {
	if !n.asked {
		count, err := n.readyOnNode()
		n.asked, n.crowded = true, err != nil || count > n.shared
	}
	return !n.crowded
}

// readyOnNode returns how many threads run or are ready to, including this one: in loadavg,
// "ready/all" follows the load averages.
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
		return 0, errors.New(`no "<ready>/<all>"`)
	}
	return number(ready[bytes.LastIndexByte(ready, ' ')+1:])
}

// isReady reports whether a thread runs or waits to, by its stat: "7 (name) R ...", in which the
// name can be anything.
func isReady(text []byte) bool {
	end := bytes.LastIndexByte(text, ')')
	return end >= 0 && bytes.HasPrefix(text[end+1:], []byte(" R "))
}

// delayed returns how long those threads waited that have run since.
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
			// A limit holds up all threads at once, and is counted only once for that.
			waited = max(waited, delay)
		} else {
			waited += delay
		}
	}
	return waited, nil
}

// listThreads follows the threads that the pod has now. It does not count how long a new one has
// waited before.
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

// threadsOf returns the threads in a list of a cgroup. Those of processes that cannot be seen from
// here are missing there (v1) or 0 (v2), and are left out.
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
