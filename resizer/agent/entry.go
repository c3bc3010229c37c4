package agent

import (
	"errors"
	"os"
	"syscall"
	"time"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/pool"
	"libra.dev/libra/resizer/backoff"
	"libra.dev/libra/resizer/cgroup"
)

const (
	// staleWindow is how long a container that is whole again is watched: the kubelet or
	// the runtime may still write values of before.
	staleWindow = 3 * time.Second

	// specPatience is how long a container is kept whole, without a loan, against a spec
	// that has other limits.
	specPatience = 30 * time.Second

	// A write that failed is tried again after these.
	writeRetryMin = 10 * time.Millisecond
	writeRetryMax = time.Second
)

// entry is what the reflex knows of one pod and its container.
type entry struct {
	pod  string // namespace/name
	info podInfo
	// present says that the Tracker knows the pod; forgetAt, when it does not, is when
	// it will have told if it ever does.
	present  bool
	forgetAt time.Time
	// left is by the journal of an earlier agent and not yet whole.
	left bool

	// unsure are the resources of which an earlier agent may have died in mid-write: what
	// is read of them tells nothing until they were written.
	unsure [len(resources)]bool

	// allocation is what the container is owed, and owed what of it the kernel can set;
	// zero until its Revision or the journal tells.
	allocation, owed api.Resources
	// trace is that of the loan that the container was changed for last, until it is whole
	// again; empty when that is not sampled.
	trace string
	// debtor is the container that the journal names; empty when it names none.
	debtor string
	// foreign says that another manager changes the container.
	foreign bool
	// replaced says that the container is another than the loans were made of: they are
	// void until a state names none.
	replaced bool
	// held are the resources that the safeguard took back, until a state names no loan
	// of them.
	held      strike
	heldSince time.Time
	heldLate  bool

	// reclaimed says that a write of this round had the kernel reclaim memory.
	reclaimed bool

	reading cgroup.Reading
	read    bool // whether there is a reading
	readAt  time.Time
	written api.Resources
	// overwritten are the limits that another had put in force, as found in this round; zero
	// of a resource of which nobody had. raised is since when they were above what is due.
	overwritten api.Resources
	raised      exceeding
	// whole says that it was seen at what it is owed, or at memory that is pinned above
	// that, under the present epoch.
	whole      bool
	wholeSince time.Time // zero while it is not
	belowSince time.Time // zero while it has what is due
	watch      watch
	retries    [len(resources)]writeRetry

	weighing weighing
	// mostCPU is what the container may have of a loan while bystanders wait, in milli CPU;
	// 0 is all of it.
	mostCPU int64

	beatAt  time.Time
	beatCPU time.Duration
}

// writeRetry is when writes of a direction, the one that failed last, may be tried
// again. Those of another do not wait.
type writeRetry struct {
	at        time.Time
	direction direction
	delay     backoff.Delay
}

func (w *writeRetry) holds(d direction, now time.Time) bool {
	return d == w.direction && now.Before(w.at)
}

func (w *writeRetry) failed(d direction, now time.Time) {
	if d != w.direction {
		w.delay.Reset()
	}
	w.direction = d
	delay := w.delay.Next()
	if d == restore {
		delay = writeRetryMin // it is the container's own
	}
	w.at = now.Add(delay)
}

func (w *writeRetry) succeeded() {
	w.at = time.Time{}
	w.delay.Reset()
}

func newEntry(pod string) *entry {
	e := &entry{pod: pod}
	for i := range e.retries {
		e.retries[i].delay = backoff.Delay{Min: writeRetryMin, Max: writeRetryMax}
	}
	return e
}

// unopened says that the journal names a container that nobody has found yet.
func (e *entry) unopened() bool {
	return e.left && !e.present && e.info.cgroup == nil
}

// managed says that the agent may change the container, or has.
func (e *entry) managed() bool { return e.info.cgroup != nil && e.debtor != "" }

// takesPart says that the pod may lend and borrow.
func (e *entry) takesPart() bool {
	return e.present && e.info.cgroup != nil && e.info.observed == "" && !e.foreign && !e.replaced && e.read
}

// owe takes in what the container is owed. Where the node is the source, its CPU limit is
// none of the loans': it is the kubelet's, up to a ceiling, as soon as no loan is left of
// before.
func (e *entry) owe(allocation api.Resources) {
	if e.info.node && e.debtor == "" {
		allocation.CPUMilli = 0
	}
	e.allocation = allocation
	if e.info.cgroup != nil {
		e.owed = e.info.cgroup.Attainable(allocation)
	}
}

// cpuSettled says that nothing of the CPU lent or borrowed before the node became the
// source is in force: the container has what it is owed, or what another gave it beyond.
func (e *entry) cpuSettled() bool {
	limit := e.reading.Limit.CPUMilli
	return e.read && !e.unsure[cpu] && (limit == 0 || limit == e.owed.CPUMilli || limit > e.owed.CPUMilli && limit != e.written.CPUMilli)
}

// renew forgets what was read of the container: it is another, or read anew.
func (e *entry) renew() {
	e.read, e.whole, e.watch = false, false, watch{}
	e.written, e.overwritten, e.raised = api.Resources{}, api.Resources{}, exceeding{}
	e.readAt, e.wholeSince, e.belowSince = time.Time{}, time.Time{}, time.Time{}
	e.beatAt = time.Time{}
	for i := range e.retries {
		e.retries[i].succeeded()
	}
}

func (e *entry) close() {
	if e.info.cgroup != nil {
		e.info.cgroup.Close() //nolint:errcheck // every write was checked
		e.info.cgroup = nil
	}
	e.read = false
}

// due is what the limits are to be by a balance, which is zero when there is none.
func (e *entry) due(b pool.Balance) api.Resources {
	due := e.allocation
	if e.present && e.info.observed == "" && !e.replaced {
		due = due.Add(b.Borrowed).Sub(b.Lent)
	}
	if e.mostCPU != 0 {
		due.CPUMilli = min(due.CPUMilli, max(e.mostCPU, e.allocation.CPUMilli))
	}
	if e.held.cpu {
		due.CPUMilli = max(due.CPUMilli, e.allocation.CPUMilli)
	}
	if e.held.memory {
		due.MemoryBytes = max(due.MemoryBytes, e.allocation.MemoryBytes)
	}
	for _, r := range resources {
		if *r.of(&e.allocation) == 0 {
			*r.of(&due) = 0
		} else {
			*r.of(&due) = max(1, *r.of(&due))
		}
	}
	return e.info.cgroup.Attainable(due)
}

// recorded says that the pod's spec has limits of a loan, which Libra set.
func (e *entry) recorded() bool {
	for _, r := range resources {
		if limit, owed := *r.of(&e.info.recorded), *r.of(&e.allocation); limit != 0 && owed != 0 && limit != owed {
			return true
		}
	}
	return false
}

// inForce is what was read, of the resources that the container is owed a limit of.
func (e *entry) inForce() api.Resources {
	limit := e.reading.Limit
	for _, r := range resources {
		if *r.of(&e.owed) == 0 {
			*r.of(&limit) = 0
		}
	}
	return limit
}

// wholeOrPinned says that the container has all that it is owed, and more at most of
// memory: that is taken off what is lendable, and may stay as long as it is in use.
func (e *entry) wholeOrPinned() bool {
	limit := e.inForce()
	return e.unsure == [len(resources)]bool{} && limit.CPUMilli == e.owed.CPUMilli && limit.MemoryBytes >= e.owed.MemoryBytes
}

// below says that what was read is less than the container is to have of its own.
func (e *entry) below(due api.Resources) bool {
	limit := e.inForce()
	for _, r := range resources {
		if l := *r.of(&limit); l != 0 && l < min(*r.of(&due), *r.of(&e.owed)) {
			return true
		}
	}
	return false
}

// isGone says that an error of a container's cgroup means that it has ended.
func isGone(err error) bool {
	return errors.Is(err, syscall.ENODEV) || errors.Is(err, syscall.ENOENT) || errors.Is(err, os.ErrClosed)
}
