package agent

import (
	"sort"
	"sync"
	"sync/atomic"
	"time"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/resizer/cgroup"
)

const (
	// limitsFor is how old the limits may be of a container that rests.
	limitsFor = 5 * time.Second
	// limitsEvery is how many samples share a reading of limits, of a container that works and
	// is not throttled: what it could have used makes no difference to what it did.
	limitsEvery = 4
)

// container is a user's container and what was sampled of it lately.
type container struct {
	id string
	// used is whether an invocation was heard to end in it. Only who reads the ends
	// touches it.
	used bool
	// thinning is touched by the same, and leftOut is whether it leaves the next out.
	thinning thinning
	leftOut  atomic.Bool
	// endedAt is when an invocation was last heard to end in it and it was sampled for that, which the
	// same touches.
	endedAt time.Time
	// told says that the agent is told of requests as they begin in it, and of none now.
	told atomic.Bool
	// ranked says that the node is its source, so that nothing is lent of it that it could
	// want back, and fills that its memory may run short.
	ranked, fills atomic.Bool
	// borrowsBeyond is the milli CPU that it is owed, of one that may borrow more; 0 when it may not.
	borrowsBeyond atomic.Int64
	// wanting is touched by who samples alone.
	wanting wanting
	// covered is the memory limit, in bytes, that the container has or that was asked for, as
	// the reflex knows it.
	covered atomic.Int64
	// sinking says that the limit in force is to become that.
	sinking atomic.Bool
	// spec is the memory limit, in bytes, that the kubelet is to set or has; 0 is none.
	spec atomic.Int64
	// lookAgain says that a limit is another than at the last sample.
	lookAgain atomic.Bool
	// repaid says that what it borrowed has gone back since the last sample: it may borrow again already.
	repaid atomic.Bool
	// rescuable says that the limit is raised when the container comes near it.
	rescuable atomic.Bool
	// quiet is since when no request is known in it, of one of which memory may be taken; nil while
	// one is, or it may not.
	quiet atomic.Pointer[time.Time]
	// idling is touched by who reclaims alone.
	idling idling

	// guarding is held, before mu, by who writes the guard, for which the kernel may take long, or
	// closes the cgroup.
	guarding sync.Mutex
	mu       sync.Mutex
	cgroup   cgroup.Container
	ring     ring
	most     int64     // bytes of memory that it was ever seen to use
	repeated int       // samples since the container was last read
	limited  int       // readings since its limits were last read
	limitsAt time.Time // when they were
	guard    guard     // which only who holds guarding, too, changes
	activity activity
}

// memory is what was sampled last of the container's memory, and the most that it was ever
// seen to use, in bytes.
func (c *container) memory() (used, limit, most int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ring.len() == 0 {
		return 0, 0, c.most
	}
	last := c.ring.last()
	return last.Memory, last.Limit.MemoryBytes, c.most
}

// filling says that more than half of the memory limit is in use.
func filling(r cgroup.Reading) bool {
	return r.Limit.MemoryBytes > 0 && 2*r.Memory > r.Limit.MemoryBytes
}

// sample samples the container. One that has used no CPU since the last time did nothing
// else either: that is the same sample again, which costs one system call. woke says that it
// has begun to use CPU after a rest.
func (c *container) sample(now func() time.Time) (woke bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if again := c.lookAgain.Swap(false); again || c.ring.len() == 0 {
		return c.read(now)
	}
	last := *c.ring.last()
	// One that is slowed down may use none, and have another limit.
	if c.guard.at != 0 {
		return c.read(now)
	}
	// One that works has used some.
	if now().Sub(c.limitsAt) < limitsFor && !(c.activity.busy && c.repeated == 0) {
		used, err := c.cgroup.CPU()
		if err != nil {
			return false, err
		}
		if used == last.CPU {
			c.repeated++
			last.at = now()
			return c.keep(last), nil
		}
	}
	if c.limited >= limitsEvery-1 || c.repeated > 0 {
		return c.read(now)
	}
	r, err := c.cgroup.ReadUse()
	if err != nil {
		return false, err
	}
	if r.ThrottledPeriods != last.ThrottledPeriods {
		return c.read(now)
	}
	r.Limit = last.Limit
	c.limited++
	return c.keepReading(r, now()), nil
}

// wants is how much CPU the container wants to borrow by its last sample, when that is to be
// asked for.
func (c *container) wants() (milli int64, ask bool) {
	owed := c.borrowsBeyond.Load()
	if owed == 0 {
		return 0, false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ring.len() == 0 {
		return 0, false
	}
	if c.repaid.Swap(false) {
		c.wanting.repaid()
	}
	return c.wanting.add(*c.ring.last(), owed)
}

// sampleWhole samples the container whatever it did.
func (c *container) sampleWhole(now func() time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, err := c.read(now)
	return err
}

// read reads the container. The caller holds the lock.
func (c *container) read(now func() time.Time) (woke bool, err error) {
	r, err := c.cgroup.Read()
	if err != nil {
		return false, err
	}
	at := now()
	c.limited, c.limitsAt = 0, at
	return c.keepReading(r, at), nil
}

// keepReading keeps what was read. The caller holds the lock.
func (c *container) keepReading(r cgroup.Reading, at time.Time) (woke bool) {
	c.repeated = 0
	c.most = max(c.most, r.Memory)
	c.fills.Store(filling(r))
	return c.keep(sample{at: at, Reading: r})
}

// keep keeps a sample. The caller holds the lock.
func (c *container) keep(s sample) (woke bool) {
	c.ring.add(s)
	return c.activity.add(s.at, s.CPU)
}

// rests says that nothing is known to go on in the container: no request, and hardly any use
// of CPU since a time that is not long ago.
func (c *container) rests(now time.Time) bool {
	if !c.told.Load() {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.activity.busy && c.fresh(now)
}

// usesNothing says that the container has used hardly any CPU for restTime until now, whatever is
// known of requests in it.
func (c *container) usesNothing(now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.activity.busy && c.fresh(now) && c.activity.at.Sub(c.activity.restsSince) >= restTime
}

// fresh says that the last sample tells what goes on in the container. The caller holds the lock.
func (c *container) fresh(now time.Time) bool {
	gap := longestGap
	if c.activity.sleeps() {
		gap += sleepEvery
	}
	return now.Sub(c.activity.at) <= gap
}

// lately is what was sampled last of the container, unless that was too long ago to tell what goes
// on in it. Its limits may be older by limitsFor.
func (c *container) lately(now time.Time) (s sample, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ring.len() == 0 || !c.fresh(now) {
		return sample{}, false
	}
	return *c.ring.last(), true
}

// sleeps says that the container has rested for long, and is told of requests that begin.
func (c *container) sleeps(now time.Time) bool {
	if !c.rests(now) {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.activity.sleeps()
}

// every is how often the container is sampled. What is left out needs no samples: they only
// tell whether the container rests, which one in which requests are known to be does not.
func (c *container) every(now time.Time) time.Duration {
	leftOut := c.ranked.Load() && c.leftOut.Load()
	switch {
	case c.sleeps(now) && !c.fills.Load():
		return sleepEvery
	case c.rests(now):
		return restEvery
	case c.fills.Load():
		return sampleEvery
	case leftOut && !c.told.Load():
		return leftOutEvery
	case leftOut:
		return restEvery
	case c.ranked.Load():
		return rankedEvery
	default:
		return sampleEvery
	}
}

// due says that it is time to sample a container that is sampled so often, or how long it is until
// then. Those that sleep are sampled together, whenever they fell asleep.
func (c *container) due(now time.Time, every time.Duration) (due bool, wait time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	early := sampleEvery / 2
	if every == sleepEvery {
		early = sleepEvery / 2
	}
	since := now.Sub(c.activity.at)
	return since > every-early, max(min(every, restEvery), every-since)
}

// rest is the last time at which the container is known to have rested, and what it had used by
// then.
func (c *container) rest() (time.Time, time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.activity.rest()
}

// active is what the container did since it last rested.
func (c *container) active() activity {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.activity
}

// samples are those kept that tell of a time and of what came after it, from the oldest to
// the newest. One that rested at the last of them before that time did so until then: the
// sampling of it is seldom, and what it used afterwards was for what began at that time.
func (c *container) samples(since time.Time) []sample {
	c.mu.Lock()
	defer c.mu.Unlock()
	first := sort.Search(c.ring.len(), func(i int) bool { return c.ring.at(i).at.After(since) })
	first = max(0, first-1)
	samples := make([]sample, 0, c.ring.len()-first)
	for i := first; i < c.ring.len(); i++ {
		samples = append(samples, *c.ring.at(i))
	}
	if len(samples) > 0 && samples[0].at.Before(since) && c.rested(first) {
		samples[0].at = since
	}
	return samples
}

// rested says that the container had used hardly any CPU for a while when that sample was
// taken. The caller holds the lock.
func (c *container) rested(i int) bool {
	s := c.ring.at(i)
	for i--; i >= 0; i-- {
		before := c.ring.at(i)
		passed := s.at.Sub(before.at)
		if worked(s.CPU-before.CPU, passed) {
			return false
		}
		if passed >= restTime {
			return true
		}
	}
	return false
}

func (c *container) close() {
	c.guarding.Lock()
	defer c.guarding.Unlock()
	_ = c.takeGuardOff() // it may have ended
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cgroup.Close() //nolint:errcheck // every write was checked
}

// first says whether the invocation that was just heard to end is the first to do so
// in the container, observed or not.
func (c *container) first() bool {
	first := !c.used
	c.used = true
	return first
}

// wanted says whether the invocation that was just heard to end is to be observed.
func (c *container) wanted(now time.Time) bool {
	wanted := c.thinning.wants(now)
	c.leftOut.Store(c.thinning.skip > 0)
	return wanted
}

// sampleEnd samples the container because an invocation has just ended in it, and returns when that was last done.
func (c *container) sampleEnd(now func() time.Time) (before time.Time, err error) {
	before = c.endedAt
	if err = c.sampleWhole(now); err == nil {
		c.endedAt = now()
	}
	return before, err
}

// observe makes an observation of an invocation that was known to have ended at a
// time. before is when the container was sampled at the end of another, which is where this one begins, as exactly
// as news are: what was used until then is not its. ok is false when the samples do not cover it.
func (c *container) observe(e api.Ended, known, before time.Time) (o api.Observation, ok bool) {
	to := known.Add(-e.Ago)
	begun := to.Add(-e.Duration)
	from, shortest := begun.Add(-slack), sampleEvery
	// News that were under way for longer would leave out what may be its peak.
	if latest := begun.Add(min(slack, e.Duration/2)); before.After(from) && !before.After(latest) {
		from, shortest = before, slack
	}
	samples := c.samples(from)
	if e.Ago > 0 {
		samples = endAt(samples, to)
	}
	e.Ago = 0
	m, ok := measure(samples, from, to, shortest)
	return api.Observation{
		Ended: e, Peak: m.peak, CPUTime: m.cpuTime, Limit: m.limit, LimitAtPeak: m.limitAtPeak,
		ThrottledShare: m.throttledShare,
	}, ok
}

// endAt has what was used until the first sample after a time used by then: nothing else was
// known to be in the container between the two.
func endAt(samples []sample, to time.Time) []sample {
	for i := range samples {
		if samples[i].at.After(to) {
			samples[i].at = to
			return samples[:i+1]
		}
	}
	return samples
}

// containers are those of this node's opted-in pods.
type containers struct {
	// slow says that they are sampled as seldom as while all rest, and stirred, of capacity
	// 1, is for who knows that one will not.
	slow    atomic.Bool
	stirred chan struct{}

	mu    sync.Mutex
	byPod map[string]*container // by namespace/name
	list  []sampledPod          // never changed, but made anew when nil
}

// sampledPod is a container with the name of its pod.
type sampledPod struct {
	pod string
	*container
}

func newContainers() *containers {
	return &containers{byPod: map[string]*container{}, stirred: make(chan struct{}, 1)}
}

// stir has containers sampled at once, when that would not be soon.
func (s *containers) stir() {
	if s.slow.Load() {
		signal(s.stirred)
	}
}

func (s *containers) get(pod string) *container {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.byPod[pod]
}

// put replaces the pod's container; nil removes it.
func (s *containers) put(pod string, c *container) {
	// To close one may take as long as the kernel takes over its guard, for which nobody else waits.
	if old := s.replace(pod, c); old != nil {
		old.close()
	}
}

func (s *containers) replace(pod string, c *container) (old *container) {
	s.mu.Lock()
	defer s.mu.Unlock()
	old, s.list = s.byPod[pod], nil
	if c == nil {
		delete(s.byPod, pod)
		return old
	}
	s.byPod[pod] = c
	s.stir()
	return old
}

// all are those that there are now. Nobody waits for reads of files meanwhile.
func (s *containers) all() []sampledPod {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.list == nil {
		s.list = make([]sampledPod, 0, len(s.byPod))
		for pod, c := range s.byPod {
			s.list = append(s.list, sampledPod{pod, c})
		}
	}
	return s.list
}
