package pool

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"libra.dev/libra/pkg/api"
)

// memoryNode is the pool of one node, as the library in lua has it in Redis. Times are
// in milliseconds, as in Redis.
type memoryNode struct {
	epoch      string
	beat       Heartbeat
	beatAt     int64             // when beat came
	leases     map[string]int64  // when an owner last renewed
	tombstones map[string]int64  // until when an end stands, by invocation
	begun      map[string]*begun // by invocation
	begins     int               // so far
	loans      map[loan]api.Resources
	struck     map[string]*[2]strikes // by function, for each of volumes
}

type begun struct {
	Invocation
	number                 int // of its Begin
	expires                int64
	alone, safeguarded     bool
	spare                  api.Resources // put into the pool and not lent
	mostLent, mostBorrowed api.Resources
}

type loan struct {
	donor, borrower *begun
}

// strikes are those of the safeguard against one resource of a function.
type strikes struct {
	count int
	until int64 // lending is suspended
}

// volumes are the resources, each of which is lent by itself.
var volumes = []func(*api.Resources) *int64{
	func(r *api.Resources) *int64 { return &r.CPUMilli },
	func(r *api.Resources) *int64 { return &r.MemoryBytes },
}

func newMemoryNode(epoch string) *memoryNode {
	return &memoryNode{
		epoch:      epoch,
		leases:     make(map[string]int64),
		tombstones: make(map[string]int64),
		begun:      make(map[string]*begun),
		loans:      make(map[loan]api.Resources),
		struck:     make(map[string]*[2]strikes),
	}
}

func (n *memoryNode) begin(now int64, inv Invocation) api.Resources {
	n.lapse(now, inv.Owner)
	if n.tombstones[inv.ID] > now {
		return api.Resources{}
	}
	if b, ok := n.begun[inv.ID]; ok {
		_, borrowed := n.balance(b)
		return borrowed
	}

	// A lease that would not last until its owner's next Renew.
	if renewed, ok := n.leases[inv.Owner]; !ok || now-renewed >= renewEvery.Milliseconds() || now < renewed {
		n.leases[inv.Owner] = now
	}

	n.begins++
	b := &begun{Invocation: inv, number: n.begins, expires: now + wholeMillis(inv.Duration), alone: true}
	freed := false
	for _, other := range n.begun {
		if other.Pod == b.Pod {
			freed = n.withdraw(other) || freed
			other.alone, b.alone = false, false
		}
	}
	n.begun[b.ID] = b

	if n.open(now) {
		n.take(now, b)
		n.put(now, b)
	}
	if freed || !b.spare.IsZero() {
		n.feed(now, b.Domain)
	}
	_, borrowed := n.balance(b)
	return borrowed
}

// heard says whether the last heartbeat counts. One from ahead of now came before
// the clock went back.
func (n *memoryNode) heard(now int64) bool {
	return n.beatAt <= now && now < n.beatAt+LeaseTTL.Milliseconds()
}

// open says whether the node lends.
func (n *memoryNode) open(now int64) bool {
	return n.heard(now) && n.beat.Whole && n.beat.Epoch == n.epoch
}

// put puts the surplus of b into the pool, as far as b may lend it.
func (n *memoryNode) put(now int64, b *begun) {
	if _, ok := n.beat.Pods[b.Pod]; !ok || !b.alone {
		return
	}
	lendable := n.lendable(b)
	for i, of := range volumes {
		if !n.suspended(now, b.Function, i) {
			*of(&b.spare) = min(*of(&b.Surplus), *of(&lendable))
		}
	}
}

// lendable is the most that b may lend, so that its pod keeps what it must.
func (n *memoryNode) lendable(b *begun) api.Resources {
	// A limit of 0 is none at all.
	least := api.Resources{CPUMilli: 1, MemoryBytes: max(n.beat.Pods[b.Pod], 1)}
	return b.Allocation.Sub(least).Max(api.Resources{})
}

// take lends b what it still wants, from the donors that last as long as it needs.
func (n *memoryNode) take(now int64, b *begun) {
	if _, ok := n.beat.Pods[b.Pod]; !ok {
		return
	}
	_, borrowed := n.balance(b)
	room := n.beat.Lendable.Sub(n.onLoan())
	for _, of := range volumes {
		want := min(*of(&b.Want)-*of(&borrowed), *of(&room))
		for _, d := range n.latestFirst(b.Domain) {
			// A donor is the only one in its pod: only b itself is to be left out.
			if d == b || d.expires < now+b.leastRemaining() {
				continue
			}
			amount := min(want, *of(&d.spare))
			if amount <= 0 {
				continue
			}
			l := n.loans[loan{d, b}]
			*of(&l) += amount
			n.loans[loan{d, b}] = l
			*of(&d.spare) -= amount
			want -= amount

			lent, _ := n.balance(d)
			d.mostLent = d.mostLent.Max(lent)
		}
	}
	_, borrowed = n.balance(b)
	b.mostBorrowed = b.mostBorrowed.Max(borrowed)
}

// feed comes after all that may leave surplus in the pool or a want unmet. Those of
// the domains who want more take it, the last to end first. What may be on loan may
// not be enough for all, so the order of the domains is their names'.
func (n *memoryNode) feed(now int64, domains ...string) {
	if !n.open(now) {
		return
	}
	slices.Sort(domains)
	for _, domain := range slices.Compact(domains) {
		for _, b := range n.latestFirst(domain) {
			if b.expires >= now+b.leastRemaining() {
				n.take(now, b)
			}
		}
	}
}

func (n *memoryNode) feedAll(now int64) {
	var domains []string
	for _, b := range n.begun {
		domains = append(domains, b.Domain)
	}
	n.feed(now, domains...)
}

// latestFirst are the domain's invocations, the last to end first.
func (n *memoryNode) latestFirst(domain string) []*begun {
	all := slices.SortedFunc(maps.Values(n.begun), latestFirst)
	return slices.DeleteFunc(all, func(b *begun) bool { return b.Domain != domain })
}

// latestFirst orders by predicted end, and what ends at the same moment by ID.
func latestFirst(x, y *begun) int {
	return cmp.Or(cmp.Compare(y.expires, x.expires), strings.Compare(y.ID, x.ID))
}

func (b *begun) leastRemaining() int64 { return max(ceilMillis(b.MinRemaining), 1) }

func (n *memoryNode) balance(b *begun) (lent, borrowed api.Resources) {
	for l, volume := range n.loans {
		if l.donor == b {
			lent = lent.Add(volume)
		}
		if l.borrower == b {
			borrowed = borrowed.Add(volume)
		}
	}
	return lent, borrowed
}

func (n *memoryNode) onLoan() (sum api.Resources) {
	for _, volume := range n.loans {
		sum = sum.Add(volume)
	}
	return sum
}

// withdraw takes all that b put into the pool out of it, lent or not, and says
// whether any was on loan.
func (n *memoryNode) withdraw(b *begun) (freed bool) {
	for _, of := range volumes {
		_, lent := n.withdrawVolume(b, of)
		freed = freed || lent > 0
	}
	return freed
}

// withdrawVolume withdraws one resource, and returns what was put in and what of it
// was on loan.
func (n *memoryNode) withdrawVolume(b *begun, of func(*api.Resources) *int64) (put, lent int64) {
	for l, volume := range n.loans {
		if l.donor != b {
			continue
		}
		lent += *of(&volume)
		*of(&volume) = 0
		n.loans[l] = volume
		if volume.IsZero() {
			delete(n.loans, l)
		}
	}
	put = lent + *of(&b.spare)
	*of(&b.spare) = 0
	return put, lent
}

// giveBack ends what b has borrowed, and says whether it had.
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

// release ends b, and says whether a loan ended with it.
func (n *memoryNode) release(now int64, b *begun) (freed bool) {
	freed = n.withdraw(b)
	freed = n.giveBack(b) || freed
	delete(n.begun, b.ID)
	n.bury(now, b.ID)
	return freed
}

// bury lets an end stand for one lease time, whatever was known of the
// invocation: a Begin that arrives late or twice must not bring it to life with
// nobody to end it. The library in lua says why that is long enough.
func (n *memoryNode) bury(now int64, id string) {
	n.forget(now)
	n.tombstones[id] = now + LeaseTTL.Milliseconds()
}

func (n *memoryNode) forget(now int64) {
	maps.DeleteFunc(n.tombstones, func(_ string, until int64) bool { return until <= now })
	maps.DeleteFunc(n.struck, func(_ string, s *[2]strikes) bool { return s[0].forgotten(now) && s[1].forgotten(now) })
}

func (n *memoryNode) reap(now int64) {
	for owner, renewed := range n.leases {
		if renewed > now {
			// The clock went back: without this the lease would last as long as that.
			n.leases[owner] = now
		}
	}
	n.lapse(now, slices.Collect(maps.Keys(n.leases))...)
}

// lapse ends what the owners have whose leases have run out. It comes before
// anything that renews a lease: what has run out in an outage must not come back
// to life after it.
func (n *memoryNode) lapse(now int64, owners ...string) {
	var domains []string
	for _, owner := range owners {
		renewed, ok := n.leases[owner]
		if !ok || renewed+LeaseTTL.Milliseconds() > now {
			continue
		}
		delete(n.leases, owner)
		for _, b := range n.begun {
			if b.Owner == owner && n.release(now, b) {
				domains = append(domains, b.Domain)
			}
		}
	}
	n.feed(now, domains...)
}

func (n *memoryNode) heartbeat(now int64, hb Heartbeat) {
	hb.Pods = maps.Clone(hb.Pods)
	n.beat, n.beatAt = hb, now
	for _, b := range n.begun {
		if _, ok := hb.Pods[b.Pod]; !ok {
			n.withdraw(b)
			n.giveBack(b)
		}
	}
	for _, b := range n.begun {
		n.keepFloor(b)
	}
	n.feedAll(now)
}

// keepFloor ends the loans of memory of b when they leave its pod less than its
// floor, and takes out of the pool what would if it were lent.
func (n *memoryNode) keepFloor(b *begun) {
	lent, _ := n.balance(b)
	room := n.lendable(b).MemoryBytes - lent.MemoryBytes
	if room < 0 {
		n.withdrawVolume(b, volumes[1])
	} else {
		b.spare.MemoryBytes = min(b.spare.MemoryBytes, room)
	}
}

func (n *memoryNode) safeguard(now int64, pod string, named []bool) (revoked api.Resources) {
	for _, b := range n.begun {
		if b.Pod != pod {
			continue
		}
		// At most one in a pod has put anything in.
		found := false
		for i, of := range volumes {
			if !named[i] {
				continue
			}
			if put, lent := n.withdrawVolume(b, of); put > 0 {
				found = true
				*of(&revoked) = lent
				n.strike(now, b.Function, i)
			}
		}
		if found {
			b.safeguarded = true
			n.feed(now, b.Domain)
			break
		}
	}
	return revoked
}

func (n *memoryNode) strike(now int64, function string, volume int) {
	struck, ok := n.struck[function]
	if !ok {
		struck = &[2]strikes{}
		n.struck[function] = struck
	}
	s := &struck[volume]
	if s.forgotten(now) {
		*s = strikes{}
	}
	suspended := SuspendMost
	if s.count < 10 {
		suspended = min(SuspendLeast<<s.count, SuspendMost)
	}
	s.count++
	s.until = now + suspended.Milliseconds()
}

func (n *memoryNode) suspended(now int64, function string, volume int) bool {
	struck, ok := n.struck[function]
	return ok && now < struck[volume].until && !struck[volume].forgotten(now)
}

// forgotten says whether strikes do not count any more. Those that suspend for
// longer than any strike does were before the clock went back.
func (s strikes) forgotten(now int64) bool {
	most := SuspendMost.Milliseconds()
	return s.count == 0 || s.until+most <= now || now+most < s.until
}

func (n *memoryNode) state(now int64) State {
	s := State{Epoch: n.epoch, Open: n.open(now), Pods: make(map[string]Balance), Begun: len(n.begun)}
	if n.heard(now) {
		s.Agent = n.beat.Agent
	}
	for _, b := range slices.SortedFunc(maps.Values(n.begun), latestFirst) {
		if b.expires <= now || b.spare.IsZero() {
			continue
		}
		s.Available = s.Available.Add(b.spare)
		if len(s.Entries) < EntriesMost {
			s.Entries = append(s.Entries, Entry{Domain: b.Domain, Expires: b.expires, Volume: b.spare})
		}
	}
	for _, function := range slices.Sorted(maps.Keys(n.struck)) {
		suspension := Suspension{Function: function}
		for i, until := range []*time.Time{&suspension.CPUUntil, &suspension.MemoryUntil} {
			if n.suspended(now, function, i) {
				*until = time.UnixMilli(n.struck[function][i].until)
			}
		}
		if suspension != (Suspension{Function: function}) {
			s.Suspended = append(s.Suspended, suspension)
		}
	}
	for l, volume := range n.loans {
		donor := s.Pods[l.donor.Pod]
		donor.Lent = donor.Lent.Add(volume)
		s.Pods[l.donor.Pod] = donor

		borrower := s.Pods[l.borrower.Pod]
		borrower.Borrowed = borrower.Borrowed.Add(volume)
		s.Pods[l.borrower.Pod] = borrower
	}
	latest := make(map[string]int)
	for _, b := range n.begun {
		if balance, ok := s.Pods[b.Pod]; ok && b.number > latest[b.Pod] {
			latest[b.Pod] = b.number
			balance.Allocation = b.Allocation
			s.Pods[b.Pod] = balance
		}
	}
	return s
}
