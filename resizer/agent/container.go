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
	// limitsFor is how old the limits of a container that rests may be.
	limitsFor = 5 * time.Second
	// limitsEvery is how many samples share one reading of the limits, while a container works
	// and is not throttled: its limits then make no difference to what it uses.
	limitsEvery = 4
)

// container is a user container and its recent samples.
type container struct {
	id       string
	function string // namespace/revision
	// used is whether the agent has heard of an invocation that ended in it. Only the goroutine
	// that hears of ends touches it.
	used bool
	// Only the same goroutine touches thinning. leftOut is whether that leaves out the next invocation.
	thinning thinning
	leftOut  atomic.Bool
	// endedAt is when it was last sampled because an invocation had ended in it. Only the same
	// goroutine touches it.
	endedAt time.Time
	// told says that the agent hears of requests as they begin in it, and knows of none now.
	told atomic.Bool
	// ranked says that the node is its source, so that it lends nothing that it could want back.
	// fills says that its memory may run short.
	ranked, fills atomic.Bool
	// borrowsBeyond is the milli CPU that it is owed, if it may borrow more; 0 if it may not.
	borrowsBeyond atomic.Int64
	// owedMemory is the memory, in bytes, that it is owed; 0 while that is not known.
	owedMemory atomic.Int64
	// Only the goroutine that samples touches wanting.
	wanting wanting
	// covered is the memory limit, in bytes, that the container has or that was asked for, as
	// the reflex knows it.
	covered atomic.Int64
	// sinking says that the limit in force is to be lowered to covered.
	sinking atomic.Bool
	// spec is the memory limit, in bytes, that the kubelet has set or is to set; 0 is none.
	spec atomic.Int64
	// lookAgain says that a limit has changed since the last sample.
	lookAgain atomic.Bool
	// repaid says that it has returned what it borrowed since the last sample. It may have borrowed again already.
	repaid atomic.Bool
	// rescuable says that the limit will be raised when the container comes near it.
	rescuable atomic.Bool
	// quiet is since when no request is known in it; nil while one is, or while no memory may be
	// taken from it.
	quiet atomic.Pointer[time.Time]
	// Only the goroutine that reclaims touches idling.
	idling idling

	// guarding is held to write the guard, which may take the kernel long, and to close the
	// cgroup. It is locked before mu.
	guarding sync.Mutex
	mu       sync.Mutex
	cgroup   cgroup.Container
	ring     ring
	most     int64 // bytes of memory that it was ever seen to use
	peak     recentPeak
	repeated int       // samples since the container was last read
	limited  int       // readings since its limits were last read
	limitsAt time.Time // when that was
	guard    guard     // changed only with guarding held, too
	activity activity
}

// memory returns what the container's samples tell of its memory.
func (c *container) memory() sampledMemory {
	c.mu.Lock()
	defer c.mu.Unlock()
	m := sampledMemory{recent: max(c.peak.present, c.peak.before), most: c.most}
	if c.ring.len() > 0 {
		last := c.ring.last()
		m.used, m.limit = last.Memory, last.Limit.MemoryBytes
	}
	return m
}

// filling reports whether more than half of the memory limit is in use, or of what is owed if that is less: a
// limit that was raised stays only as long as samples show that it is used.
func filling(r cgroup.Reading, owed int64) bool {
	limit := r.Limit.MemoryBytes
	if owed > 0 {
		limit = min(limit, owed)
	}
	return limit > 0 && 2*r.Memory > limit
}

// sample samples the container. A container that has used no CPU since the last sample did
// nothing else either: it gets the same sample again, for one system call. woke says that it
// has begun to use CPU after a rest.
func (c *container) sample(now func() time.Time) (woke bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if again := c.lookAgain.Swap(false); again || c.ring.len() == 0 {
		return c.read(now)
	}
	last := *c.ring.last()
	// A container that is slowed down may use no CPU and still have a new limit.
	if c.guard.at != 0 {
		return c.read(now)
	}
	// A container that works has used some CPU, so do not ask.
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

// wants returns how much CPU the container wants to borrow by its last sample, and whether
// to ask for it.
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

// sampleWhole samples the container and its limits, whatever it did.
func (c *container) sampleWhole(now func() time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, err := c.read(now)
	return err
}

// read samples the container and its limits. The caller holds mu.
func (c *container) read(now func() time.Time) (woke bool, err error) {
	r, err := c.cgroup.Read()
	if err != nil {
		return false, err
	}
	at := now()
	c.limited, c.limitsAt = 0, at
	return c.keepReading(r, at), nil
}

// keepReading keeps what was read. The caller holds mu.
func (c *container) keepReading(r cgroup.Reading, at time.Time) (woke bool) {
	c.repeated = 0
	c.most = max(c.most, r.Memory)
	c.fills.Store(filling(r, c.owedMemory.Load()))
	return c.keep(sample{at: at, Reading: r})
}

// keep keeps a sample. The caller holds mu.
func (c *container) keep(s sample) (woke bool) {
	c.ring.add(s)
	c.peak.add(s.at, s.Memory)
	return c.activity.add(s.at, s.CPU)
}

// rests reports whether nothing is known to go on in the container: no request, and hardly
// any use of CPU by a recent sample.
func (c *container) rests(now time.Time) bool {
	rests, _ := c.resting(now)
	return rests
}

// resting also reports whether the container sleeps: whether it has rested for long.
func (c *container) resting(now time.Time) (rests, sleeps bool) {
	if !c.told.Load() {
		return false, false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	rests = !c.activity.busy && c.fresh(now)
	return rests, rests && c.activity.sleeps()
}

// usesNothing reports whether the container has used hardly any CPU for restTime until its last
// sample, whatever is known of requests in it. since is restTime before that sample: what a request
// that began later uses may not have shown yet.
func (c *container) usesNothing(now time.Time) (since time.Time, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	ok = !c.activity.busy && c.fresh(now) && c.activity.at.Sub(c.activity.restsSince) >= restTime
	return c.activity.at.Add(-restTime), ok
}

// fresh reports whether the last sample tells what goes on in the container. The caller holds mu.
func (c *container) fresh(now time.Time) bool {
	gap := longestGap
	if c.activity.sleeps() {
		gap += sleepEvery
	}
	return now.Sub(c.activity.at) <= gap
}

// lately returns the last sample, unless it is too old to tell what goes on in the container. Its
// limits may be older by limitsFor.
func (c *container) lately(now time.Time) (s sample, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ring.len() == 0 || !c.fresh(now) {
		return sample{}, false
	}
	return *c.ring.last(), true
}

// every is how often the container is sampled. Invocations that are left out need no samples:
// samples then only tell whether the container rests, and one with known requests does not.
func (c *container) every(now time.Time) time.Duration {
	leftOut := c.ranked.Load() && c.leftOut.Load()
	rests, sleeps := c.resting(now)
	switch {
	case sleeps && !c.fills.Load():
		return sleepEvery
	case rests:
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

// due reports whether it is time to sample a container that is sampled that often, and how long to
// wait if not. Containers that sleep are sampled together, whenever they fell asleep.
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

// rest returns when the container is last known to have rested, and what it had used by then.
func (c *container) rest() (time.Time, time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.activity.rest()
}

// active returns what the container has done since it last rested.
func (c *container) active() activity {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.activity
}

// samples returns the kept samples that tell of the time since and of what came after it, from
// the oldest to the newest. A container that rested at the last sample before since is taken to
// have rested until since: it was sampled seldom, and its use afterwards was for what began then.
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

// rested reports whether the container had used hardly any CPU for a while when sample i was
// taken. The caller holds mu.
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
	_ = c.takeGuardOff() // the container may have ended
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cgroup.Close() //nolint:errcheck // every write was checked
}

// first reports whether the invocation that has just ended is the first that is known to have
// ended in the container, observed or not.
func (c *container) first() bool {
	first := !c.used
	c.used = true
	return first
}

// wanted reports whether to observe the invocation that has just ended.
func (c *container) wanted(now time.Time) bool {
	wanted := c.thinning.wants(now)
	c.leftOut.Store(c.thinning.skip > 0)
	return wanted
}

// sampleEnd samples the container because an invocation has just ended in it, and returns when it last did so.
func (c *container) sampleEnd(now func() time.Time) (before time.Time, err error) {
	before = c.endedAt
	if err = c.sampleWhole(now); err == nil {
		c.endedAt = now()
	}
	return before, err
}

// observe makes an observation of an invocation of whose end the agent heard at known. before is when the
// container was sampled at the end of another invocation. This one begins there, as exactly as the news tells:
// what was used until then is not its own. ok is false when the samples do not cover the invocation.
func (c *container) observe(e api.Ended, known, before time.Time) (o api.Observation, ok bool) {
	to := known.Add(-e.Ago)
	begun := to.Add(-e.Duration)
	from, shortest := begun.Add(-slack), sampleEvery
	// If the news was under way for longer, a start at before could leave out the peak.
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

// endAt counts what was used until the first sample after to as used by to: nothing else was
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

// containers are the user containers of this node's opted-in pods.
type containers struct {
	// slow says that containers are sampled as seldom as while all rest. Whoever knows that one
	// will not rest signals stirred, which has capacity 1.
	slow    atomic.Bool
	stirred chan struct{}

	mu    sync.Mutex
	byPod map[string]*container // by namespace/name
	list  []sampledPod          // never changed; made anew when nil
}

// sampledPod is a container with the name of its pod.
type sampledPod struct {
	pod string
	*container
}

func newContainers() *containers {
	return &containers{byPod: map[string]*container{}, stirred: make(chan struct{}, 1)}
}

// stir has the containers sampled at once, unless that would be soon anyway.
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
	// Closing may take as long as the kernel takes over the guard, so it is done without the lock.
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

// all returns the containers that there are now. Callers read their files without the lock.
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
