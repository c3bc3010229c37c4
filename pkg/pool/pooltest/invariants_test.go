package pooltest

import (
	"slices"
	"strings"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/pool"
	"libra.dev/libra/pkg/pool/redistest"
)

func (m *model) expectState(t *rapid.T, want pool.State) {
	if diff := cmp.Diff(want, m.state()); diff != "" {
		t.Fatalf("a repeated call changed the state (-before +after):\n%s", diff)
	}
}

func (m *model) checkInvariants(t *rapid.T) {
	n := m.node()

	// Invariant 1: as much is borrowed as is lent, so that the limits add up to the
	// allocations.
	var borrowed, lent api.Resources
	state := m.state()
	for _, b := range state.Pods {
		borrowed, lent = borrowed.Add(b.Borrowed), lent.Add(b.Lent)
	}
	if borrowed != lent {
		t.Fatalf("pods borrowed %v but lent %v", borrowed, lent)
	}
	// Invariant 6: a pod lends only to borrowers, so that a pod without a loan is at its
	// allocation.
	for pod, b := range state.Pods {
		if b.Borrowed.CPUMilli > 0 && !slices.Contains(state.Raised, pod) {
			t.Fatalf("pod %s has borrowed %v and is not among those that may be raised, %v", pod, b.Borrowed, state.Raised)
		}
		if b.Borrowed.IsZero() && b.Lent.IsZero() && b.Short == 0 {
			t.Fatalf("pod %s has a balance without a loan or a want", pod)
		}
	}
	m.checkRaised(t, lent)

	for _, p := range n.pods {
		m.checkPod(t, p)
	}
	m.checkUnseen(t)
	for id, b := range n.begun {
		borrowed := n.borrowed(b)
		if n.pods[b.Pod] == nil {
			t.Fatalf("%s is in pod %s, of which nothing is known", id, b.Pod)
		}
		if _, takesPart := n.beat.Pods[b.Pod]; !takesPart && !borrowed.IsZero() {
			t.Fatalf("%s borrowed %v, and its pod takes no part", id, borrowed)
		}
		if borrowed.Max(b.Want) != b.Want {
			t.Fatalf("%s borrowed %v and wanted %v", id, borrowed, b.Want)
		}
		if min(borrowed.CPUMilli, borrowed.MemoryBytes) < 0 {
			t.Fatalf("%s borrowed %v: less than nothing", id, borrowed)
		}
		if b.alone && len(n.in(b.Pod)) > 1 {
			t.Fatalf("%s is alone, as one of %d in its pod", id, len(n.in(b.Pod)))
		}
	}
	for l := range n.loans {
		if l.donor.domain != l.borrower.Domain {
			t.Fatalf("%s of %s lent to %s of %s", l.donor.name, l.donor.domain, l.borrower.ID, l.borrower.Domain)
		}
		if l.donor.name == l.borrower.Pod {
			t.Fatalf("%s was lent to within its pod %s", l.borrower.ID, l.donor.name)
		}
		if n.pods[l.donor.name] != l.donor || n.begun[l.borrower.ID] != l.borrower {
			t.Fatalf("%s lends to %s, but one of them has ended", l.donor.name, l.borrower.ID)
		}
	}
}

// checkPod checks what a pod has in the pool.
func (m *model) checkPod(t *rapid.T, p *memoryPod) {
	n := m.node()
	here, put := n.in(p.name), n.lent(p).Add(p.spare)
	if idle := p.idle != nil; idle != (len(here) == 0) {
		t.Fatalf("pod %s is known, idle: %t, and %d are in it", p.name, idle, len(here))
	}
	if b := p.idle; b != nil {
		if put.CPUMilli > b.IdleCPUMilli || put.CPUMilli > 0 && put.CPUMilli >= b.Allocation.CPUMilli || put.MemoryBytes != 0 {
			t.Fatalf("%s idles with %v in the pool: %s left it %dm of %v", p.name, put, b.ID, b.IdleCPUMilli, b.Allocation)
		}
		if _, leased := n.leases[b.Owner]; !leased {
			t.Fatalf("%s idles, and %s has no lease", p.name, b.Owner)
		}
	}
	if min(p.spare.CPUMilli, p.spare.MemoryBytes) < 0 {
		t.Fatalf("%s has spare %v: less than nothing", p.name, p.spare)
	}
	var needs api.Resources
	for _, b := range here {
		// Invariant 2: nothing is lent beyond what its donor put in.
		if put.Max(b.Surplus) != b.Surplus {
			t.Fatalf("%s has %v in the pool, and %s a surplus of %v", p.name, put, b.ID, b.Surplus)
		}
		if len(here) > max(b.Concurrency, 1) && !put.IsZero() {
			t.Fatalf("%s has %v in the pool and %d invocations in it, of %d that it takes", p.name, put, len(here), b.Concurrency)
		}
		for _, of := range volumes {
			if *of(&b.Need) == 0 && *of(&put) > 0 && len(here) > 1 {
				t.Fatalf("%s has %v in the pool, and nobody knows what %s needs", p.name, put, b.ID)
			}
		}
		needs = needs.Add(b.Need)
	}
	floor, takesPart := n.beat.Pods[p.name]
	if !takesPart && !put.IsZero() {
		t.Fatalf("%s has %v in the pool and takes no part", p.name, put)
	}
	least := api.Resources{CPUMilli: 1, MemoryBytes: max(floor, 1)}
	for _, b := range here {
		left := b.Allocation.Sub(put)
		for _, of := range volumes {
			// Invariants 4 and 8: a pod keeps its floor, something of everything it is owed, and
			// what its invocations need together.
			if *of(&put) > 0 && (*of(&left) < *of(&least) || len(here) > 1 && *of(&left) < *of(&needs)) {
				t.Fatalf("%s has %v in the pool of %v, and is to keep %v and what those in it need, %v", p.name, put, b.Allocation, least, needs)
			}
		}
	}
}

// checkBegun checks what a Begin did for the invocation itself.
func (m *model) checkBegun(t *rapid.T, b *begun) {
	n, now := m.node(), m.nowMillis()
	borrowed, before := n.borrowed(b), m.put[b.Pod]
	put := n.lent(n.pods[b.Pod]).Add(n.pods[b.Pod].spare)
	if !n.open(now) && !(borrowed.IsZero() && put.IsZero()) {
		t.Fatalf("a node that is not open lent %v and took %v", borrowed, put)
	}
	// Another invocation never lets its pod lend more, unless the floor has fallen meanwhile or its
	// Begin reports fewer that the pool does not know.
	if len(n.in(b.Pod)) > 1 && !m.hadUnseen[b.Pod] && put.CPUMilli > before.CPUMilli {
		t.Fatalf("pod %s had %v in the pool, and %v once %s was in it, too", b.Pod, before, put, b.ID)
	}
	// Invariant 4: after a strike, a function's donors in flight lend no CPU for a while.
	if n.suspended(now, donors{b.Function, false}) && put.CPUMilli > 0 {
		t.Fatalf("%s is suspended, and %s put in %v", b.Function, b.ID, put)
	}
	if !put.IsZero() {
		m.checkFed(t, b.Domain)
	}
}

// checkRaised checks the pool's part of invariant 9: no call raises loans above what may be lent.
func (m *model) checkRaised(t *rapid.T, onLoan api.Resources) {
	n, was := m.node(), m.onLoan
	m.onLoan = map[string]api.Resources{}
	for _, domain := range append([]string{""}, domains...) {
		m.onLoan[domain] = n.onLoan(domain)
	}
	if m.begunIn != anyDomain {
		m.checkFair(t, was)
	}
	m.begunIn = ""
	before, now := was[""], m.onLoan[""]
	if now != onLoan {
		t.Fatalf("%v is on loan, and pods have lent %v", now, onLoan)
	}
	lendable := m.node().beat.Lendable
	if n.shared(m.nowMillis()) && now.Max(before) != before {
		t.Fatalf("%v came to be on loan, and another version has invocations on the node", now)
	}
	for _, of := range volumes {
		if *of(&now) > *of(&before) && *of(&now) > *of(&lendable) {
			t.Fatalf("%v came to be on loan, of %v that may be", now, lendable)
		}
	}
}

// anyDomain stands for all domains that an operation changes when it ends invocations and then
// begins one.
const anyDomain = "any"

// checkFair checks that no call raises what a domain has on loan above its part while other domains
// want some and have surplus for it. An invocation that the call begins does not want anything yet
// when the call lends out what has lapsed.
func (m *model) checkFair(t *rapid.T, was map[string]api.Resources) {
	n, now := m.node(), m.nowMillis()
	for domain, is := range m.onLoan {
		before := was[domain]
		for _, of := range volumes {
			if domain == "" || *of(&is) <= *of(&before) {
				continue
			}
			claims := map[string]bool{domain: true}
			for _, b := range n.begun {
				if b.Domain != m.begunIn && n.claims(now, b, of) {
					claims[b.Domain] = true
				}
			}
			if part := *of(&n.beat.Lendable) / int64(len(claims)); len(claims) > 1 && *of(&is) > part {
				t.Fatalf("%s came to have %d on loan, and a part among %d is %d", domain, *of(&is), len(claims), part)
			}
		}
	}
}

// checkEven checks, after a heartbeat, that no domain has more CPU on loan than one that still
// wants some and could get it, except for the rounding of parts.
func (m *model) checkEven(t *rapid.T) {
	n, now := m.node(), m.nowMillis()
	if !n.open(now) {
		return
	}
	count := int64(len(domains))
	for domain := range n.claiming(now, cpuOf) {
		own := n.onLoan(domain).CPUMilli
		for _, other := range domains {
			if has := n.onLoan(other).CPUMilli; has > own+count && own < n.beat.Lendable.CPUMilli/count {
				t.Fatalf("after a heartbeat %s has %dm on loan and %s, which wants more, %dm of %v", other, has, domain, own, n.beat.Lendable)
			}
		}
	}
}

// checkFed checks, after a change in a domain, that nobody goes without what others could lend.
func (m *model) checkFed(t *rapid.T, domain string) {
	n, now := m.node(), m.nowMillis()
	if !n.open(now) {
		return
	}
	for _, b := range n.begun {
		if _, ok := n.beat.Pods[b.Pod]; !ok {
			continue
		}
		borrowed := n.borrowed(b)
		for _, d := range n.donors(domain) {
			until := now + b.leastRemaining()
			if b.Pod == d.name || b.Domain != domain || !b.pays(now) || n.expires(d) < until {
				continue
			}
			for _, of := range volumes {
				if *of(&borrowed) < *of(&b.Want) && *of(&d.spare) > 0 && n.room(now, domain, of) > 0 {
					t.Fatalf("%s wants %v and borrowed %v, while %s has %v to spare", b.ID, b.Want, borrowed, d.name, d.spare)
				}
			}
		}
	}
}

// expectTold checks that the last operation told everything that it did, exactly once. It appends
// one intent with the pods whose balances differ from before, those in which a ranked invocation
// has lapsed, the named ones, and the pod of a ranked invocation that has begun. If the last would
// be the only one, it tells the Begin by itself, after the Ends.
func (m *model) expectTold(t *rapid.T, before moment, named ...string) {
	pods, begun := append(changed(before.Pods, m.state().Pods), named...), []pool.Begun(nil)
	now := m.ranked()
	for id, b := range before.ranked {
		if now[id] == nil {
			pods = append(pods, b.Pod)
		}
	}
	for id, b := range now {
		if before.ranked[id] == nil {
			begun = append(begun, pool.Begun{ID: id, Pod: b.Pod, CPUTime: time.Duration(ceilMillis(b.CPUTime)) * time.Millisecond})
		}
	}
	if len(pods) > 0 {
		for _, b := range begun {
			pods = append(pods, b.Pod)
		}
		begun = nil
	}
	slices.Sort(pods)
	pods = slices.Compact(pods)

	var toldPods []string
	intents, events := m.told(t)
	if len(intents) > 1 {
		t.Fatalf("%d intents of one operation: %v", len(intents), intents)
	}
	for _, entry := range intents {
		toldPods = strings.Split(entry.Values["pods"].(string), "\n")
	}
	if diff := cmp.Diff(pods, toldPods, cmpopts.SortSlices(strings.Compare), cmpopts.EquateEmpty()); diff != "" {
		t.Fatalf("intents differ from the pods that changed (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(begun, events.Begun, cmpopts.IgnoreFields(pool.Begun{}, "At")); diff != "" {
		t.Fatalf("what is ranked and has begun is not what is told (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(before.ended, events.Ended); diff != "" {
		t.Fatalf("ended records differ (-want +got):\n%s", diff)
	}
}

// changed returns the pods whose loans have changed, or that have become or stopped being idle
// donors with loans.
func changed(before, after map[string]pool.Balance) (pods []string) {
	for pod, is := range after {
		if was, ok := before[pod]; was.Borrowed != is.Borrowed || was.Lent != is.Lent || ok && was.Idle != is.Idle {
			pods = append(pods, pod)
		}
	}
	for pod, was := range before {
		if _, ok := after[pod]; !ok && !(was.Borrowed.IsZero() && was.Lent.IsZero()) {
			pods = append(pods, pod)
		}
	}
	return pods
}

// short returns the pod that an intent must name for a new invocation: its own, when it wants
// memory that nobody lends it.
func (m *model) short(id string, known *begun) (pods []string) {
	if b := m.node().begun[id]; b != nil && b != known && b.Want.MemoryBytes > m.node().borrowed(b).MemoryBytes {
		pods = append(pods, b.Pod)
	}
	return pods
}

// record returns the one record of the End of a known invocation.
func (b *begun) record(e pool.Ending, o pool.Outcome) []api.Ended {
	if b == nil {
		return nil
	}
	return []api.Ended{{
		ID: b.ID, Function: b.Function, Configuration: b.Configuration,
		Pod: b.Pod, Size: b.Size, Predicted: b.Predicted,
		Duration: e.Duration, Ago: e.Ago, Status: e.Status,
		Alone: o.Alone, Safeguarded: o.Safeguarded, Lent: o.Lent, Borrowed: o.Borrowed,
	}}
}

// checkNothingLeaks checks, on a node on which everything has ended, that what is left expires.
func (m *model) checkNothingLeaks(t *rapid.T) {
	if m.redis == nil {
		return
	}
	ctx := redistest.Context(t)
	keys, err := m.redis.nodeKeys(ctx, m.name)
	if err != nil {
		t.Fatal(err)
	}
	keys = slices.DeleteFunc(keys, func(key string) bool { return key == versionsKey(m.name) }) // where nothing has begun there is none
	if len(keys) != 3 {
		t.Errorf("the node has keys %q, want those of its epoch and its two streams", keys)
	}
	for _, key := range keys {
		ttl, err := m.redis.client.PTTL(ctx, key).Result()
		if err != nil {
			t.Fatal(err)
		}
		if ttl <= 0 {
			t.Errorf("key %s never expires", key)
		}
	}
}
