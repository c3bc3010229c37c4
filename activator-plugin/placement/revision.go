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

// Revision are the pods of one.
type Revision struct {
	slots *Slots
	id    types.NamespacedName

	concurrency atomic.Int64
	// ready counts the pods that are.
	ready atomic.Int64

	mu    sync.Mutex
	pods  map[string]*pod // by name
	byIP  map[string]*pod
	among activators
	// inFlight are the requests in all pods, those that are gone included.
	inFlight int
	changes  uint64 // of sources, that were taken in
	// doubted is until when pods are; zero when none is.
	doubted time.Time
	// stale says that the candidates are not those of the pods any more.
	stale bool

	// port is that of the destinations that Knative hands out, and six says that they are of IPv6.
	port string
	six  bool

	// mine are the pods of this activator.
	mine list
	// sorted is what is kept of them for programs, in so many lists.
	sorted []*Sorted
	kept   int
	// all are the pods that are ready, also of other activators.
	all []*pod

	// What a decision needs is here, so that nothing is allocated for it.
	query Query
	some  []Candidate
	these []*pod // which the some are
	free  func() []Candidate
}

// pod is one that the API server has told of, or only Knative: then it has no name.
type pod struct {
	Pod
	at       [1 + mostSorted]int // in each list, or notMine
	workers  [mostSorters]uint64 // that it is of
	dest     string              // ip:port
	nodeID   NodeID
	inFlight int
	view     *View
	source   api.Source
	// doubted says that it could not be reached.
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
	r := &Revision{slots: s, id: id, among: alone, pods: map[string]*pod{}, byIP: map[string]*pod{}}
	r.free = r.findFree
	return r
}

// HasChoice says whether it has more than one pod that is ready.
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
		known.view, known.source = r.slots.viewOf(r.id.Namespace, p.Node), r.slots.sourceOf(r.id.Namespace, p.Node)
	}
	known.Pod, known.doubted = p, false
	for _, ip := range p.IPs {
		// A pod of a lost node may be told of still, by an address that another has by now.
		if other := r.byIP[ip]; other == nil || !other.Ready || p.Ready {
			r.byIP[ip] = known
		}
	}
}

// strayAt is the pod of which only Knative has told yet, at one of the addresses.
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

// forgetIPs presumes that mu is held. An address may be another pod's by now.
func (r *Revision) forgetIPs(p *pod) {
	for _, ip := range p.IPs {
		if r.byIP[ip] == p {
			delete(r.byIP, ip)
		}
	}
}

// removePod says whether nothing is left.
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

// Ask is how a request's pod is to be chosen. Its zero value leaves it to Knative.
type Ask struct {
	Policy Policy
	// Program comes before the policy.
	Program Program
	Demand  Demand
	Now     time.Time
	// Order and Forwarded are the query's.
	Order     uint64
	Forwarded bool
}

// Outcome is what became of Knative's choice.
type Outcome string

const (
	// NotAsked says that it was left to Knative.
	NotAsked Outcome = ""
	// Kept says that the policy made the same.
	Kept Outcome = "kept"
	// Moved says that the request goes to another pod.
	Moved Outcome = "moved"
	// NoChoice says that no other pod has a free slot, or that this activator has one pod only.
	NoChoice Outcome = "no_choice"
	// NoSlot says that none of this activator's pods has a free slot here, where Knative has one: the two
	// do not see the same pods or activators at the moment.
	NoSlot Outcome = "no_slot"
	// Unready says that Knative has a pod that is not ready here, or not known.
	Unready Outcome = "unready"
	// Refused says that the program leaves no pod.
	Refused Outcome = "refused"
)

// Choice is the pod that a request goes to. It takes a slot until it is released.
type Choice struct {
	// Dest is ip:port.
	Dest    string
	Node    string
	Outcome Outcome
	// Over says that the pod has more than its concurrency of this activator now.
	Over bool
	// Candidates are how many there were, and Block which of the program named it.
	Candidates, Block int
	// Coverage is that of the demand before it was debited, if anything was known of the node.
	Coverage float64
	Covered  bool
	Debited  bool
	// PromisedCPUMilli is how much of the CPU that it wants its node had for it, on average.
	PromisedCPUMilli int64

	revision *Revision
	pod      *pod
	view     *View
	source   api.Source
}

// Take has a request that Knative sends to dest go where it is asked to. The choice is to be
// released, exactly once, when the response has ended; that of one that is refused may be.
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
	r.endDoubts(picked, ask.Now)
	r.query = Query{Revision: r.id, Demand: ask.Demand, Now: ask.Now, Order: ask.Order, Forwarded: ask.Forwarded, slots: r.slots, activators: r.among.count}
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

// look takes in what a destination says, and brings the candidates up to date.
func (r *Revision) look(dest string) (host string) {
	host, port, err := net.SplitHostPort(dest)
	if err != nil {
		host = dest
	}
	if six := strings.Contains(host, ":"); r.port != port || r.six != six {
		r.port, r.six, r.stale = port, six, true
	}
	if changes := r.slots.changes.Load(); changes != r.changes {
		r.changes = changes
		for _, p := range r.pods {
			view, source := r.slots.viewOf(r.id.Namespace, p.Node), r.slots.sourceOf(r.id.Namespace, p.Node)
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

// choose presumes a candidate with a free slot, and that Knative's is the first if it is one.
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
		r.some = append(r.some[:0], r.candidate(picked, c.Dest))
		r.query.Others = slices.ContainsFunc(r.all, r.hasRoom)
		var i int
		if i, c.Block = ask.Program.Place(&r.query, r.some); i < 0 {
			return r.elsewhere(c, ask)
		}
	}
	return r.take(c, picked)
}

// take presumes that the query is that of the request, if there was one.
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

// Debit takes a demand off what the node can lend, unless the policy has done so.
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

// count takes in how many requests a pod has, and keeps those with a free slot in front.
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

// deal makes the candidates anew.
func (r *Revision) deal() {
	r.unsort()
	r.mine.empty()
	r.all = r.takesRequests()
	for _, p := range r.all {
		p.dest = r.destOf(p)
	}
	for _, p := range r.among.share(r.all) {
		if !p.doubted {
			r.mine.add(p, r.candidate(p, p.dest), r.hasRoom(p))
		}
	}
	r.stale = false
}

// takesRequests are the pods that are ready, in an order on which all activators agree.
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

func (r *Revision) candidate(p *pod, dest string) Candidate {
	return Candidate{
		Dest: dest, Pod: p.Name, Node: p.Node, NodeID: p.nodeID, InFlight: p.inFlight,
		Source: p.source, View: p.view, slots: p.view.slotsOf(p.source), own: r.among.owns(p.Node),
	}
}

func (r *Revision) destOf(p *pod) string { return net.JoinHostPort(p.address(r.six), r.port) }

// address is that of a family, or the only one.
func (p *pod) address(six bool) string {
	for _, ip := range p.IPs {
		if strings.Contains(ip, ":") == six {
			return ip
		}
	}
	return p.IPs[0]
}
