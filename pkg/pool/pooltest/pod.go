package pooltest

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/pool"
)

// memoryPod is a pod that has invocations in it or is an idle donor, and what it lends.
type memoryPod struct {
	name, domain string
	spare        api.Resources // put into the pool and not lent
	idle         *begun        // for an idle donor, the last invocation in it, whose expires is the donor's
}

// in returns the invocations in a pod, in the order of their Begins.
func (n *memoryNode) in(pod string) []*begun {
	all := slices.SortedFunc(maps.Values(n.begun), func(x, y *begun) int { return cmp.Compare(x.number, y.number) })
	return slices.DeleteFunc(all, func(b *begun) bool { return b.Pod != pod })
}

// join adds b to its pod, and says what settle does.
func (n *memoryNode) join(now int64, b *begun) (moved bool) {
	n.begun[b.ID] = b
	n.count(now, b)
	if here := n.in(b.Pod); len(here) > 1 || n.hasUnseen(now, b.Pod) {
		for _, in := range here {
			in.alone = false
		}
	}
	p, ok := n.pods[b.Pod]
	if !ok {
		p = &memoryPod{name: b.Pod, domain: b.Domain}
		n.pods[b.Pod] = p
	}
	if p.domain != b.Domain {
		n.enter(p, b.Domain)
	}
	p.idle = nil
	moved = n.settle(now, p)
	b.mostLent = n.lent(p)
	return moved
}

// enter moves a pod to another domain, and ends its loans in the old one.
func (n *memoryNode) enter(p *memoryPod, domain string) {
	for _, of := range volumes {
		lent := n.lent(p)
		n.takeBack(p, of, *of(&lent))
	}
	p.domain = domain
}

// parting is how an invocation leaves its pod.
type parting int

const (
	ended parting = iota
	endedLate
	lapsed
)

// leave is the opposite of join. An invocation that lapsed may still run.
func (n *memoryNode) leave(now int64, b *begun, how parting) (moved bool) {
	delete(n.begun, b.ID)
	if how == lapsed {
		in := inPod{b.Pod, b.Owner}
		u := n.unseenIn(now, in)
		u.count, u.number = u.count+1, max(u.number, b.Number)
		n.unseen[in] = u.lapsedAt(now, now)
	}
	p := n.pods[b.Pod]
	if len(n.in(p.name)) == 0 && how == ended && n.idles(now, b) {
		p.idle, b.expires = b, now+pool.IdleMost.Milliseconds()
	}
	moved = n.settle(now, p)
	n.drop(p)
	return moved
}

// idles says whether the pod of b, which was the last in it, goes on lending.
func (n *memoryNode) idles(now int64, b *begun) bool {
	_, takesPart := n.beat.Pods[b.Pod]
	return b.IdleCPUMilli > 0 && n.open(now) && takesPart && !n.suspended(now, donors{b.Function, true})
}

// wake ends what an idle donor lends, and says what settle does.
func (n *memoryNode) wake(now int64, p *memoryPod) (moved bool) {
	p.idle = nil
	moved = n.settle(now, p)
	n.drop(p)
	return moved
}

// drop forgets a pod that has no invocation in it and is no idle donor.
func (n *memoryNode) drop(p *memoryPod) {
	if p.idle == nil && len(n.in(p.name)) == 0 {
		delete(n.pods, p.name)
	}
}

// count takes in what b says about the others in its pod. Begins may arrive out of order: an
// invocation that a later Begin has already counted is no longer unseen.
func (n *memoryNode) count(now int64, b *begun) {
	in := inPod{b.Pod, b.Owner}
	u := n.unseenIn(now, in)
	if b.Number < u.number {
		u.count--
	} else {
		u = unseen{count: b.Others, number: b.Number}
		for _, other := range n.in(b.Pod) {
			if other != b && other.Owner == b.Owner && other.Number <= b.Number {
				u.count--
			}
		}
	}
	if u.count > 0 {
		n.unseen[in] = u
	} else {
		delete(n.unseen, in)
	}
}

func (n *memoryNode) unseenIn(now int64, in inPod) unseen {
	if u := n.unseen[in]; !u.forgotten(now) {
		return u
	}
	return unseen{}
}

// nobody owns the unseen invocations that no owner's next Begin reports.
const nobody = ""

// noteComputing notes that something which had begun by a time may go on in a pod, for a client that
// went away or unknown to the pool. It counts as one invocation, however many there are.
func (n *memoryNode) noteComputing(now int64, pod string, by int64) {
	in := inPod{pod, nobody}
	u := n.unseenIn(now, in)
	u.count = 1
	n.unseen[in] = u.lapsedAt(now, by)
	for _, b := range n.in(pod) {
		b.alone = false
	}
}

// hasUnseen says whether a pod may have invocations that the pool does not know.
func (n *memoryNode) hasUnseen(now int64, pod string) bool {
	for in, u := range n.unseen {
		if in.pod == pod && !u.forgotten(now) {
			return true
		}
	}
	return false
}

// lapseUnseen lets unseen invocations lapse in pods that may be gone, which have no known
// invocation and take no part: no Begin there will report them any more.
func (n *memoryNode) lapseUnseen(now int64) {
	for in, u := range n.unseen {
		if _, takesPart := n.beat.Pods[in.pod]; takesPart || n.pods[in.pod] != nil || u.lapsed() {
			continue
		}
		n.unseen[in] = u.lapsedAt(now, now)
	}
}

// rest ends what had lapsed by a time in a pod that has been at rest since.
func (n *memoryNode) rest(now int64, pod string, since int64) {
	for in, u := range n.unseen {
		if in.pod != pod || !u.lapsed() {
			continue
		}
		u.at = min(u.at, now) // the clock may have gone back
		if n.unseen[in] = u; u.at <= since {
			delete(n.unseen, in)
		}
	}
	if p := n.pods[pod]; p != nil {
		n.settle(now, p)
	}
}

// lapsedAt returns what has also lapsed since at, or had begun by then.
func (u unseen) lapsedAt(now, at int64) unseen {
	u.until, u.at = max(u.until, now+pool.UnseenMost.Milliseconds()), max(u.at, at)
	return u
}

// lapsed says whether the unseen invocations have lapsed: their owner was not the last to tell of
// them.
func (u unseen) lapsed() bool { return u.until != 0 }

// forgotten says whether the pool no longer assumes that they are there. A time much further ahead
// than any can be is from before the clock went back.
func (u unseen) forgotten(now int64) bool {
	return u.lapsed() && (u.until <= now || now+2*pool.UnseenMost.Milliseconds() < u.until)
}

// settle runs after an invocation has joined or left a pod. It ends loans as far as the invocations
// in the pod need them back, and says whether there is something to lend or a want unmet.
func (n *memoryNode) settle(now int64, p *memoryPod) (moved bool) {
	left := n.leftOver(now, p)
	for _, of := range volumes {
		lent := n.lent(p)
		if excess := *of(&lent) - *of(&left); excess > 0 {
			n.takeBack(p, of, excess)
			lent, moved = n.lent(p), true
		}
		*of(&p.spare) = *of(&left) - *of(&lent)
	}
	return moved || !p.spare.IsZero()
}

// leftOver returns what the invocations in a pod leave of what it is owed: what a single one can
// spare, and with several, no more than each of them can spare and than all together do not need.
func (n *memoryNode) leftOver(now int64, p *memoryPod) api.Resources {
	here := n.in(p.name)
	switch {
	case n.hasUnseen(now, p.name):
		return api.Resources{}
	case p.idle != nil:
		return api.Resources{CPUMilli: min(p.idle.IdleCPUMilli, n.lendable(p).CPUMilli)}
	case len(here) == 0:
		return api.Resources{}
	}
	left, needs := here[0].surplus, api.Resources{}
	for _, b := range here {
		if len(here) > max(b.Concurrency, 1) {
			return api.Resources{}
		}
		for _, of := range volumes {
			*of(&left) = min(*of(&left), *of(&b.surplus))
			// An invocation whose need is not known needs its whole allocation.
			*of(&needs) += cmp.Or(*of(&b.Need), *of(&b.Allocation))
		}
	}
	if len(here) > 1 {
		together := n.owed(p).Sub(needs).Max(api.Resources{})
		for _, of := range volumes {
			*of(&left) = min(*of(&left), *of(&together))
		}
	}
	lendable := n.lendable(p)
	for _, of := range volumes {
		*of(&left) = min(*of(&left), *of(&lendable))
	}
	return left
}

// owed returns what a pod is owed. All invocations in it should say the same; the least counts.
func (n *memoryNode) owed(p *memoryPod) api.Resources {
	if p.idle != nil {
		return p.idle.Allocation
	}
	here := n.in(p.name)
	least := here[0].Allocation
	for _, b := range here {
		for _, of := range volumes {
			*of(&least) = min(*of(&least), *of(&b.Allocation))
		}
	}
	return least
}

// lendable returns the most that a pod may lend and still keep what it must.
func (n *memoryNode) lendable(p *memoryPod) api.Resources {
	// A limit of 0 means no limit.
	least := api.Resources{CPUMilli: 1, MemoryBytes: max(n.beat.Pods[p.name], 1)}
	return n.owed(p).Sub(least).Max(api.Resources{})
}

// expires returns the predicted end of the last invocation in a pod: until then the pod needs no
// more than now, unless another begins.
func (n *memoryNode) expires(p *memoryPod) (latest int64) {
	if p.idle != nil {
		return p.idle.expires
	}
	for _, b := range n.in(p.name) {
		latest = max(latest, b.expires)
	}
	return latest
}

// donors returns the pods of a domain, or of all domains for "", the last to end first.
func (n *memoryNode) donors(domain string) []*memoryPod {
	all := slices.SortedFunc(maps.Values(n.pods), func(x, y *memoryPod) int {
		return cmp.Or(cmp.Compare(n.expires(y), n.expires(x)), strings.Compare(y.name, x.name))
	})
	return slices.DeleteFunc(all, func(p *memoryPod) bool { return domain != "" && p.domain != domain })
}

func (n *memoryNode) lent(p *memoryPod) (sum api.Resources) {
	for l, volume := range n.loans {
		if l.donor == p {
			sum = sum.Add(volume)
		}
	}
	return sum
}

// lend raises the loan from a pod to a borrower; a negative amount lowers it.
func (n *memoryNode) lend(p *memoryPod, b *begun, of func(*api.Resources) *int64, amount int64) {
	l := n.loans[loan{p, b}]
	if *of(&l) += amount; l.IsZero() {
		delete(n.loans, loan{p, b})
	} else {
		n.loans[loan{p, b}] = l
	}
	*of(&p.spare) -= amount
	for _, here := range n.in(p.name) {
		here.mostLent = here.mostLent.Max(n.lent(p))
	}
	b.mostBorrowed = b.mostBorrowed.Max(n.borrowed(b))
	if n.borrowed(b).CPUMilli > 0 {
		n.raised[b.Pod] = true
	}
}

// takeBack ends the given amount of a pod's loans. The borrower that ends first loses its loan
// first.
func (n *memoryNode) takeBack(p *memoryPod, of func(*api.Resources) *int64, amount int64) {
	for _, b := range slices.Backward(slices.SortedFunc(maps.Values(n.begun), latestFirst)) {
		l := n.loans[loan{p, b}]
		back := min(amount, *of(&l))
		amount -= back
		if *of(&l) -= back; l.IsZero() {
			delete(n.loans, loan{p, b})
		} else {
			n.loans[loan{p, b}] = l
		}
	}
}

// forfeit takes all of a resource that a pod put into the pool out again, for as long as any
// invocation that is in the pod now stays there, and returns what was on loan.
func (n *memoryNode) forfeit(p *memoryPod, of func(*api.Resources) *int64) int64 {
	lent := n.lent(p)
	n.takeBack(p, of, *of(&lent))
	*of(&p.spare) = 0
	for _, b := range n.in(p.name) {
		*of(&b.surplus) = 0
	}
	return *of(&lent)
}

// keepFloor ends a pod's loans of memory when they leave it less than its floor, and takes out of
// the pool what would leave it less if it were lent.
func (n *memoryNode) keepFloor(p *memoryPod) {
	room := n.lendable(p).MemoryBytes - n.lent(p).MemoryBytes
	if room < 0 {
		n.forfeit(p, memoryOf)
	} else {
		p.spare.MemoryBytes = min(p.spare.MemoryBytes, room)
	}
}
