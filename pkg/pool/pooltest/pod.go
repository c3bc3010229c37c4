package pooltest

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/pool"
)

// memoryPod is what a pod with invocations in it lends, or one that is an idle donor.
type memoryPod struct {
	name, domain string
	spare        api.Resources // put into the pool and not lent
	idle         *begun        // the last that was in it, of an idle donor, which expires when that does
}

// in are the invocations in a pod, in the order of their Begins.
func (n *memoryNode) in(pod string) []*begun {
	all := slices.SortedFunc(maps.Values(n.begun), func(x, y *begun) int { return cmp.Compare(x.number, y.number) })
	return slices.DeleteFunc(all, func(b *begun) bool { return b.Pod != pod })
}

// join makes b one of its pod's, and says what settle does.
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

// enter has a pod lend in another domain from now on, and ends what it has on loan in the one before.
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

// leave is the opposite. What lapsed may still run.
func (n *memoryNode) leave(now int64, b *begun, how parting) (moved bool) {
	delete(n.begun, b.ID)
	if how == lapsed {
		in := inPod{b.Pod, b.Owner}
		u := n.unseenIn(now, in)
		n.unseen[in] = unseen{u.count + 1, max(u.number, b.Number), max(u.until, now+pool.UnseenMost.Milliseconds())}
	}
	p := n.pods[b.Pod]
	if len(n.in(p.name)) == 0 && how == ended && n.idles(now, b) {
		p.idle, b.expires = b, now+pool.IdleMost.Milliseconds()
	}
	moved = n.settle(now, p)
	n.drop(p)
	return moved
}

// idles says whether the pod of one that was the last in it lends on.
func (n *memoryNode) idles(now int64, b *begun) bool {
	_, takesPart := n.beat.Pods[b.Pod]
	return b.IdleCPUMilli > 0 && n.open(now) && takesPart && !n.suspended(now, b.Function)
}

// wake ends what an idle donor lends, and says what settle does.
func (n *memoryNode) wake(now int64, p *memoryPod) (moved bool) {
	p.idle = nil
	moved = n.settle(now, p)
	n.drop(p)
	return moved
}

// drop forgets a pod that lends nothing any more.
func (n *memoryNode) drop(p *memoryPod) {
	if p.idle == nil && len(n.in(p.name)) == 0 {
		delete(n.pods, p.name)
	}
}

// count takes in what b says of the Others. Begins may arrive in another order than that in
// which they were sent: one that a later one has counted already is unseen no more.
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

// nobody owns the unseen of which no next Begin tells.
const nobody = ""

// noteComputing notes that a pod may compute for a client that went away: once for however many.
func (n *memoryNode) noteComputing(now int64, pod string) {
	in := inPod{pod, nobody}
	n.unseen[in] = unseen{count: 1, until: max(n.unseenIn(now, in).until, now+pool.UnseenMost.Milliseconds())}
	for _, b := range n.in(pod) {
		b.alone = false
	}
}

// hasUnseen says whether there may be more in a pod than what is known.
func (n *memoryNode) hasUnseen(now int64, pod string) bool {
	for in, u := range n.unseen {
		if in.pod == pod && !u.forgotten(now) {
			return true
		}
	}
	return false
}

// lapseUnseen has those lapse that are unseen in pods which may be gone: with nothing known in them, and
// which take no part. Nobody begins anything more there that would tell of them.
func (n *memoryNode) lapseUnseen(now int64) {
	for in, u := range n.unseen {
		if _, takesPart := n.beat.Pods[in.pod]; takesPart || n.pods[in.pod] != nil || u.lapsed() {
			continue
		}
		u.until = now + pool.UnseenMost.Milliseconds()
		n.unseen[in] = u
	}
}

// rest ends what has lapsed in a pod.
func (n *memoryNode) rest(now int64, pod string) {
	maps.DeleteFunc(n.unseen, func(in inPod, u unseen) bool { return in.pod == pod && u.lapsed() })
	if p := n.pods[pod]; p != nil {
		n.settle(now, p)
	}
}

// lapsed says that it is not their owner who told of them last.
func (u unseen) lapsed() bool { return u.until != 0 }

// forgotten says that it is not taken any more that they are there. Those that are for much
// longer than any are were before the clock went back.
func (u unseen) forgotten(now int64) bool {
	return u.lapsed() && (u.until <= now || now+2*pool.UnseenMost.Milliseconds() < u.until)
}

// settle comes after one has joined or left a pod. It ends loans as far as those in it
// need what is on loan, and says whether there is something to lend or a want unmet.
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

// leftOver is what those in a pod leave of what it is owed: what the only one can
// spare, and of several no more than each could and all together do not need.
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
			// Of which it is not known what it needs, it needs all.
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

// owed is what a pod is owed, of which all in it are to say the same.
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

// lendable is the most that a pod may lend, so that it keeps what it must.
func (n *memoryNode) lendable(p *memoryPod) api.Resources {
	// A limit of 0 is none at all.
	least := api.Resources{CPUMilli: 1, MemoryBytes: max(n.beat.Pods[p.name], 1)}
	return n.owed(p).Sub(least).Max(api.Resources{})
}

// expires is the predicted end of the last: until then the pod needs no more than now,
// unless another begins.
func (n *memoryNode) expires(p *memoryPod) (latest int64) {
	if p.idle != nil {
		return p.idle.expires
	}
	for _, b := range n.in(p.name) {
		latest = max(latest, b.expires)
	}
	return latest
}

// donors are the pods of a domain, the last to end first; of all domains when it is "".
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

// takeBack ends so much of what a pod has on loan. The first to end loses it first.
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

// forfeit takes all of a resource that a pod put into the pool out of it, for as long as
// one is in the pod that is now, and returns what was on loan.
func (n *memoryNode) forfeit(p *memoryPod, of func(*api.Resources) *int64) int64 {
	lent := n.lent(p)
	n.takeBack(p, of, *of(&lent))
	*of(&p.spare) = 0
	for _, b := range n.in(p.name) {
		*of(&b.surplus) = 0
	}
	return *of(&lent)
}

// keepFloor ends the loans of memory of a pod when they leave it less than its floor,
// and takes out of the pool what would if it were lent.
func (n *memoryNode) keepFloor(p *memoryPod) {
	room := n.lendable(p).MemoryBytes - n.lent(p).MemoryBytes
	if room < 0 {
		n.forfeit(p, memoryOf)
	} else {
		p.spare.MemoryBytes = min(p.spare.MemoryBytes, room)
	}
}
