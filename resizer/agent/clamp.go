package agent

import "time"

const (
	// clampEvery is how often what functions use above their allocations is halved while
	// bystanders wait.
	clampEvery = 20 * time.Millisecond
	// lookEvery is how often bystanders are looked at while a function uses more than its
	// allocation. A quota that is written takes effect within a period, so that a look every
	// clampEvery would find little sooner, and on a busy node with forty bystanders cost a
	// quarter of all that the agent does.
	lookEvery = 50 * time.Millisecond

	// regainEvery is how often a tenth of what is between allocation and ceiling is
	// regained once bystanders wait no more; until then a function is held. It is a period
	// of the kernel's CPU limits too: see clamp.
	regainEvery  = 100 * time.Millisecond
	regainShares = 10

	// Each time that bystanders wait again so soon after functions were let go of, those are
	// held for twice as long, calmMost at most, after bystanders waited last: what they
	// regain is what bystanders want. One of a twentieth of the weight that never rests had
	// 0.76 to 0.89 of its CPU with stock's limits when functions tried every second.
	againWithin = 2 * time.Second
	calmMost    = regainEvery << 6

	// clampCredit is how long a function can use twice its allocation while bystanders wait,
	// before it is held without being trusted again at once.
	clampCredit = 60 * time.Second
)

// clamp decides what functions may use above their allocations, so that what they have
// of an idle node is not what bystanders want.
//
// Each has a level from its allocation to its ceiling, which is its quota while bystanders
// do not wait. While they do, the level of every function that uses more than its
// allocation is halved towards that every clampEvery, and the function is held: its quota
// is the allocation. The level itself is not written meanwhile, because a write gives a
// whole period's quota anew, so that one every clampEvery would throttle nobody (measured:
// a function on two cores whose quota was halved so, down to half a core, still used 1.8
// cores on average for 200 ms); and a single write of the allocation leaves it, on average
// until the first period is over, about what halving is meant to leave. What the level
// says is what it gets back: much after a short wait, little after a long one.
//
// What it uses above its allocation while bystanders wait it pays from credits, which it
// earns by leaving some of its allocation unused. Without any its level is its allocation
// as soon as somebody waits. What it uses while nobody waits is free.
type clamp struct {
	at       time.Time // of the last tick
	waitedAt time.Time // when bystanders were last seen to wait; zero before
	// calm is how long they must not have waited for functions to be let go of, and
	// releasedAt when those were last.
	calm       time.Duration
	releasedAt time.Time
	levels     map[string]*clampLevel
}

// clampLevel is what the clamp knows of a container.
type clampLevel struct {
	allocation, ceiling int64 // milli CPU
	milli               int64 // from allocation to ceiling
	held                bool
	regainedAt          time.Time
	credit              time.Duration // of CPU
}

// clampUse is what the clamp is told of a container, in milli CPU.
type clampUse struct {
	container           string
	allocation, ceiling int64
	used                int64 // in the last period
	inForce             int64 // the quota; 0 is none
}

// over is what a container uses above its allocation. Within a period more can be used
// than a quota, of which a part was left from the one before; that is not more than its
// quota lets it.
func (u clampUse) over() int64 {
	used := u.used
	if u.inForce != 0 {
		used = min(used, u.inForce)
	}
	return max(0, used-u.allocation)
}

// rests says that a container uses so little that it needs no hold.
func (u clampUse) rests() bool { return u.used < u.allocation/2 }

// tick takes in what containers used since the last time, and whether bystanders waited.
// One that is not among them stays as it is. What is to be in force is by quota then.
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
			l.held = false // nobody has less for it
		case !c.waiting():
			l.regain(now, c.waitedAt.Add(c.calm-regainEvery))
		}
	}
}

// listen takes in whether bystanders wait.
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

// waiting says that bystanders wait, or did a moment ago.
func (c *clamp) waiting() bool {
	return !c.waitedAt.IsZero() && c.at.Sub(c.waitedAt) < c.calm
}

// quota is what is to be in force of a container that a tick was told of, in milli CPU.
func (c *clamp) quota(container string) int64 {
	l := c.levels[container]
	if l.held {
		return l.allocation
	}
	return l.milli
}

// held says that a container is held to its allocation.
func (c *clamp) held(container string) bool { return c.levels[container].held }

// whole says that a container's quota is its ceiling.
func (c *clamp) whole(container string) bool {
	l := c.levels[container]
	return !l.held && l.milli == l.ceiling
}

func fullCredit(allocation int64) time.Duration { return cpuTime(allocation, clampCredit) }

// cpuTime is the CPU time of so many thousandths of a core in a time.
func cpuTime(milli int64, d time.Duration) time.Duration {
	return time.Duration(float64(milli) / 1000 * float64(d))
}

// bound takes in an allocation and a ceiling, which can change.
func (l *clampLevel) bound(allocation, ceiling int64) {
	atCeiling := l.milli == l.ceiling
	l.allocation, l.ceiling = allocation, max(allocation, ceiling)
	if atCeiling {
		l.milli = l.ceiling
	}
	l.milli = min(max(l.milli, l.allocation), l.ceiling)
	l.credit = min(l.credit, fullCredit(allocation))
}

// pay takes what was used above the allocation while bystanders waited, and adds what was
// left of it, waiting or not.
func (l *clampLevel) pay(u clampUse, passed time.Duration, waiting bool) {
	switch over := u.over(); {
	case over > 0 && waiting:
		l.credit = max(0, l.credit-cpuTime(over, passed))
	case over == 0:
		l.credit = min(fullCredit(l.allocation), l.credit+cpuTime(max(0, l.allocation-u.used), passed))
	}
}

// shrink halves what is used above the allocation, once for each clampEvery that passed.
func (l *clampLevel) shrink(u clampUse, passed time.Duration, now time.Time) {
	if !l.held {
		l.milli = min(l.milli, l.allocation+u.over())
	}
	l.held, l.regainedAt = true, now
	const times = 62 // by then nothing is left of any number
	for range max(1, min(times, (passed+clampEvery/2)/clampEvery)) {
		l.milli = l.allocation + (l.milli-l.allocation)/2
	}
	if l.credit == 0 {
		l.milli = l.allocation
	}
}

// regain gives back a part for each regainEvery that passed since it was held, or since a
// time.
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
