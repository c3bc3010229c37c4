package pooltest

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/pool"
)

// renewEvery is the age from which on a Begin renews a lease.
const renewEvery = pool.LeaseTTL / 5

// markLag is how much later than its last mark another version may have begun an invocation, at most.
const markLag = 2 * time.Second

// memoryNode is the pool of one node, as the library in lua keeps it in Redis. Times are in
// milliseconds, as in Redis.
type memoryNode struct {
	epoch        string
	beat         pool.Heartbeat
	beatAt       int64                 // when beat came
	whole        bool                  // whether one of the epoch was, since unsureAt
	unsureAt     int64                 // until then, invocations may have begun that the pool does not know
	leases       map[string]int64      // by owner, when it last renewed
	buried       map[string]bool       // by invocation: the Ends that stand, since the last trim
	buriedBefore map[string]bool       // and those of before it
	trimmed      int64                 // when last
	begun        map[string]*begun     // by invocation
	begins       int                   // so far
	pods         map[string]*memoryPod // with invocations in them, by name
	loans        map[loan]api.Resources
	struck       map[donors]strikes
	unseen       map[inPod]unseen
	raised       map[string]bool // pods that borrow CPU, or did since the last heartbeat
	another      int64           // when another version of the pool was last told of invocations on the node
	turn         string          // the domain that was lent to first, the last time that several wanted something
	wasShared    bool            // as of the last heartbeat

	// In milli CPU: the predicted use of the ranked invocations at the last heartbeat, and what was
	// unused then.
	rateThen, unusedThen int64
}

type begun struct {
	pool.Invocation
	number                 int // of its Begin
	begunAt, expires       int64
	withoutLoan            int64 // when it expires if it borrows no CPU
	alone, safeguarded     bool
	surplus                api.Resources // how much of its Surplus its pod may lend
	mostLent, mostBorrowed api.Resources // mostLent is its pod's
}

type loan struct {
	donor    *memoryPod
	borrower *begun
}

type inPod struct{ pod, owner string }

// unseen are an owner's invocations in a pod that the pool cannot identify.
type unseen struct {
	count  int
	number int64 // the highest Number there that counted or was counted
	until  int64 // until when the pool assumes that they are there; 0 while that is not known
	at     int64 // since when they have lapsed, or by when they had begun
}

func cpuOf(r *api.Resources) *int64    { return &r.CPUMilli }
func memoryOf(r *api.Resources) *int64 { return &r.MemoryBytes }

// volumes are the resources, each of which is lent separately.
var volumes = []func(*api.Resources) *int64{cpuOf, memoryOf}

func newMemoryNode(now int64, epoch string) *memoryNode {
	return &memoryNode{
		epoch:        epoch,
		unsureAt:     now,
		leases:       make(map[string]int64),
		buried:       make(map[string]bool),
		buriedBefore: make(map[string]bool),
		begun:        make(map[string]*begun),
		pods:         make(map[string]*memoryPod),
		loans:        make(map[loan]api.Resources),
		struck:       make(map[donors]strikes),
		unseen:       make(map[inPod]unseen),
		raised:       make(map[string]bool),
	}
}

func (n *memoryNode) begin(now int64, inv pool.Invocation) api.Resources {
	n.lapse(now, inv.Owner)
	if n.isBuried(now, inv.ID) {
		return api.Resources{}
	}
	if b, ok := n.begun[inv.ID]; ok {
		return n.borrowed(b)
	}

	// Renew a lease that would not last until its owner's next Renew.
	if renewed, ok := n.leases[inv.Owner]; !ok || now-renewed >= renewEvery.Milliseconds() || now < renewed {
		n.leases[inv.Owner] = now
	}

	inv.WantMostMilli = max(inv.WantMostMilli, inv.Want.CPUMilli)
	n.begins++
	b := &begun{
		Invocation: inv, number: n.begins, begunAt: now, alone: true,
		expires: now + wholeMillis(inv.Duration), withoutLoan: now + wholeMillis(max(inv.WithoutLoan, inv.Duration)),
	}
	if n.open(now) {
		b.surplus = n.spared(now, inv)
	}
	moved := n.join(now, b)
	if n.open(now) {
		n.take(now, b)
	}
	if moved {
		n.feed(now, b.Domain)
	}
	return n.borrowed(b)
}

func (n *memoryNode) end(now int64, e pool.Ending) pool.Outcome {
	b, ok := n.begun[e.ID]
	if e.ComputesIn != "" {
		e.Late = true
		if ok {
			e.ComputesIn = b.Pod
		}
		n.noteComputing(now, e.ComputesIn, now)
	}
	if !ok {
		if p := n.pods[e.ComputesIn]; p != nil && n.settle(now, p) {
			n.feed(now, p.domain)
		}
		n.bury(e.ID)
		return pool.Outcome{}
	}
	how := ended
	if e.Late {
		how = endedLate
	}
	lendsIn := n.pods[b.Pod].domain // differs once an invocation of another domain has begun there
	moved := n.release(now, b, how)
	if !e.BeginAnswered {
		n.bury(e.ID)
	}
	if moved {
		n.feed(now, b.Domain, lendsIn)
	}
	return pool.Outcome{
		Found: true, Alone: b.alone && !e.Late, Safeguarded: b.safeguarded,
		Lent: b.mostLent, Borrowed: b.mostBorrowed,
	}
}

// heard says whether the last heartbeat counts. A heartbeat from the future came before the clock
// went back.
func (n *memoryNode) heard(now int64) bool {
	return n.beatAt <= now && now < n.beatAt+pool.LeaseTTL.Milliseconds()
}

// open says whether the node lends.
func (n *memoryNode) open(now int64) bool {
	return n.heard(now) && n.beat.Whole && n.beat.Epoch == n.epoch && !n.shared(now)
}

// shared says whether another version may have invocations on the node, about which this one knows
// nothing.
func (n *memoryNode) shared(now int64) bool {
	return n.another <= now && now < n.another+pool.LeaseTTL.Milliseconds()
}

// spared returns how much of an invocation's surplus its pod may lend.
func (n *memoryNode) spared(now int64, inv pool.Invocation) (surplus api.Resources) {
	if _, ok := n.beat.Pods[inv.Pod]; !ok {
		return surplus
	}
	surplus = inv.Surplus
	if n.suspended(now, donors{inv.Function, false}) {
		surplus.CPUMilli = 0
	}
	return surplus
}

// take lends b what it still wants, from the donors that last as long as it needs.
func (n *memoryNode) take(now int64, b *begun) {
	if _, ok := n.beat.Pods[b.Pod]; !ok {
		return
	}
	borrowed := n.borrowed(b)
	for _, of := range volumes {
		want := min(*of(&b.Want)-*of(&borrowed), n.room(now, b.Domain, of))
		for _, p := range n.donors(b.Domain) {
			if p.name == b.Pod || n.expires(p) < now+b.leastRemaining() {
				continue
			}
			if amount := min(want, *of(&p.spare)); amount > 0 {
				n.lend(p, b, of, amount)
				want -= amount
			}
		}
	}
}

// feed runs after everything that may leave surplus in the pool or a want unmet. Borrowers in the
// given domains take what they still want, the last to end first. There may not be enough for all
// domains: one's part grows when another has all that it wants, and the domains take turns to be
// first.
func (n *memoryNode) feed(now int64, domains ...string) {
	if !n.open(now) {
		return
	}
	order := n.inTurn(domains)
	first := ""
	for again := true; again; {
		again = false
		for _, domain := range order {
			before := n.onLoan("")
			for _, b := range slices.SortedFunc(maps.Values(n.begun), latestFirst) {
				if b.Domain == domain && b.pays(now) {
					n.take(now, b)
				}
			}
			if n.onLoan("") != before {
				again, first = true, cmp.Or(first, domain)
			}
		}
	}
	if len(order) > 1 {
		n.turn = cmp.Or(first, n.turn)
	}
}

func (n *memoryNode) feedAll(now int64) {
	var domains []string
	for _, b := range n.begun {
		domains = append(domains, b.Domain)
	}
	n.feed(now, domains...)
}

// latestFirst orders by predicted end, then by ID.
func latestFirst(x, y *begun) int {
	return cmp.Or(cmp.Compare(y.expires, x.expires), strings.Compare(y.ID, x.ID))
}

// pays says whether a loan to b may pay: without it, b has long enough to go, or has outlived its
// prediction by as long, so that the prediction no longer tells when b ends.
func (b *begun) pays(now int64) bool {
	return max(b.withoutLoan-now, now-b.withoutLoan) >= b.leastRemaining()
}

func (b *begun) leastRemaining() int64 { return max(ceilMillis(b.MinRemaining), 1) }

func (n *memoryNode) borrowed(b *begun) (sum api.Resources) {
	for l, volume := range n.loans {
		if l.borrower == b {
			sum = sum.Add(volume)
		}
	}
	return sum
}

// onLoan returns what is on loan in a domain, or in all domains for "".
func (n *memoryNode) onLoan(domain string) (sum api.Resources) {
	for l, volume := range n.loans {
		if domain == "" || l.donor.domain == domain {
			sum = sum.Add(volume)
		}
	}
	return sum
}

// giveBack ends all loans to b, and says whether there were any.
func (n *memoryNode) giveBack(b *begun) (freed bool) {
	for l, volume := range n.loans {
		if l.borrower == b {
			l.donor.spare = l.donor.spare.Add(volume)
			delete(n.loans, l)
			freed = true
		}
	}
	return freed
}

// release ends b, and says whether that leaves something to lend or a want unmet.
func (n *memoryNode) release(now int64, b *begun, how parting) (moved bool) {
	moved = n.giveBack(b)
	return n.leave(now, b, how) || moved
}

// bury lets an End stand for a lease time, whatever was known about the invocation: a Begin that
// arrives late or twice must not revive it with nobody to end it. The library in lua says why that
// is long enough. An invocation is not buried when no Begin for it can arrive.
func (n *memoryNode) bury(id string) { n.buried[id] = true }

// isBuried also tells for a call that has not been made yet.
func (n *memoryNode) isBuried(now int64, id string) bool {
	return n.buried[id] || n.buriedBefore[id] && !n.trimDue(now)
}

func (n *memoryNode) trimDue(now int64) bool {
	return now-n.trimmed >= pool.LeaseTTL.Milliseconds()
}

// trim runs before each call.
func (n *memoryNode) trim(now int64) {
	if n.trimDue(now) {
		n.buried, n.buriedBefore, n.trimmed = make(map[string]bool), n.buried, now
	}
	n.trimmed = min(n.trimmed, now) // the clock may have gone back
}

func (n *memoryNode) forget(now int64) {
	maps.DeleteFunc(n.struck, func(_ donors, s strikes) bool { return s.forgotten(now) })
	maps.DeleteFunc(n.unseen, func(_ inPod, u unseen) bool { return u.forgotten(now) })
	if n.another+pool.UnseenMost.Milliseconds() <= now {
		n.another = 0
	}
}

func (n *memoryNode) reap(now int64) {
	for owner, renewed := range n.leases {
		if renewed > now {
			// The clock went back: without this, the lease would last longer by as much.
			n.leases[owner] = now
		}
	}
	n.lapse(now, slices.Collect(maps.Keys(n.leases))...)
}

// lapse ends what the given owners have whose leases have expired. It runs before anything that
// renews a lease: a lease that expired in an outage must not come back to life after it.
func (n *memoryNode) lapse(now int64, owners ...string) {
	var domains []string
	for _, owner := range owners {
		renewed, ok := n.leases[owner]
		if !ok || renewed+pool.LeaseTTL.Milliseconds() > now {
			continue
		}
		delete(n.leases, owner)
		for _, b := range n.begun {
			if b.Owner != owner {
				continue
			}
			n.bury(b.ID)
			lendsIn := n.pods[b.Pod].domain
			if n.release(now, b, lapsed) {
				domains = append(domains, b.Domain, lendsIn)
			}
		}
		for _, p := range n.pods {
			if p.idle != nil && p.idle.Owner == owner && n.wake(now, p) {
				domains = append(domains, p.domain)
			}
		}
		// The owner may be alive but cut off, so that what it has in pods does not end with the
		// lease.
		for in, u := range n.unseen {
			if in.owner == owner && u.until == 0 {
				n.unseen[in] = u.lapsedAt(now, now)
			}
		}
	}
	n.feed(now, domains...)
}

func (n *memoryNode) heartbeat(now int64, hb pool.Heartbeat) {
	hb.Pods, hb.Needs = maps.Clone(hb.Pods), maps.Clone(hb.Needs)
	lastBegin := n.another + markLag.Milliseconds()
	if lastBegin > min(n.beatAt, now) && n.another > now-pool.UnseenMost.Milliseconds() && n.another <= now {
		n.whole, n.unsureAt = false, now
	}
	n.beat, n.beatAt, n.wasShared = hb, now, n.shared(now)
	n.noteUse()
	for _, p := range n.pods {
		if _, ok := hb.Pods[p.name]; ok && !n.shared(now) {
			continue
		}
		if p.idle != nil {
			n.wake(now, p)
			continue
		}
		for _, of := range volumes {
			n.forfeit(p, of)
		}
		for _, b := range n.in(p.name) {
			n.giveBack(b)
		}
	}
	for _, p := range n.pods {
		n.keepFloor(p)
	}
	if hb.Whole && hb.Epoch == n.epoch && !n.whole {
		// Invocations that began before the epoch, or that another version was told of, may still run in them.
		for pod := range hb.Pods {
			n.noteComputing(now, pod, n.unsureAt)
			if p := n.pods[pod]; p != nil {
				n.settle(now, p)
			}
		}
		n.whole = true
	}
	n.lapseUnseen(now)
	if since := hb.RestedAt.UnixMilli(); hb.Epoch == n.epoch && since <= now {
		for _, pod := range hb.Rested {
			n.rest(now, pod, since)
		}
	}
	if n.open(now) {
		n.evenOut(now)
	}
	n.feedAll(now)
	clear(n.raised)
	for _, b := range n.begun {
		if n.borrowed(b).CPUMilli > 0 {
			n.raised[b.Pod] = true
		}
	}
}

func (n *memoryNode) ask(now int64, pod string, milli int64) {
	var domains []string
	for _, b := range n.in(pod) {
		domains = append(domains, b.Domain)
		b.Want.CPUMilli = min(milli, b.WantMostMilli)
		milli -= b.Want.CPUMilli
		n.shrink(b, n.borrowed(b).CPUMilli-b.Want.CPUMilli)
	}
	n.feed(now, domains...)
}

// The pool counts in milliseconds. Rounding never makes a donor last longer than predicted, and
// never asks it to last for less than was wanted. A known CPU time never becomes 0, which means not
// known.

func wholeMillis(d time.Duration) int64 { return d.Milliseconds() }

func ceilMillis(d time.Duration) int64 {
	ms := d.Milliseconds()
	if d > time.Duration(ms)*time.Millisecond {
		ms++
	}
	return ms
}
