package pressure

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"time"
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

// threadsWaited is how long the pod's threads waited since they were read last. What a
// thread waits is counted when it runs again: a pod that has not run has nothing new.
func (p *pod) threadsWaited(buffer []byte, procRoot string) (time.Duration, error) {
	first := !p.usage.known
	ran, err := p.usage.since(buffer)
	if err != nil {
		return 0, err
	}
	if ran == 0 && !first {
		return 0, nil
	}
	if !p.listed {
		if err := p.listThreads(procRoot); err != nil {
			return 0, err
		}
	}
	var waited time.Duration
	for id, thread := range p.threads {
		delay, err := thread.since(buffer)
		if isGone(err) {
			thread.close()
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
		if isGone(err) {
			continue
		} else if err != nil {
			return err
		}
		for _, id := range ids {
			now[id] = struct{}{}
		}
	}
	for id, thread := range p.threads {
		if _, ok := now[id]; !ok {
			thread.close()
			delete(p.threads, id)
		}
	}
	for id := range now {
		if _, ok := p.threads[id]; ok || len(p.threads) >= mostThreads {
			continue
		}
		thread, err := openCounter(filepath.Join(procRoot, strconv.Itoa(id), "schedstat"), parseDelay)
		if isGone(err) {
			continue
		} else if err != nil {
			return err
		}
		p.threads[id] = thread
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
