package agent

import (
	"time"

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

	// unsure says that an earlier agent may have died in mid-write: what is read of the limit
	// tells nothing until it was written.
	unsure bool

	// allocation is the milli CPU that the container is owed, and owed what of it the kernel
	// can set; 0 until its Revision or the journal tells, and under source node, where its
	// limit is none of the loans'.
	allocation, owed int64
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
	// held says that the safeguard took back what the container lends, until a state names
	// no loan of it, or it is lent by what has begun in an idle pod since.
	held      bool
	heldIdle  bool
	heldSince time.Time
	heldLate  bool

	reading cgroup.Reading
	read    bool // whether there is a reading
	readAt  time.Time
	written int64 // milli CPU; 0 once somebody else wrote
	// overwritten is the limit that another had put in force, as found in this round; 0 when
	// nobody had. raised is since when that was above what is due.
	overwritten int64
	raised      exceeding
	// whole says that it was seen at what it is owed, under the present epoch.
	whole      bool
	wholeSince time.Time // zero while it is not
	belowSince time.Time // zero while it has what is due
	reported   inForce   // as accounted last
	watch      watch
	retry      writeRetry

	weighing weighing
	memory   memoryUse
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
	return &entry{pod: pod, retry: writeRetry{delay: backoff.Delay{Min: writeRetryMin, Max: writeRetryMax}}}
}

// unopened says that the journal names a container that nobody has found yet.
func (e *entry) unopened() bool {
	return e.left && !e.present && e.info.cgroup == nil
}

// managed says that the agent may change the container, or has.
func (e *entry) managed() bool { return e.info.cgroup != nil && e.debtor != "" }

// takesPart says that the pod may lend and borrow.
func (e *entry) takesPart() bool { return e.eligible() && !e.foreign && !e.replaced }

// eligible says that the pod may take part, or did and has what it borrowed of memory until it
// uses it no more.
func (e *entry) eligible() bool {
	return e.present && e.info.cgroup != nil && e.info.observed == "" && e.read
}

// mayBorrow says that the pod may have more memory than it is owed.
func (e *entry) mayBorrow() bool { return e.info.borrows && e.takesPart() }

// owe takes in what the container is owed. Where the node is the source, its CPU limit is
// none of the loans': it is the kubelet's, up to a ceiling, as soon as no loan is left of
// before.
func (e *entry) owe(milli int64) {
	if e.info.node && e.debtor == "" {
		milli = 0
	}
	e.allocation = milli
	if e.info.cgroup != nil {
		e.owed = e.info.cgroup.Attainable(milli)
	}
}

// cpuSettled says that nothing of the CPU lent or borrowed before the node became the
// source is in force: the container has what it is owed, or what another gave it beyond.
func (e *entry) cpuSettled() bool {
	limit := e.reading.Limit.CPUMilli
	return e.read && !e.unsure && (limit == 0 || limit == e.owed || limit > e.owed && limit != e.written)
}

// renew forgets what was read of the container: it is another, or read anew.
func (e *entry) renew() {
	e.read, e.whole, e.watch = false, false, watch{}
	e.written, e.overwritten, e.raised = 0, 0, exceeding{}
	e.readAt, e.wholeSince, e.belowSince = time.Time{}, time.Time{}, time.Time{}
	e.beatAt = time.Time{}
	e.retry.succeeded()
}

func (e *entry) close() {
	if e.info.cgroup != nil {
		e.info.cgroup.Close() //nolint:errcheck // every write was checked
		e.info.cgroup = nil
	}
	e.read = false
}

// due is what the limit is to be by a balance, which is zero when there is none.
func (e *entry) due(b pool.Balance) int64 {
	if e.allocation == 0 {
		return 0
	}
	due := e.allocation
	if e.present && e.info.observed == "" && !e.replaced {
		due += b.Borrowed.CPUMilli - b.Lent.CPUMilli
	}
	if e.mostCPU != 0 {
		due = min(due, max(e.mostCPU, e.allocation))
	}
	if e.held {
		due = max(due, e.allocation)
	}
	return e.info.cgroup.Attainable(max(1, due))
}

// inForce is what was read, of a container that is owed a limit.
func (e *entry) inForce() int64 {
	if e.owed == 0 {
		return 0
	}
	return e.reading.Limit.CPUMilli
}

// bumped says that the limit is what the controller made of it for the kubelet to write it,
// while there was no agent.
func (e *entry) bumped() bool {
	off := e.reading.Limit.CPUMilli - e.owed
	return e.info.recorded && (off == 1 || off == -1)
}

// below says that what was read is less than the container is to have of its own.
func (e *entry) below(due int64) bool {
	limit := e.inForce()
	return limit != 0 && limit < min(due, e.owed)
}
