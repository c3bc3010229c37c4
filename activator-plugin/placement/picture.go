package placement

import (
	"context"
	"iter"
	"sync"
	"sync/atomic"
	"time"
	"weak"

	"go.opentelemetry.io/otel/metric"
	"go.uber.org/zap"
	"k8s.io/utils/clock"

	"libra.dev/libra/pkg/pool"
)

const (
	// refreshEvery is how often the picture is refreshed, give or take refreshJitter, so that activators that
	// started together do not ask together.
	refreshEvery  = 100 * time.Millisecond
	refreshJitter = refreshEvery / 10
	// After a refresh that fails, the wait doubles each time, up to mostBackoff.
	mostBackoff = 2 * time.Second
	// refreshTimeout bounds a refresh. When one Redis of several hangs, it also bounds how much older the others' part
	// of the picture gets.
	refreshTimeout = 500 * time.Millisecond
	// idleAfter is how long after its last use the picture is refreshed less often.
	idleAfter = time.Minute
	// usedEvery is how often a use is noted: a write with every request would take the cache line from all others.
	usedEvery = time.Second

	// A node or Redis that is gone for forgetAfter is forgotten. The picture looks for those every forgetEvery.
	forgetAfter = time.Minute
	forgetEvery = 10 * time.Second
)

// Profiles is where the picture comes from. pool.Redis implements it.
type Profiles interface {
	ReadProfiles(ctx context.Context, since pool.Moments) ([]pool.Changes, error)
}

// PictureOptions are the collaborators of a Picture.
type PictureOptions struct {
	Profiles      Profiles
	Clock         clock.Clock
	Logger        *zap.SugaredLogger
	MeterProvider metric.MeterProvider
}

// Picture is what this activator knows about the pools of all nodes.
type Picture struct {
	profiles Profiles
	clock    clock.Clock
	logger   *zap.SugaredLogger
	metrics  *pictureMetrics
	start    time.Time
	asked    atomic.Int64 // the last refresh to begin
	bounded  atomic.Int64 // the moment from which the bounds hold
	used     atomic.Int64 // the moment of its last use
	woken    chan struct{}
	choosing choosing

	mu        sync.Mutex
	nodes     map[string]*nodeViews
	idle      board             // of nodes
	lent      map[string]*board // by domain
	redis     map[string]*redisPart
	forgotten moment // when forget last looked

	// Only the refresh uses these, and one runs at a time.
	moments pool.Moments
	failing bool
}

// redisPart is one Redis that tells about nodes.
type redisPart struct {
	asked atomic.Int64 // when it was last asked and told everything
}

// nodeViews is what the Views of one node share.
type nodeViews struct {
	picture *Picture
	idle    ledger // its idle CPU
	slot    int32  // in the picture's board

	// The picture's mu guards these.
	heard *heard              // nil while nothing is known
	views map[string]keptView // by domain; their holders keep them alive
}

type keptView struct {
	weak.Pointer[View]
	slot int32
}

// heard is what was last heard about a node.
type heard struct {
	redis    *redisPart
	beat     moment // its last heartbeat
	begun    int
	measured bool // whether it is known how much CPU is in use
	use      Pressure
	unused   profile // CPU
	domains  map[string]pool.DomainProfile

	// now is the pool's time at the moment at.
	now time.Time
	at  moment
}

// moment converts a time of the pool's clock. It presumes that the pool's clock was read when the pool was
// asked, so that nothing is taken to last longer than it does.
func (h *heard) moment(t time.Time) moment { return h.at + moment(t.Sub(h.now)) }

// NewPicture returns a picture that knows nothing until it runs.
func NewPicture(o PictureOptions) (*Picture, error) {
	p := &Picture{
		profiles: o.Profiles,
		clock:    o.Clock,
		logger:   o.Logger,
		start:    o.Clock.Now(),
		woken:    make(chan struct{}, 1),
		nodes:    make(map[string]*nodeViews),
		lent:     make(map[string]*board),
		redis:    make(map[string]*redisPart),
		moments:  make(pool.Moments),
	}
	var err error
	p.metrics, err = newPictureMetrics(o.MeterProvider, p.figures)
	return p, err
}

func (p *Picture) momentOf(t time.Time) moment { return moment(t.Sub(p.start)) }

// View returns what functions of a domain see of a node. Ask for it once and keep it: all callers get the same
// View, which is forgotten when nobody holds it any more.
func (p *Picture) View(node, domain string) *View {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := p.nodeOf(node)
	if kept, ok := n.views[domain]; ok {
		if v := kept.Value(); v != nil {
			return v
		}
	}
	n.drop(domain)
	b := p.lent[domain]
	if b == nil {
		b = &board{}
		p.lent[domain] = b
	}
	v := &View{picture: p, node: n, domain: domain, board: b, slot: b.take()}
	v.lent.cpu, v.lent.memory = b.accounts(v.slot)
	v.see(n.heard)
	n.views[domain] = keptView{weak.Make(v), v.slot}
	return v
}

// nodeOf returns a node, and adds it if it is new. The caller holds mu.
func (p *Picture) nodeOf(name string) *nodeViews {
	n := p.nodes[name]
	if n == nil {
		n = &nodeViews{picture: p, slot: p.idle.take(), views: make(map[string]keptView)}
		n.idle.cpu, n.idle.memory = p.idle.accounts(n.slot)
		p.nodes[name] = n
	}
	return n
}

// Use says that a request is placed by the picture. For idleAfter from then on, the picture is refreshed often.
func (p *Picture) Use(now time.Time) {
	at, last := p.momentOf(now), moment(p.used.Load())
	if at-last < moment(usedEvery) {
		return
	}
	p.used.Store(int64(at))
	if at-last > moment(idleAfter) {
		select {
		case p.woken <- struct{}{}:
		default:
		}
	}
}

func (p *Picture) idleAt(at moment) bool { return at-moment(p.used.Load()) > moment(idleAfter) }

// Run refreshes the picture until ctx is done.
func (p *Picture) Run(ctx context.Context) {
	pace := Pace{Every: refreshEvery, Jitter: refreshJitter, MostBackoff: mostBackoff, Woken: p.woken}
	pace.Idle = func() bool { return p.idleAt(p.momentOf(p.clock.Now())) }
	pace.Repeat(ctx, p.clock, p.refresh, func(err error, took time.Duration) {
		p.metrics.refreshed(err, took)
		p.say(err)
	})
}

// say logs an outage once when it begins, and once when it is over.
func (p *Picture) say(err error) {
	if failing := err != nil; failing != p.failing {
		p.failing = failing
		if failing {
			p.logger.Warnw("Failed to read what nodes can lend; requests are placed without it where it is unknown. Retrying without further logs", zap.Error(err))
		} else {
			p.logger.Info("Resumed reading what nodes can lend")
		}
	}
}

// refresh asks what is new, and returns whether any Redis told everything.
func (p *Picture) refresh(ctx context.Context) (told bool, err error) {
	defer p.bound()
	p.choosing.refreshed()
	number, at := p.asked.Add(1), p.momentOf(p.clock.Now())
	ctx, cancel := context.WithTimeout(ctx, refreshTimeout)
	defer cancel()
	all, err := p.profiles.ReadProfiles(ctx, p.moments)
	for _, changes := range all {
		p.take(changes, at, number)
		told = told || !changes.More
	}
	p.forget(at)
	return told, err
}

// take takes in what one Redis told. The refresh of this number asked it at the moment at.
func (p *Picture) take(changes pool.Changes, at moment, number int64) {
	p.moments[changes.Redis] = changes.Until
	p.mu.Lock()
	defer p.mu.Unlock()
	r := p.redis[changes.Redis]
	if r == nil {
		r = &redisPart{}
		r.asked.Store(int64(at))
		p.redis[changes.Redis] = r
	}
	if !changes.More {
		r.asked.Store(int64(at))
	}
	for i := range changes.Profiles {
		profile := &changes.Profiles[i]
		h := hear(profile, r, changes.Now, at)
		n := p.nodeOf(profile.Node)
		// Two Redis of a cluster may both know a node that moved from one to the other.
		if n.heard != nil && h != nil && n.heard.redis != r && n.heard.beat > h.beat {
			continue
		}
		n.see(h)
		n.settle(number)
	}
}

// bound makes the bounds hold from now on: those of idle CPU, because they expire, and those of what is lent
// that somebody compares, because it falls over time.
func (p *Picture) bound() {
	now := p.momentOf(p.clock.Now())
	p.mu.Lock()
	defer p.mu.Unlock()
	anew := false
	for _, b := range p.lent {
		b.anew = b.compared.Swap(false)
		anew = anew || b.anew
	}
	for _, n := range p.nodes {
		if h := n.heard; h != nil && h.measured && h.unused.rises {
			n.idle.cpu.set(h.unused.rising(now))
		}
		if !anew {
			continue
		}
		for v := range n.held() {
			if v.board.anew {
				v.bound(now)
			}
		}
	}
	p.bounded.Store(int64(now))
}

// hasBounds says whether the bounds of idle CPU hold.
func (p *Picture) hasBounds(now time.Time) bool {
	return p.momentOf(now)-moment(p.bounded.Load()) <= moment(boundedFor)
}

// hear converts a profile. It returns nil for a node without a heartbeat.
func hear(p *pool.Profile, r *redisPart, now time.Time, at moment) *heard {
	if p.Heard.IsZero() {
		return nil
	}
	h := &heard{redis: r, begun: p.Begun, domains: p.Domains, now: now, at: at}
	h.beat = h.moment(p.Heard)
	h.unused = profileOf(p.Unused, cpuOf, h.moment)
	h.measured = p.Capacity.CPUMilli > 0
	h.use = Pressure{CPU: inUse(p.Idle.CPUMilli, p.Capacity.CPUMilli), Memory: inUse(p.Idle.MemoryBytes, p.Capacity.MemoryBytes)}
	return h
}

// inUse returns the share of capacity that is not idle.
func inUse(idle, capacity int64) float64 {
	if capacity <= 0 {
		return 0
	}
	return min(max(0, 1-float64(idle)/float64(capacity)), 1)
}

// see makes all Views of the node show what was heard.
func (n *nodeViews) see(h *heard) {
	n.heard = h
	if h != nil && h.measured {
		n.idle.cpu.set(h.unused.rising(h.at))
	} else {
		n.idle.cpu.forget()
	}
	for v := range n.held() {
		v.see(h)
	}
}

// settle ends the debits that a refresh has heard about.
func (n *nodeViews) settle(number int64) {
	n.idle.settle(number)
	for v := range n.held() {
		v.lent.settle(number)
	}
}

// held yields the Views that somebody holds, and forgets the others.
func (n *nodeViews) held() iter.Seq[*View] {
	return func(yield func(*View) bool) {
		for domain, kept := range n.views {
			v := kept.Value()
			if v == nil {
				n.drop(domain)
			} else if !yield(v) {
				return
			}
		}
	}
}

// drop forgets the View of a domain, which nobody holds, and the domain's board if no View is left on it.
func (n *nodeViews) drop(domain string) {
	kept, ok := n.views[domain]
	if !ok {
		return
	}
	delete(n.views, domain)
	b := n.picture.lent[domain]
	if b.release(kept.slot); len(b.free) == int(b.used) {
		delete(n.picture.lent, domain)
	}
}

// forget drops nodes and Redis that are gone.
func (p *Picture) forget(now moment) {
	if now-p.forgotten < moment(forgetEvery) {
		return
	}
	p.forgotten = now
	p.mu.Lock()
	defer p.mu.Unlock()
	for name, n := range p.nodes {
		if n.heard != nil && now-n.heard.beat > moment(forgetAfter) {
			n.see(nil)
		}
		held := false
		for range n.held() {
			held = true
		}
		if n.heard == nil && !held {
			delete(p.nodes, name)
			p.idle.release(n.slot)
		}
	}
	for name, r := range p.redis {
		if now-moment(r.asked.Load()) > moment(forgetAfter) {
			delete(p.redis, name)
			delete(p.moments, name)
		}
	}
}

// figures returns how many nodes are known, and the age of the oldest part of the picture.
func (p *Picture) figures() (nodes int, age time.Duration) {
	now := p.momentOf(p.clock.Now())
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, n := range p.nodes {
		if n.heard != nil {
			nodes++
		}
	}
	if len(p.redis) == 0 {
		return nodes, time.Duration(now)
	}
	for _, r := range p.redis {
		age = max(age, time.Duration(now)-time.Duration(r.asked.Load()))
	}
	return nodes, age
}
