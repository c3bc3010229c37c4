package agent

import "time"

const (
	// clampEvery is how often the clamp halves what functions have above their allocations
	// while bystanders wait.
	clampEvery = 20 * time.Millisecond
	// lookEvery is how often the agent looks at bystanders while a function uses more than
	// its allocation. A new quota takes effect within a period, so a look every clampEvery
	// would find little sooner. On a busy node with forty bystanders, such looks cost a
	// quarter of all the agent's work.
	lookEvery = 50 * time.Millisecond

	// regainEvery is how often a function regains a tenth of the range from its allocation
	// to its ceiling once bystanders no longer wait; until then it is held. It is also the
	// period of the kernel's CPU limits: see clamp.
	regainEvery  = 100 * time.Millisecond
	regainShares = 10

	// Each time that bystanders wait again within againWithin of a release, functions are
	// held for twice as long after the last wait, up to calmMost: they regain what
	// bystanders want. When functions tried every second, a bystander that never rests, with
	// a twentieth of the weight, got 0.76 to 0.89 of its CPU with stock's limits.
	againWithin = 2 * time.Second
	calmMost    = regainEvery << 6

	// clampCredit is how long a function can use twice its allocation while bystanders wait.
	// After that, its level falls to its allocation as soon as a bystander waits.
	clampCredit = 60 * time.Second
)

// clamp decides what functions may use above their allocations, so that they have what
// the node has idle, but not what bystanders want.
//
// Each function has a level, from its allocation to its ceiling. While bystanders do not
// wait, the level is its quota. While they do, the level of every function that uses more
// than its allocation is halved towards the allocation every clampEvery, and the function
// is held: its quota is the allocation. The level itself is not written meanwhile, because
// a write grants a whole period's quota anew, and one every clampEvery would throttle nobody
// (measured: a function on two cores whose quota was halved in this way, down to half a
// core, still used 1.8 cores on average for 200 ms). A single write of the allocation leaves
// the function, on average until the first period is over, about what halving is meant to
// leave. The level is what it gets back: much after a short wait, little after a long one.
//
// A function pays for what it uses above its allocation while bystanders wait from credits,
// which it earns by leaving some of its allocation unused. Without credits, its level falls
// to its allocation as soon as a bystander waits. Use while nobody waits is free.
type clamp struct {
	at       time.Time // of the last tick
	waitedAt time.Time // when bystanders were last seen to wait; zero if never
	// calm is how long bystanders must not have waited before functions are released, and
	// releasedAt is when functions last were.
	calm       time.Duration
	releasedAt time.Time
	levels     map[string]*clampLevel
}

// clampLevel is what the clamp knows about a container.
type clampLevel struct {
	allocation, ceiling int64 // milli CPU
	milli               int64 // from allocation to ceiling
	held                bool
	regainedAt          time.Time
	credit              time.Duration // of CPU
}

// clampUse is what the clamp is told about a container, in milli CPU.
type clampUse struct {
	container           string
	allocation, ceiling int64
	used                int64 // in the last period
	inForce             int64 // the quota; 0 is none
}

// over is what a container uses above its allocation. With what was left of the period
// before, it can use more than its quota in one measured period. Its quota allows that, so
// it does not count.
func (u clampUse) over() int64 {
	used := u.used
	if u.inForce != 0 {
		used = min(used, u.inForce)
	}
	return max(0, used-u.allocation)
}

// rests reports whether a container uses so little that it need not be held.
func (u clampUse) rests() bool { return u.used < u.allocation/2 }

// tick takes in what containers used since the last tick, and whether bystanders waited.
// A container that is not in uses stays as it is. Afterwards, quota says what is to be in
// force.
func (c *clamp) tick(now time.Time, waited bool, uses []clampUse) {
	passed := min(max(0, now.Sub(c.at)), longestAccounted)
	if c.at.IsZero() {
		passed = 0
	}
	c.at = now
	c.listen(waited)
	if c.levels == nil {
		c.levels = map[string]*clampLevel{}
	}
	for _, u := range uses {
		l := c.levels[u.container]
		if l == nil {
			l = &clampLevel{milli: u.ceiling, credit: fullCredit(u.allocation)}
			c.levels[u.container] = l
		}
		l.bound(u.allocation, u.ceiling)
		l.pay(u, passed, c.waiting())
		switch {
		case waited && (u.over() > 0 || l.held && !u.rests()):
			l.shrink(u, passed, now)
		case waited && l.held:
			l.held = false // nobody has less because of it
		case !c.waiting():
			l.regain(now, c.waitedAt.Add(c.calm-regainEvery))
		}
	}
}

// listen takes note of whether bystanders wait.
func (c *clamp) listen(waited bool) {
	wait := c.waiting()
	switch {
	case waited && !wait:
		if c.calm == 0 || c.at.Sub(c.releasedAt) >= againWithin {
			c.calm = regainEvery
		} else {
			c.calm = min(2*c.calm, calmMost)
		}
	case !waited && wait:
		c.releasedAt = c.at // or later
	}
	if waited {
		c.waitedAt = c.at
	}
}

// waiting reports whether bystanders wait, or did less than calm ago.
func (c *clamp) waiting() bool {
	return !c.waitedAt.IsZero() && c.at.Sub(c.waitedAt) < c.calm
}

// quota is the quota, in milli CPU, that is to be in force for a container. A tick must
// have been told of the container.
func (c *clamp) quota(container string) int64 {
	l := c.levels[container]
	if l.held {
		return l.allocation
	}
	return l.milli
}

// held reports whether a container is held to its allocation.
func (c *clamp) held(container string) bool { return c.levels[container].held }

// whole reports whether a container's quota is its ceiling.
func (c *clamp) whole(container string) bool {
	l := c.levels[container]
	return !l.held && l.milli == l.ceiling
}

func fullCredit(allocation int64) time.Duration { return cpuTime(allocation, clampCredit) }

// cpuTime is the CPU time that milli thousandths of a core come to in d.
func cpuTime(milli int64, d time.Duration) time.Duration {
	return time.Duration(float64(milli) / 1000 * float64(d))
}

// bound applies an allocation and a ceiling, which can change.
func (l *clampLevel) bound(allocation, ceiling int64) {
	atCeiling := l.milli == l.ceiling
	l.allocation, l.ceiling = allocation, max(allocation, ceiling)
	if atCeiling {
		l.milli = l.ceiling
	}
	l.milli = min(max(l.milli, l.allocation), l.ceiling)
	l.credit = min(l.credit, fullCredit(allocation))
}

// pay charges what was used above the allocation while bystanders waited, and credits what
// was left unused of it, whether or not they waited.
func (l *clampLevel) pay(u clampUse, passed time.Duration, waiting bool) {
	switch over := u.over(); {
	case over > 0 && waiting:
		l.credit = max(0, l.credit-cpuTime(over, passed))
	case over == 0:
		l.credit = min(fullCredit(l.allocation), l.credit+cpuTime(max(0, l.allocation-u.used), passed))
	}
}

// shrink holds a container, and halves its level towards the allocation, once for each
// clampEvery that passed.
func (l *clampLevel) shrink(u clampUse, passed time.Duration, now time.Time) {
	if !l.held {
		l.milli = min(l.milli, l.allocation+u.over())
	}
	l.held, l.regainedAt = true, now
	const times = 62 // halvings that leave nothing of any number
	for range max(1, min(times, (passed+clampEvery/2)/clampEvery)) {
		l.milli = l.allocation + (l.milli-l.allocation)/2
	}
	if l.credit == 0 {
		l.milli = l.allocation
	}
}

// regain releases a container, and gives back a part for each regainEvery that passed since
// it was last held or regained a part, or since the time since, if that is later.
func (l *clampLevel) regain(now, since time.Time) {
	if l.held = false; l.milli == l.ceiling {
		return
	}
	if l.regainedAt.Before(since) {
		l.regainedAt = since
	}
	steps := int64(min(regainShares, now.Sub(l.regainedAt)/regainEvery))
	part := (l.ceiling - l.allocation + regainShares - 1) / regainShares
	l.milli = min(l.ceiling, l.milli+steps*part)
	l.regainedAt = l.regainedAt.Add(time.Duration(steps) * regainEvery)
}
