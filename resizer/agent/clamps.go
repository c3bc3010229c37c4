package agent

import (
	"context"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/utils/clock"

	"libra.dev/libra/pkg/report"
	"libra.dev/libra/resizer/cgroup"
	"libra.dev/libra/resizer/pressure"
)

const (
	// ceilingPatience is how long a container may run before the kubelet has set its ceiling: a controller that
	// starts without Redis waits a lease for it. After that, the agent sets the ceiling, and keeps it there.
	ceilingPatience = 10 * time.Second
	// inForceEvery is how often the agent reads the quota of a container whose quota it leaves
	// alone and that does not use more than its allocation. It reads any other every regainEvery.
	inForceEvery = time.Second
	// idleEvery is how often the agent looks at the containers while all rest and none is held.
	idleEvery = 5 * time.Second
	// settleTime is how long functions must be held before bystanders no longer wait because of
	// earlier use: a write grants a whole period's quota, and so does the next period.
	settleTime = 200 * time.Millisecond
	// clampLogEvery is the least time between two log lines that say that bystanders wait.
	clampLogEvery = 10 * time.Second
)

// waits tells how long bystanders have waited for CPU.
type waits interface {
	Read(now time.Time, functions pressure.Functions) (pressure.Reading, error)
}

// capped is a container that may use more CPU than its allocation, up to a ceiling.
type capped struct {
	pod, function, container string

	quotas              cgroup.Container
	allocation, ceiling int64 // milli CPU
	// spec is the limit in the pod's spec, which the kubelet writes and which the container
	// gets back.
	spec int64
	// rests says that the container has used hardly any CPU lately. restCPU is what it had used
	// by restAt, when it is last known to have rested.
	rests   bool
	restAt  time.Time
	restCPU time.Duration
	// cpu is what the container had used by cpuAt, a moment ago; cpuAt is zero if nobody read it.
	cpu   time.Duration
	cpuAt time.Time
	// bound is called, where somebody else writes the container's limit, with the most that the
	// clamp lets it have; 0 is as much as is due. It is nil where the clamps write the limit.
	bound func(milli int64)
}

// clamps keep containers' CPU within their ceilings, and at their allocations while
// bystanders wait. They are not for concurrent use. A nil pointer does nothing.
type clamps struct {
	clock   clock.PassiveClock
	log     logr.Logger
	metrics *metrics
	tally   *report.Tally
	waits   waits
	open    func(containerID string) (cgroup.Container, error)
	// specOf returns the CPU limit in the spec of a pod that runs the container.
	specOf func(pod, container string) (milli int64, known bool)
	off    bool // for experiments: bystanders are not looked at

	// journal names the containers whose limits in force differ from their specs.
	journal *journal
	debts   []unpaid // of an earlier agent, or of containers that are no longer capped

	clamp  clamp
	known  map[string]*clampedContainer
	rounds int // so far
	uses   []clampUse
	tickAt time.Time // the last round, and the next
	nextAt time.Time

	source   pressure.Source
	last     pressure.Reading
	before   pressure.Reading // the last one before functions were held
	blind    bool             // nothing tells whether bystanders wait
	begun    time.Time        // since when functions are held; zero while none is
	toldNone bool             // the log says that there are containers without quotas
	told     bool             // the log says that functions are held
	toldAt   time.Time
	creditAt time.Time
}

// clampedContainer is what the clamps know about a container.
type clampedContainer struct {
	capped
	round   int // the last round that named it
	firstAt time.Time
	used    time.Duration // so far, as last read
	rested  bool          // at the last look
	window  window
	read    bool
	readAt  time.Time
	inForce int64
	// limited says that there has been a quota, whoever set it.
	limited bool
	// written is what the agent wrote last and expects to read; 0 once somebody else wrote.
	written   int64
	writtenAt time.Time
	settled   bool // the quota that is to be in force is
	changed   bool // the quota in force is the agent's, not the spec's
	owing     bool // the journal names it
	held      bool
	heldAt    time.Time // since when
	refusing  bool      // its quota could not be set or read, and the log says so
	retry     writeRetry
}

// due reports whether it is time for a round.
func (c *clamps) due(now time.Time) bool { return c != nil && !now.Before(c.nextAt) }

// round looks at containers, and sets their quotas, if it is time for a round.
func (c *clamps) round(ctx context.Context, containers []capped) {
	if c == nil {
		return
	}
	now := c.clock.Now()
	if !c.due(now) {
		return
	}
	passed := min(max(0, now.Sub(c.tickAt)), longestAccounted)
	c.tickAt = now
	c.follow(containers)
	c.repay(ctx, repayFor)

	uses := c.uses[:0]
	pressed, functions, idle := false, pressure.Functions{Held: true}, len(c.known) > 0 && len(c.debts) == 0
	for id, k := range c.known {
		u, ok := c.look(ctx, k, now)
		if !ok {
			idle = false
			continue
		}
		u.container = id
		c.reportUse(ctx, k, u.over(), min(passed, now.Sub(k.window.since())))
		if c.unlimited(k, now) {
			delete(c.clamp.levels, id)
			idle = idle && k.rests
			continue
		}
		uses = append(uses, u)
		pressed = pressed || u.over() > 0 || k.held
		functions.Above += float64(u.over()) / 1000
		functions.Held = functions.Held && (k.held && now.Sub(k.heldAt) >= settleTime || !k.held && u.over() == 0)
	}
	c.uses = uses
	c.clamp.tick(now, pressed && c.waited(ctx, now, functions), uses)
	for _, u := range uses {
		k := c.known[u.container]
		c.set(ctx, k, now)
		idle = idle && k.rests && k.settled && c.clamp.whole(u.container)
	}
	c.account(ctx, now, passed)
	switch {
	case pressed && !c.off:
		c.nextAt = now.Add(lookEvery)
	case idle:
		c.nextAt = now.Add(idleEvery) // or when a container stirs
	default:
		c.nextAt = now.Add(regainEvery)
	}
}

// stir makes the next round due because a container no longer rests, unless that round would
// be soon anyway. It reports whether it did.
func (c *clamps) stir(now time.Time) bool {
	if c == nil || c.nextAt.Sub(now) <= regainEvery {
		return false
	}
	c.nextAt = now
	return true
}

// join brings the next round forward to at, so that it comes with what else is due then.
func (c *clamps) join(at time.Time) {
	if c != nil && !at.IsZero() && c.nextAt.After(at) {
		c.nextAt = at
	}
}

// untilNext is how long the next round can wait.
func (c *clamps) untilNext(now time.Time) time.Duration {
	if c == nil || len(c.known) == 0 && len(c.debts) == 0 {
		return beatEvery
	}
	return max(0, c.nextAt.Sub(now))
}

// follow takes in which containers there are, and gives back to those that are no longer
// among them what their specs say.
func (c *clamps) follow(containers []capped) {
	if c.known == nil {
		c.known = map[string]*clampedContainer{}
	}
	c.rounds++
	for _, target := range containers {
		k := c.known[target.container]
		if k == nil {
			k = &clampedContainer{firstAt: c.clock.Now()}
			k.retry.delay.Min, k.retry.delay.Max = writeRetryMin, writeRetryMax
			c.known[target.container] = k
		}
		respecified := k.spec != target.spec
		k.capped, k.round = target, c.rounds
		switch {
		case k.owing && k.bound != nil:
			c.forget(k) // whoever writes its limit owes it, too
		case k.owing && respecified:
			c.owe(k)
		}
	}
	for id, k := range c.known {
		if k.round != c.rounds {
			delete(c.known, id)
			delete(c.clamp.levels, id)
			c.giveBack(k)
		}
	}
}

// look reads what a container uses, and its quota when that matters.
func (c *clamps) look(ctx context.Context, k *clampedContainer, now time.Time) (clampUse, bool) {
	var err error
	u := clampUse{allocation: k.allocation, ceiling: k.ceiling}
	if k.rested && !k.rests {
		k.window.begin(k.restAt, k.restCPU)
	}
	at := now
	switch k.rested = k.rests; {
	case !k.cpuAt.IsZero():
		k.used, at = k.cpu, k.cpuAt
	case !k.rests || !k.read:
		k.used, err = k.quotas.CPU()
	}
	if err == nil {
		u.used = k.window.add(at, k.used)
		every := inForceEvery
		if u.used > k.allocation || k.changed || k.held {
			every = regainEvery
		}
		if !k.read || now.Sub(k.readAt) >= every {
			err = c.readQuota(ctx, k, now)
		}
	}
	if err != nil {
		if !cgroup.Gone(err) {
			c.metrics.sampleErrors.Add(ctx, 1)
			c.refuse(k, err, "could not read what a container uses above its allocation")
		}
		return u, false
	}
	u.inForce = k.inForce
	return u, true
}

func (c *clamps) readQuota(ctx context.Context, k *clampedContainer, now time.Time) error {
	inForce, err := k.quotas.CPULimit()
	if err != nil {
		return err
	}
	k.read, k.readAt, k.inForce = true, now, inForce
	k.limited = k.limited || inForce != 0
	if k.written != 0 && k.inForce != k.written {
		c.metrics.rewrites.Add(ctx, 1, ofCPU)
		c.log.V(1).Info("something other than the agent changed a CPU ceiling", "pod", k.pod, "written", k.written, "found", k.inForce)
		k.written = 0
	}
	return nil
}

// unlimited reports whether a container has no quota and never had one. Where the kubelet sets
// none (cpuCFSQuota), nobody would remove a quota that the agent left behind.
func (c *clamps) unlimited(k *clampedContainer, now time.Time) bool {
	if k.bound != nil || k.limited || k.changed || k.owing {
		return false
	}
	if !c.toldNone && now.Sub(k.firstAt) >= ceilingPatience {
		c.toldNone = true
		c.log.Info("leaving alone containers that have no CPU quota although their pods' specs have CPU limits: the kubelet sets no quota when its cpuCFSQuota is false",
			"pod", k.pod)
	}
	return true
}

// waited reports whether bystanders have waited for longer than is tolerated since the last
// call. If nothing tells, it assumes that they have.
func (c *clamps) waited(ctx context.Context, now time.Time, functions pressure.Functions) bool {
	if c.off {
		return false
	}
	if c.begun.IsZero() {
		c.before = c.last
	}
	reading, err := c.waits.Read(now, functions)
	if err != nil {
		if !c.blind {
			c.metrics.sampleErrors.Add(ctx, 1)
			c.log.Error(err, "holding functions to their allocations, because nothing shows whether other pods wait for CPU")
		}
		c.blind = true
		return true
	}
	if c.blind || reading.Source != c.source && reading.Pods > 0 {
		c.log.Info("reading who waits for CPU from "+string(reading.Source), "pods", reading.Pods)
		c.blind, c.source = false, reading.Source
	}
	c.metrics.waited.Add(ctx, (reading.Waited - c.last.Waited).Seconds())
	beyond := reading.Beyond - c.last.Beyond
	c.metrics.waitedBeyond.Add(ctx, beyond.Seconds())
	c.last = reading
	return beyond > 0
}

// set writes the clamp's quota for a container, if it is not in force and is the agent's to write.
func (c *clamps) set(ctx context.Context, k *clampedContainer, now time.Time) {
	quota, whole, begins := c.clamp.quota(k.container), c.clamp.whole(k.container), !k.held && c.clamp.held(k.container)
	k.held = c.clamp.held(k.container)
	if begins {
		k.heldAt = now
	}
	if k.bound != nil {
		if whole {
			quota = 0
		}
		k.bound(quota)
		k.settled = true
		return
	}
	quota = k.quotas.Attainable(quota)
	if k.settled = quota == k.inForce; k.settled {
		k.changed = k.changed && !whole
		if k.owing && quota == k.spec {
			c.forget(k)
		}
		return
	}
	ours := !whole || k.changed || now.Sub(k.firstAt) >= ceilingPatience
	// Somebody else may write the limit again and again: do not grant a period's quota each time.
	soon := !begins && now.Sub(k.writtenAt) < regainEvery
	w := write{pod: k.pod, direction: raise, to: quota}
	if k.inForce == 0 || quota < k.inForce {
		w.direction = lower
	} else if quota <= k.allocation {
		w.direction = restore
	}
	if !ours || soon || k.retry.holds(w.direction, now) {
		return
	}
	if quota != k.spec && !k.owing && !c.owe(k) && quota > k.spec {
		return
	}
	err := k.quotas.SetCPU(quota)
	c.metrics.wrote(ctx, w, resultOf(err))
	if err != nil {
		k.retry.failed(w.direction, now)
		if !cgroup.Gone(err) {
			c.refuse(k, err, "could not set how much CPU a container may use; retrying")
		}
		return
	}
	k.retry.succeeded()
	k.refusing = false
	k.inForce, k.written, k.writtenAt, k.changed = quota, quota, now, true
}

func (c *clamps) refuse(k *clampedContainer, err error, doing string) {
	if !k.refusing {
		c.log.Error(err, doing, "pod", k.pod)
	}
	k.refusing = true
}

// account reports which functions are held, for how long, and what credits are left.
func (c *clamps) account(ctx context.Context, now time.Time, passed time.Duration) {
	held := 0
	for id, l := range c.clamp.levels {
		if l.held {
			held++
			c.metrics.clamped.Add(ctx, passed.Seconds(), ofFunction(c.known[id].function))
		}
	}
	if now.Sub(c.creditAt) >= beatEvery {
		c.creditAt = now
		c.accountCredits()
	}
	waited, beyond := c.last.Waited-c.before.Waited, c.last.Beyond-c.before.Beyond
	switch {
	case held > 0 && c.begun.IsZero():
		c.begun = now
		if c.told = now.Sub(c.toldAt) >= clampLogEvery; c.told {
			c.toldAt = now
			c.log.Info("holding functions to their allocations: pods that did not opt in wait for CPU, or nothing shows whether they do",
				"containers", held, "waited", waited.String(), "beyondTolerated", beyond.String())
		}
	case held == 0 && !c.begun.IsZero():
		if c.told {
			c.log.Info("no longer holding functions to their allocations", "heldFor", now.Sub(c.begun).String(), "waited", waited.String(), "beyondTolerated", beyond.String())
		}
		c.begun, c.told = time.Time{}, false
	}
}

func (c *clamps) accountCredits() {
	credits := map[string]time.Duration{}
	for id, l := range c.clamp.levels {
		function := c.known[id].function
		if least, ok := credits[function]; !ok || l.credit < least {
			credits[function] = l.credit
		}
	}
	c.metrics.credits.Store(&credits)
}

// window tells what a container used in the last period of a CPU quota, within which the kernel
// does not care how use is spread. The zero value is ready to use.
type window struct{ uses []cpuUse }

type cpuUse struct {
	at  time.Time
	cpu time.Duration // so far
}

// add takes in what was used so far, and returns what was used in the last period, in milli CPU.
// If less than a period is known, it counts as a whole one.
func (w *window) add(at time.Time, cpu time.Duration) int64 {
	first := 0
	for first+1 < len(w.uses) && at.Sub(w.uses[first+1].at) >= peakWindow {
		first++
	}
	w.uses = append(w.uses[:copy(w.uses, w.uses[first:])], cpuUse{at, cpu})
	oldest := w.uses[0]
	return max(0, milli(float64(cpu-oldest.cpu), max(at.Sub(oldest.at), peakWindow)))
}

// since returns when the time began that the last add covered.
func (w *window) since() time.Time { return w.uses[0].at }

// begin restarts the window at a time by which the container had used cpu, because it is known to
// have rested until then. All later use counts.
func (w *window) begin(at time.Time, cpu time.Duration) {
	w.uses = append(w.uses[:0], cpuUse{at, cpu})
}
