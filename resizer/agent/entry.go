package agent

import (
	"time"

	"libra.dev/libra/pkg/pool"
	"libra.dev/libra/resizer/backoff"
	"libra.dev/libra/resizer/cgroup"
)

const (
	// staleWindow is how long a container that is whole again is watched: the kubelet or
	// the runtime may still write old values.
	staleWindow = 3 * time.Second

	// specPatience is how long the agent keeps a container without a loan whole against a
	// spec that has other limits.
	specPatience = 30 * time.Second

	// The shortest and the longest delay before a failed write is retried.
	writeRetryMin = 10 * time.Millisecond
	writeRetryMax = time.Second
)

// entry is what the reflex knows about one pod and its container.
type entry struct {
	pod  string // namespace/name
	info podInfo
	// present says that the Tracker knows the pod. If it does not, the agent waits for that
	// until forgetAt.
	present  bool
	forgetAt time.Time
	// left says that the container is from an earlier agent's journal and not yet whole.
	left bool
	// ended says that the container was looked for and has no cgroup, so that it is not looked for again: that
	// walks through all cgroups of the node.
	ended bool

	// unsure says that an earlier agent may have died in mid-write: a reading of the limit
	// means nothing until the limit was written.
	unsure bool

	// allocation is the milli CPU that the container is owed, and owed is what the kernel can
	// set of it. Both are 0 until its Revision or the journal tells, and under source node,
	// where loans do not change its limit.
	allocation, owed int64
	// trace is the trace of the loan for which the container was last changed, until it is
	// whole again; empty if that is not sampled.
	trace string
	// debtor is the container that the journal names; empty when it names none.
	debtor string
	// differs says that the limit in force is neither what the container is owed nor the agent's: it is
	// left as it is, for whoever set it to change.
	differs bool
	// replaced says that the loans were made with an earlier container: they are void until
	// a state names none.
	replaced bool
	// held says that the safeguard took back what the container lends. It lasts until a state
	// names no loan from it, or one by an invocation that has since begun in an idle pod.
	held     bool
	heldIdle bool
	// restoring is since when the safeguard has been giving the container back what it lends.
	restoring exceeding

	reading cgroup.Reading
	read    bool // whether there is a reading
	readAt  time.Time
	written int64 // milli CPU; 0 once somebody else wrote
	// overwritten is the limit that somebody else had put in force, as found in this round; 0
	// if nobody had. raised is since when it has been above what is due.
	overwritten int64
	raised      exceeding
	// whole says that the container was seen at what it is owed, in the present epoch.
	whole      bool
	wholeSince time.Time // zero while it is not
	belowSince time.Time // zero while it has what is due
	reported   inForce   // as accounted last
	watch      watch
	retry      writeRetry

	weighing weighing
	memory   memoryUse
	// mostCPU is the most that the container may have with a loan while bystanders wait, in
	// milli CPU; 0 is the whole loan.
	mostCPU int64

	beatAt  time.Time
	beatCPU time.Duration
}

// writeRetry is when writes in the direction that failed last may be retried. Writes in
// other directions do not wait.
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
		delay = writeRetryMin // the CPU is the container's own
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

// unopened reports whether the journal names a container that nobody has found yet.
func (e *entry) unopened() bool {
	return e.left && !e.present && e.info.cgroup == nil
}

// managed reports whether the agent may change the container, or has changed it.
func (e *entry) managed() bool { return e.info.cgroup != nil && e.debtor != "" }

// takesPart reports whether the pod may lend and borrow.
func (e *entry) takesPart() bool { return e.eligible() && !e.leftAlone() && !e.replaced }

// leftAlone reports whether the pod's limits are not Libra's to change.
func (e *entry) leftAlone() bool { return e.info.foreign || e.differs }

// eligible reports whether the pod may take part, or did and keeps the memory that it borrowed
// until it no longer uses it.
func (e *entry) eligible() bool {
	return e.present && e.info.cgroup != nil && e.info.observed == "" && e.read
}

// mayBorrow reports whether the pod may have more memory than it is owed.
func (e *entry) mayBorrow() bool { return e.info.borrows && e.takesPart() }

// owe takes in what the container is owed. Where the node is the source, loans do not change
// its CPU limit: it is the kubelet's, up to a ceiling, as soon as no earlier loan is left.
func (e *entry) owe(milli int64) {
	if e.info.node && e.debtor == "" {
		milli = 0
	}
	e.allocation = milli
	if e.info.cgroup != nil {
		e.owed = e.info.cgroup.Attainable(milli)
	}
}

// cpuSettled reports whether no loan of CPU from before the node became the source is still in
// force: the container has what it is owed, or more that somebody else gave it.
func (e *entry) cpuSettled() bool {
	limit := e.reading.Limit.CPUMilli
	return e.read && !e.unsure && (limit == 0 || limit == e.owed || limit > e.owed && limit != e.written)
}

// renew forgets what was read of the container: it is a new one, or was opened anew.
func (e *entry) renew() {
	e.read, e.whole, e.ended, e.watch = false, false, false, watch{}
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

// due is the CPU limit, in milli CPU, that a balance calls for. The zero balance is no loan.
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

// inForce is the CPU limit that was read, in milli CPU; 0 if the container is owed none.
func (e *entry) inForce() int64 {
	if e.owed == 0 {
		return 0
	}
	return e.reading.Limit.CPUMilli
}

// bumped reports whether the limit is what the controller changed it to while there was no
// agent, to have the kubelet write it.
func (e *entry) bumped() bool {
	off := e.reading.Limit.CPUMilli - e.owed
	return e.info.recorded && (off == 1 || off == -1)
}

// below reports whether the limit that was read is less than the container's own part of due.
func (e *entry) below(due int64) bool {
	limit := e.inForce()
	return limit != 0 && limit < min(due, e.owed)
}
