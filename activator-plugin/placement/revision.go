package placement

import (
	"cmp"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"libra.dev/libra/pkg/api"
)

// Revision is the pods of one revision, and this activator's requests in them.
type Revision struct {
	slots *Slots
	id    types.NamespacedName

	concurrency atomic.Int64
	// ready is how many pods are ready.
	ready atomic.Int64

	mu    sync.Mutex
	pods  map[string]*pod // by name
	byIP  map[string]*pod
	among activators
	// inFlight is how many requests are in all pods, including those that are gone.
	inFlight int
	changes  uint64 // the slots' changes that were taken in
	// domain is the one that all pods have their views of: a choice compares views of one domain only.
	domain string
	// doubted is until when pods are in doubt; zero when none is.
	doubted time.Time
	// stale says that the candidates no longer match the pods.
	stale bool

	// port is that of the destinations that Knative hands out, and six says that they are IPv6.
	port string
	six  bool

	// mine are this activator's pods.
	mine list
	// sorted is what is kept of those for programs, and kept is how many lists that takes.
	sorted []*Sorted
	kept   int
	// all are the pods that are ready, including those of other activators.
	all []*pod

	// The working memory of a decision is kept here, so that none is allocated for it.
	query Query
	some  []Candidate
	these []*pod // whose candidates some are
	free  func() []Candidate
}

// pod is a pod that the API server has told about, or that only Knative has: then it has no name.
type pod struct {
	Pod
	at       [1 + mostSorted]int // its index in each list, or notMine
	workers  [mostSorters]uint64 // the workers that it belongs to
	target   Target
	nodeID   NodeID
	inFlight int
	view     *View
	source   api.Source
	// doubted says that the pod could not be reached.
	doubted bool
}

const notMine = -1

func newPod() *pod {
	p := &pod{}
	for i := range p.at {
		p.at[i] = notMine
	}
	return p
}

func newRevision(s *Slots, id types.NamespacedName) *Revision {
	r := &Revision{slots: s, id: id, domain: s.domainOf(id.Namespace), among: alone, pods: map[string]*pod{}, byIP: map[string]*pod{}}
	r.free = r.findFree
	return r
}

// HasChoice says whether more than one pod is ready.
func (r *Revision) HasChoice() bool { return r.ready.Load() > 1 }

func (r *Revision) setConcurrency(n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.concurrency.Store(int64(n))
	r.stale = true
}

func (r *Revision) setPod(p Pod) {
	r.mu.Lock()
	defer r.mu.Unlock()
	known := r.pods[p.Name]
	if known != nil && known.Node == p.Node && known.Ready == p.Ready && slices.Equal(known.IPs, p.IPs) {
		return
	}
	if known == nil {
		known = newPod()
	}
	if stray := r.strayAt(p.IPs); stray != nil && known.inFlight == 0 {
		stray.Ready = known.Ready
		r.forgetIPs(known)
		known = stray
	}
	r.pods[p.Name] = known
	r.stale = true
	r.countReady(known.Ready, p.Ready)
	r.forgetIPs(known)
	if known.Node != p.Node {
		r.slots.onNodes.add(known.nodeID, -known.inFlight)
		known.nodeID = NodeIDOf(p.Node)
		r.slots.onNodes.add(known.nodeID, known.inFlight)
		known.view, known.source = r.slots.viewOf(r.domain, p.Node), r.slots.sourceOf(r.id.Namespace, p.Node)
	}
	known.Pod, known.doubted = p, false
	for _, ip := range p.IPs {
		// The API server may still list a pod of a lost node, with an address that another pod has by now.
		if other := r.byIP[ip]; other == nil || !other.Ready || p.Ready {
			r.byIP[ip] = known
		}
	}
}

// strayAt returns the pod at one of the addresses that only Knative has told about yet.
func (r *Revision) strayAt(ips []string) *pod {
	for _, ip := range ips {
		if p := r.byIP[ip]; p != nil && p.Name == "" {
			return p
		}
	}
	return nil
}

func (r *Revision) countReady(was, is bool) {
	switch {
	case is && !was:
		r.ready.Add(1)
	case was && !is:
		r.ready.Add(-1)
	}
}

// forgetIPs removes the pod's addresses, except any that belong to another pod by now. One that another pod has, too, goes
// to that one. The caller holds mu.
func (r *Revision) forgetIPs(p *pod) {
	for _, ip := range p.IPs {
		if r.byIP[ip] != p {
			continue
		}
		delete(r.byIP, ip)
		for _, other := range r.pods {
			if other != p && slices.Contains(other.IPs, ip) && (r.byIP[ip] == nil || other.Ready) {
				r.byIP[ip] = other
			}
		}
	}
}

// removePod removes a pod, and says whether nothing is left.
func (r *Revision) removePod(name string) (empty bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if p := r.pods[name]; p != nil {
		r.forgetIPs(p)
		delete(r.pods, name)
		r.countReady(p.Ready, false)
		r.stale = true
	}
	return len(r.pods) == 0 && r.inFlight == 0
}

func (r *Revision) empty() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.pods) == 0 && r.inFlight == 0
}

// Ask says how to choose a request's pod. Its zero value leaves the choice to Knative.
type Ask struct {
	Policy Policy
	// Program takes precedence over Policy.
	Program Program
	Demand  Demand
	Now     time.Time
	// Order and Forwarded are passed on to the Query.
	Order     uint64
	Forwarded bool
}

// Outcome is what became of Knative's choice.
type Outcome string

const (
	// NotAsked means that the choice was left to Knative.
	NotAsked Outcome = ""
	// Kept means that the policy made the same choice.
	Kept Outcome = "kept"
	// Moved means that the request goes to another pod.
	Moved Outcome = "moved"
	// NoChoice means that no other pod has a free slot, or that this activator has only one pod.
	NoChoice Outcome = "no_choice"
	// NoSlot means that none of this activator's pods has a free slot here although Knative has one: the
	// two do not see the same pods or activators at the moment.
	NoSlot Outcome = "no_slot"
	// Unready means that Knative picked a pod that is not ready here, or not known.
	Unready Outcome = "unready"
	// Refused means that the program allows no pod.
	Refused Outcome = "refused"
)

// Choice is the pod that a request goes to. It holds a slot until it is released.
type Choice struct {
	// Dest is ip:port.
	Dest    string
	Node    string
	Outcome Outcome
	// Over says that the pod now has more requests of this activator than its concurrency.
	Over bool
	// Candidates is how many there were, and Block is the program's block that named the pod.
	Candidates, Block int
	// Coverage is the coverage of the demand before it was debited. Covered says whether it was known.
	Coverage float64
	Covered  bool
	Debited  bool
	// PromisedCPUMilli is how much of the CPU that the request wants its node had for it, on average.
	PromisedCPUMilli int64

	revision *Revision
	pod      *pod
	view     *View
	source   api.Source
}

// Take chooses the pod for a request that Knative sends to dest, as ask says. The caller must release
// the Choice exactly once, when the response has ended. A refused one may be released, too.
func (r *Revision) Take(dest string, ask Ask) Choice {
	c := r.place(dest, ask)
	if c.Outcome == Refused && r.empty() {
		r.slots.forget(r)
	}
	return c
}

func (r *Revision) place(dest string, ask Ask) Choice {
	r.mu.Lock()
	defer r.mu.Unlock()
	host := r.look(dest)
	picked := r.byIP[host]
	if picked == nil {
		picked = newPod()
		picked.IPs = []string{host}
	}
	if ask.Program == nil && ask.Policy == nil {
		return r.take(Choice{Dest: dest}, picked)
	}
	r.slots.useViews(ask.Now)
	r.endDoubts(picked, ask.Now)
	r.query = Query{Revision: r.id, Demand: ask.Demand, Now: ask.Now, Order: ask.Order, Forwarded: ask.Forwarded, slots: r.slots, activators: r.among.count, memory: r.query.memory}
	if r.concurrency.Load() > concentratedUpTo {
		r.query.spreadTo = dest
	}
	switch {
	case !picked.Ready:
		return r.stay(Choice{Dest: dest, Outcome: Unready}, picked, ask)
	case len(r.mine.pods) == 0:
		return r.stay(Choice{Dest: dest, Outcome: NoChoice}, picked, ask)
	case r.mine.free == 0:
		return r.stay(Choice{Dest: dest, Outcome: NoSlot}, picked, ask)
	}
	r.mine.first(picked)
	return r.choose(picked, ask)
}

// look takes in a destination's host and port, and brings the candidates up to date.
func (r *Revision) look(dest string) (host string) {
	host, port, err := net.SplitHostPort(dest)
	if err != nil {
		host = dest
	}
	if six := strings.Contains(host, ":"); r.port != port || r.six != six {
		r.port, r.six, r.stale = port, six, true
	}
	if changes := r.slots.changes.Load(); changes != r.changes {
		r.changes, r.domain = changes, r.slots.domainOf(r.id.Namespace)
		for _, p := range r.pods {
			view, source := r.slots.viewOf(r.domain, p.Node), r.slots.sourceOf(r.id.Namespace, p.Node)
			if view != p.view || source != p.source {
				p.view, p.source, r.stale = view, source, true
			}
		}
	}
	if r.stale {
		r.deal()
	}
	return host
}

// choose presumes that there is a candidate with a free slot, and that Knative's pick comes first if
// it is one.
func (r *Revision) choose(picked *pod, ask Ask) Choice {
	candidates := r.mine.candidates[:r.mine.free]
	c := Choice{Candidates: len(candidates)}
	i := 0
	switch {
	case ask.Program != nil:
		r.query.keeps, r.query.Others = r, len(r.mine.pods) != len(r.all)
		i, c.Block = ask.Program.Place(&r.query, candidates)
		r.query.keeps = nil
	case len(candidates) > 1:
		i = ask.Policy(&r.query, candidates)
	}
	switch {
	case i < 0 && r.query.Others:
		return r.elsewhere(c, ask)
	case i < 0:
		c.Outcome = Refused
		return c
	}
	chosen := r.mine.pods[i]
	switch {
	case chosen != picked:
		c.Outcome = Moved
	case len(candidates) == 1:
		c.Outcome = NoChoice
	default:
		c.Outcome = Kept
	}
	c.Dest = candidates[i].Dest
	return r.take(c, chosen)
}

// stay leaves the request where Knative sends it, if the program allows that.
func (r *Revision) stay(c Choice, picked *pod, ask Ask) Choice {
	c.Candidates = 1
	if ask.Program != nil {
		picked.aim(c.Dest)
		r.some = append(r.some[:0], r.candidate(picked))
		r.query.Others = slices.ContainsFunc(r.all, r.hasRoom)
		var i int
		if i, c.Block = ask.Program.Place(&r.query, r.some); i < 0 {
			return r.elsewhere(c, ask)
		}
	}
	return r.take(c, picked)
}

// take presumes that the query is this request's, if there is one.
func (r *Revision) take(c Choice, p *pod) Choice {
	c.Node, c.revision, c.pod, c.view, c.source = p.Node, r, p, p.view, p.source
	if c.Outcome != NotAsked && r.query.Demand.Accelerable() {
		promised := promiseOf(p.view, p.source, r.query.Demand, r.query.Now)
		c.Covered, c.Coverage, c.PromisedCPUMilli = promised.known, promised.coverage, promised.cpuMilli
		if c.Debited = r.query.debited; c.Debited {
			p.view.Debit(p.source, r.query.Demand, r.query.Now)
		}
	}
	if p.Name == "" {
		r.byIP[p.IPs[0]] = p
	}
	r.inFlight++
	p.inFlight++
	r.slots.onNodes.add(p.nodeID, 1)
	c.Over = int64(p.inFlight) > r.concurrency.Load()
	r.count(p)
	return c
}

// Debit debits a demand from what the node can lend, unless the policy has already done so.
func (c Choice) Debit(d Demand, now time.Time) {
	if !c.Debited && d.Accelerable() {
		c.view.Debit(c.source, d, now)
	}
}

// Release gives the slot back.
func (c Choice) Release() {
	if c.pod == nil {
		return
	}
	if c.revision.release(c.pod) {
		c.revision.slots.forget(c.revision)
	}
}

func (r *Revision) release(p *pod) (empty bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.inFlight--
	p.inFlight--
	r.slots.onNodes.add(p.nodeID, -1)
	r.count(p)
	if p.inFlight == 0 && p.Name == "" {
		r.forgetIPs(p)
	}
	return len(r.pods) == 0 && r.inFlight == 0
}

// count takes in how many requests a pod has, and keeps the pods with a free slot in front.
func (r *Revision) count(p *pod) {
	at := p.at[r.mine.number]
	if at == notMine {
		return
	}
	hasRoom, isFree := r.hasRoom(p), at < r.mine.free
	r.mine.count(p, hasRoom)
	for _, s := range r.sorted {
		switch {
		case hasRoom && !isFree:
			s.count(p, 1)
		case !hasRoom && isFree:
			s.count(p, -1)
		}
		for _, l := range s.lists {
			if l.list != &r.mine && p.at[l.number] != notMine {
				l.count(p, hasRoom)
			}
		}
	}
}

func (r *Revision) hasRoom(p *pod) bool { return int64(p.inFlight) < r.concurrency.Load() }

// deal rebuilds the candidates.
func (r *Revision) deal() {
	r.unsort()
	r.mine.empty()
	r.all = r.takesRequests()
	for _, p := range r.all {
		p.aim(r.destOf(p))
	}
	for _, p := range r.among.share(r.all) {
		if !p.doubted {
			r.mine.add(p, r.candidate(p), r.hasRoom(p))
		}
	}
	r.stale = false
}

// takesRequests returns the pods that are ready, in an order on which all activators agree.
func (r *Revision) takesRequests() []*pod {
	ready := make([]*pod, 0, len(r.pods))
	for _, p := range r.pods {
		if p.Ready && len(p.IPs) > 0 {
			ready = append(ready, p)
		}
	}
	slices.SortFunc(ready, func(a, b *pod) int { return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.Name, b.Name)) })
	return ready
}

func (r *Revision) candidate(p *pod) Candidate {
	c := NewCandidate(&p.target, p.view)
	c.InFlight, c.own = p.inFlight, r.among.owns(c.hash)
	return c
}

// aim sets where the pod's requests go.
func (p *pod) aim(dest string) { p.target = Target{Node: p.Node, Dest: dest, Source: p.source} }

func (r *Revision) destOf(p *pod) string { return net.JoinHostPort(p.address(r.six), r.port) }

// address returns the pod's address of a family, or its only one.
func (p *pod) address(six bool) string {
	for _, ip := range p.IPs {
		if strings.Contains(ip, ":") == six {
			return ip
		}
	}
	return p.IPs[0]
}
