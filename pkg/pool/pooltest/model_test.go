package pooltest

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/redis/go-redis/v9"
	testingclock "k8s.io/utils/clock/testing"
	"pgregory.net/rapid"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/pool"
	"libra.dev/libra/pkg/pool/redistest"
)

// TestMemory checks the specification against its invariants.
func TestMemory(t *testing.T) {
	// rapid's default of 100 sequences is for properties that cost more than these.
	for range 30 {
		rapid.Check(t, func(t *rapid.T) { runModel(t, nil) })
	}
}

// TestRedisIsMemory checks Redis against the specification.
func TestRedisIsMemory(t *testing.T) {
	r := startRedis(t)
	for range 5 {
		rapid.Check(t, func(t *rapid.T) { runModel(t, r) })
	}
}

var (
	epoch     = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	unlimited = api.Resources{CPUMilli: 1 << 40, MemoryBytes: 1 << 40} // the most that a Pool takes
)

// domains are the domains of everything that is drawn. One name starts like another.
var domains = []string{"a", "ab", "b"}

var nodesUsed atomic.Int64

// model is one node, driven by random operations. Redis is nil or gets the same
// operations as the specification.
type model struct {
	name   string
	clock  *testingclock.FakePassiveClock
	memory *Memory
	redis  *inRedis

	lastIntent, lastEvent string                   // the last that was seen of the streams
	watcher               *pool.Watcher            // of the same streams
	epochs                map[string]string        // Redis's, by the specification's
	onLoan                map[string]api.Resources // by domain, or "" for all, after the last operation
	put                   map[string]api.Resources // into the pool, by pod, before a Begin
	begunIn               string                   // the domain of the last operation's Begin, or anyDomain
	hadUnseen             map[string]bool          // by pod, before a Begin

	running   map[string]*running  // as they are, whatever the pool knows of them
	number    int64                // of the last to run
	held      []pool.Invocation    // Begins on their way
	computing map[string]time.Time // since when what has ended may compute, by pod
	before    map[string]*running  // those that ran when the epoch began, until its first whole heartbeat
	beganAt   time.Time            // when the epoch did
}

func newModel(t *rapid.T, r *inRedis) *model {
	m := &model{
		name:      fmt.Sprintf("node-%d", nodesUsed.Add(1)),
		clock:     testingclock.NewFakePassiveClock(epoch),
		redis:     r,
		epochs:    make(map[string]string),
		running:   make(map[string]*running),
		computing: make(map[string]time.Time),
	}
	m.memory = NewMemory(m.clock)
	if r != nil {
		r.UseClock(m.clock)
		m.watch(t)
		m.begins(t)
	}
	return m
}

func runModel(t *rapid.T, r *inRedis) {
	m := newModel(t, r)
	if rapid.Bool().Draw(t, "open from the start") {
		m.hearOnce(t, pool.Heartbeat{Agent: "agent-1", Epoch: m.node().epoch, Whole: true, Lendable: unlimited, Pods: map[string]int64{
			"a/p": 0, "a/q": 0, "a/r": 0, "a/s": 0, "b/p": 0, "b/q": 0,
		}, Rested: []string{"a/p", "a/q", "a/r", "a/s", "b/p", "b/q"}, RestedAt: m.clock.Now()})
	}
	t.Repeat(map[string]func(*rapid.T){
		"another":    m.another,
		"begin":      func(t *rapid.T) { m.begin(t, drawInvocation(t)) },
		"share":      func(t *rapid.T) { m.begin(t, drawShared(t)) },
		"share 2":    func(t *rapid.T) { m.begin(t, drawShared(t)) }, // as often again, or else little is ever lent
		"end":        func(t *rapid.T) { m.end(t, drawID(t)) },
		"hold":       m.hold,
		"deliver":    m.deliver,
		"end, begin": func(t *rapid.T) { m.beginAfter(t, drawInvocation(t)) },
		"renew":      m.renew,
		"hear":       m.hear,
		"hear 2":     m.hear,
		"safeguard":  m.safeguard,
		"lose":       m.lose,
		"ask":        m.ask,
		"read":       m.read,
		"let pass":   m.letPass,
		"":           m.checkInvariants,
	})

	if rapid.Bool().Draw(t, "all end") {
		for _, id := range slices.Sorted(maps.Keys(m.node().begun)) {
			m.end(t, id)
		}
	} else {
		m.clock.SetTime(m.clock.Now().Add(pool.LeaseTTL))
		m.read(t) // may find leases in the future, and restart them
		m.clock.SetTime(m.clock.Now().Add(pool.LeaseTTL))
	}
	m.read(t)
	if open := m.state(); len(open.Pods) > 0 || open.Begun > 0 {
		t.Fatalf("after the last invocation, there are %d, and loans: %v", open.Begun, open.Pods)
	}
	// Idle donors last as long as their leases.
	m.clock.SetTime(m.clock.Now().Add(pool.LeaseTTL))
	m.read(t)
	m.clock.SetTime(m.clock.Now().Add(pool.LeaseTTL))
	m.read(t)
	got := m.state()
	want := pool.State{Epoch: got.Epoch, Now: got.Now, Agent: got.Agent, Open: got.Open, Suspended: got.Suspended, Needs: got.Needs, Unseen: got.Unseen, Raised: got.Raised, Pods: map[string]pool.Balance{}, InFlight: map[string][]pool.Flight{}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Fatalf("after the last invocation, the state differs from an empty one (-want +got):\n%s", diff)
	}
	m.checkNothingLeaks(t)
}

// moment is the node before an operation.
type moment struct {
	pool.State
	ranked map[string]*begun // ranked invocations in flight, by ID
	ended  []api.Ended       // what the operation should report
}

func (m *model) moment() moment { return moment{m.state(), m.ranked(), nil} }

func (m *model) ranked() map[string]*begun {
	ranked := make(map[string]*begun)
	for id, b := range m.node().begun {
		if b.Ranked {
			ranked[id] = b
		}
	}
	return ranked
}

// node is the node in the specification.
func (m *model) node() (node *memoryNode) {
	err := m.memory.look(context.Background(), m.name, func(n *memoryNode, _ int64) { node = n })
	if err != nil {
		panic(err)
	}
	return node
}

func (m *model) nowMillis() int64 { return m.clock.Now().UnixMilli() }

// state returns the state, without the effects of a Read.
func (m *model) state() pool.State { return m.node().state(m.nowMillis()) }

func drawID(t *rapid.T) string {
	return rapid.StringMatching(`[a-l]`).Draw(t, "id")
}

func drawResources(t *rapid.T, label string) api.Resources {
	cpu := rapid.SampledFrom([]int64{0, 0, 100, 300, 700}).Draw(t, label+" cpu")
	memory := rapid.SampledFrom([]int64{0, 0, 64 << 20, 256 << 20, 1 << 40}).Draw(t, label+" memory")
	return api.Resources{CPUMilli: cpu, MemoryBytes: memory}
}

func drawAllocation(t *rapid.T) api.Resources {
	cpu := rapid.SampledFrom([]int64{0, 300, 1000, 1000}).Draw(t, "allocated cpu")
	memory := rapid.SampledFrom([]int64{0, 128 << 20, 512 << 20, 1 << 40}).Draw(t, "allocated memory")
	return api.Resources{CPUMilli: cpu, MemoryBytes: memory}
}

func trace(digit rune) string {
	return "00-" + strings.Repeat(string(digit), 32) + "-" + strings.Repeat(string(digit), 16) + "-01"
}

func drawInvocation(t *rapid.T) pool.Invocation {
	// IDs start like domains, too.
	namespace := rapid.SampledFrom(domains).Draw(t, "namespace")
	domain := namespace
	if rapid.IntRange(0, 4).Draw(t, "joins") == 0 {
		domain = rapid.SampledFrom(domains).Draw(t, "domain")
	}
	return pool.Invocation{
		ID:            drawID(t),
		Trace:         rapid.SampledFrom([]string{"", trace('a'), trace('b'), trace('c')}).Draw(t, "trace"),
		Function:      namespace + "/" + rapid.SampledFrom([]string{"resize-00001", "encode-00001"}).Draw(t, "function"),
		Configuration: rapid.SampledFrom([]string{"", namespace + "/resize"}).Draw(t, "configuration"),
		Pod:           namespace + "/" + rapid.SampledFrom([]string{"p", "q", "r", "s"}).Draw(t, "pod"),
		Domain:        domain,
		Owner:         rapid.SampledFrom([]string{"activator-1", "activator-2"}).Draw(t, "owner"),
		Size:          rapid.SampledFrom([]int64{api.UnknownSize, 0, 1<<63 - 1}).Draw(t, "size"),
		Allocation:    drawAllocation(t),
		Predicted:     drawResources(t, "predicted"),
		Duration:      time.Duration(rapid.SampledFrom([]int{0, 100_500, 1_000_000, 60_000_000}).Draw(t, "µs")) * time.Microsecond,
		WithoutLoan:   time.Duration(rapid.SampledFrom([]int{0, 0, 250_500, 1_500_000, 60_000_000}).Draw(t, "without a loan µs")) * time.Microsecond,
		Surplus:       drawResources(t, "surplus"),
		Want:          drawResources(t, "want"),
		Concurrency:   rapid.SampledFrom([]int{0, 1, 2, 3, 3, 3}).Draw(t, "concurrency"),
		Need:          drawNeed(t),
		Ranked:        rapid.Bool().Draw(t, "ranked"),
		CPUTime:       time.Duration(rapid.SampledFrom([]int{0, 300, 40_000, 2_500_100}).Draw(t, "cpu µs")) * time.Microsecond,
		MinRemaining:  time.Duration(rapid.SampledFrom([]int{0, 0, 99_500, 500_000}).Draw(t, "least µs")) * time.Microsecond,
		WantMostMilli: rapid.SampledFrom([]int64{0, 500, 2000}).Draw(t, "may want milli"),
		IdleCPUMilli:  rapid.SampledFrom([]int64{0, 300, 900}).Draw(t, "idle milli"),
	}
}

func drawNeed(t *rapid.T) api.Resources {
	cpu := rapid.SampledFrom([]int64{0, 100, 100, 300, 700}).Draw(t, "needed cpu")
	memory := rapid.SampledFrom([]int64{0, 1 << 20, 64 << 20, 64 << 20, 256 << 20}).Draw(t, "needed memory")
	return api.Resources{CPUMilli: cpu, MemoryBytes: memory}
}

// drawShared draws an invocation that lends, next to others in its pod, or borrows.
func drawShared(t *rapid.T) pool.Invocation {
	inv := drawInvocation(t)
	inv.Domain, inv.MinRemaining = rapid.SampledFrom([]string{"a", "a", "a", "b"}).Draw(t, "its domain"), 0
	inv.Allocation = api.Resources{CPUMilli: 1000, MemoryBytes: 512 << 20}
	inv.Duration = time.Duration(rapid.IntRange(1, 5).Draw(t, "s")) * 10 * time.Second
	if rapid.IntRange(0, 2).Draw(t, "borrows") == 0 {
		inv.Pod, inv.Surplus = inv.Domain+rapid.SampledFrom([]string{"/q", "/r", "/s"}).Draw(t, "its pod"), api.Resources{}
		inv.Want = api.Resources{CPUMilli: 300, MemoryBytes: 100 << 20}
		return inv
	}
	inv.Pod, inv.Want = inv.Domain+"/p", api.Resources{}
	if rapid.IntRange(0, 3).Draw(t, "has joined another domain") == 0 {
		inv.Domain = rapid.SampledFrom([]string{"a", "b"}).Draw(t, "which")
	}
	inv.Surplus = api.Resources{CPUMilli: 700, MemoryBytes: 384 << 20}
	inv.Need = api.Resources{CPUMilli: 100 * rapid.Int64Range(1, 3).Draw(t, "steps"), MemoryBytes: 64 << 20}
	inv.Concurrency = rapid.SampledFrom([]int{1, 3, 4, 4}).Draw(t, "of")
	return inv
}

func (m *model) begin(t *rapid.T, inv pool.Invocation) { m.send(t, m.run(t, inv)) }

func (m *model) send(t *rapid.T, inv pool.Invocation) {
	m.begunIn = inv.Domain
	known := m.node().begun[inv.ID]
	m.put, m.hadUnseen = make(map[string]api.Resources), make(map[string]bool)
	for _, p := range m.node().pods {
		// Or what it would have with the next Begin there, because unseen invocations are
		// forgotten by now.
		m.put[p.name] = m.node().lent(p).Add(p.spare).Max(m.node().leftOver(m.nowMillis(), p))
	}
	for in := range m.node().unseen { // including those that are forgotten by now
		m.hadUnseen[in.pod] = true
	}

	borrowed := m.beginOnce(t, inv)
	begun := m.node().begun[inv.ID]
	isNew := begun != nil && begun != known
	if isNew {
		m.checkBegun(t, begun)
	}
	m.heard(inv, known)

	after := m.state()
	if again := m.beginOnce(t, inv); again != borrowed {
		t.Fatalf("begin of %v returned %v, and %v when repeated", inv, borrowed, again)
	}
	m.expectState(t, after)
}

func (m *model) beginOnce(t *rapid.T, inv pool.Invocation) api.Resources {
	before, known := m.moment(), m.node().begun[inv.ID]
	borrowed, err := m.memory.Begin(context.Background(), m.name, inv)
	if err != nil {
		t.Fatal(err)
	}
	if m.redis != nil {
		got, err := m.redis.Begin(redistest.Context(t), m.name, inv)
		if err != nil {
			t.Fatal(err)
		}
		if got != borrowed {
			t.Fatalf("begin of %+v: Redis lends %v, the specification %v", inv, got, borrowed)
		}
		m.expectTold(t, before, m.short(inv.ID, known)...)
	}
	return borrowed
}

func (m *model) drawEnding(t *rapid.T, id string) pool.Ending {
	e := pool.Ending{
		ID:       id,
		Duration: time.Duration(rapid.Int64Min(0).Draw(t, "duration")),
		Ago:      time.Duration(rapid.Int64Min(0).Draw(t, "ago")),
		Status:   rapid.SampledFrom([]int{200, 503}).Draw(t, "status"),
		Late:     rapid.Bool().Draw(t, "late"),

		BeginAnswered: rapid.Bool().Draw(t, "begin answered"),
	}
	if rapid.IntRange(0, 4).Draw(t, "client went away") == 0 {
		e.ComputesIn = rapid.SampledFrom([]string{"a/p", "a/q", "ab/s"}).Draw(t, "computes in")
		if r := m.running[id]; r != nil {
			e.ComputesIn = r.pod
		}
	}
	return e
}

func (m *model) beginAfter(t *rapid.T, inv pool.Invocation) {
	m.begunIn = anyDomain
	before := m.moment()
	var ended []pool.Ending
	var known []*begun
	for _, id := range rapid.SliceOfNDistinct(rapid.StringMatching(`[a-l]`), 0, 3, rapid.ID).Draw(t, "ids") {
		ended, known = append(ended, m.drawEnding(t, id)), append(known, m.node().begun[id])
		delete(before.ranked, id) // the record of the End reports it
	}
	for i, e := range ended {
		m.leave(e, known[i])
	}
	inv = m.run(t, inv)
	was := m.node().begun[inv.ID]
	defer m.heard(inv, was)
	outcomes, borrowed, err := m.memory.BeginAfter(context.Background(), m.name, ended, inv)
	if err != nil {
		t.Fatal(err)
	}
	if m.redis == nil {
		return
	}
	gotOutcomes, got, err := m.redis.BeginAfter(redistest.Context(t), m.name, ended, inv)
	if err != nil {
		t.Fatal(err)
	}
	if got != borrowed {
		t.Fatalf("begin of %+v: Redis lends %v, the specification %v", inv, got, borrowed)
	}
	if diff := cmp.Diff(outcomes, gotOutcomes, cmpopts.EquateEmpty()); diff != "" {
		t.Fatalf("ends of %+v: Redis differs from the specification (-want +got):\n%s", ended, diff)
	}
	for i, b := range known {
		before.ended = append(before.ended, b.record(ended[i], outcomes[i])...)
	}
	m.expectTold(t, before, m.short(inv.ID, was)...)
}

func (m *model) end(t *rapid.T, id string) {
	e := m.drawEnding(t, id)
	known := m.node().begun[id]
	in := e.ComputesIn
	if known != nil {
		in = known.Pod
	}
	var changes []string // the domains in which something is left over, or no longer lent
	if p := m.node().pods[in]; p != nil {
		changes = append(changes, p.domain)
	}
	if known != nil {
		changes = append(changes, known.Domain)
	}
	m.leave(e, known)
	before := m.moment()
	m.endOnce(t, e)
	after := m.state()
	// A changed Allocation does not count: it changes with the latest invocation in a pod, and
	// frees nothing.
	if after.Available.Max(before.Available) != before.Available || len(changed(before.Pods, after.Pods)) > 0 {
		for _, domain := range changes {
			m.checkFed(t, domain)
		}
	}

	if again := m.endOnce(t, e); again.Found {
		t.Fatalf("end of %s found it when repeated", id)
	}
	m.expectState(t, after)
}

func (m *model) endOnce(t *rapid.T, e pool.Ending) pool.Outcome {
	before := m.moment()
	delete(before.ranked, e.ID) // the record of the End reports it
	known := m.node().begun[e.ID]
	outcome, err := m.memory.End(context.Background(), m.name, e)
	if err != nil {
		t.Fatal(err)
	}
	if (e.Late || e.ComputesIn != "") && outcome.Alone {
		t.Fatalf("late end of %s: what is measured until now is taken to be its own", e.ID)
	}
	if m.redis != nil {
		got, err := m.redis.End(redistest.Context(t), m.name, e)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(outcome, got); diff != "" {
			t.Fatalf("end of %s: Redis differs from the specification (-want +got):\n%s", e.ID, diff)
		}
		before.ended = known.record(e, outcome)
		m.expectTold(t, before)
	}
	return outcome
}

func (m *model) renew(t *rapid.T) {
	owner := rapid.SampledFrom([]string{"activator-1", "activator-2", "activator-3"}).Draw(t, "owner")
	before := m.moment()
	m.do(t, func(p pool.Pool) error { return p.Renew(redistest.Context(t), m.name, owner) })
	if m.redis != nil {
		m.expectTold(t, before)
	}
}

// hear sends a heartbeat, of the present epoch more often than not.
func (m *model) hear(t *rapid.T) {
	hb := pool.Heartbeat{
		Agent:    rapid.SampledFrom([]string{"agent-1", "agent-2"}).Draw(t, "agent"),
		Epoch:    m.node().epoch,
		Whole:    rapid.SampledFrom([]bool{true, true, true, false}).Draw(t, "whole"),
		Lendable: rapid.SampledFrom([]api.Resources{unlimited, unlimited, {}, {CPUMilli: 350, MemoryBytes: 100 << 20}, {CPUMilli: 500, MemoryBytes: 100 << 20}}).Draw(t, "lendable"),
		Pods:     map[string]int64{},
		Needs:    rapid.MapOf(rapid.SampledFrom([]string{"a/p", "ab/s"}), rapid.Int64Range(0, 3)).Draw(t, "needs"),
		Capacity: api.Resources{CPUMilli: 4000, MemoryBytes: 1 << 41},
		Idle:     api.Resources{CPUMilli: rapid.SampledFrom([]int64{0, 300, 3000}).Draw(t, "idle milli"), MemoryBytes: 1 << 40},
	}
	if rapid.IntRange(0, 5).Draw(t, "of another epoch") == 0 {
		hb.Epoch = "another"
	}
	for _, domain := range domains {
		for _, pod := range []string{"p", "q", "r", "s"} {
			// Most take part, and most of those without a floor.
			if floor := rapid.SampledFrom([]int64{0, 0, 0, 0, 100 << 20, 500 << 20, -1}).Draw(t, pod); floor >= 0 {
				hb.Pods[domain+"/"+pod] = floor
			}
		}
	}
	if rapid.Bool().Draw(t, "some at rest") {
		hb.Rested = rapid.SliceOfDistinct(rapid.SampledFrom(append(m.state().Unseen, "a/p")), rapid.ID[string]).Draw(t, "rested")
		ago := rapid.SampledFrom([]time.Duration{0, 0, time.Millisecond, time.Second, time.Minute}).Draw(t, "rested ago")
		hb.RestedAt = m.clock.Now().Add(-ago)
	}
	m.hearTwice(t, hb)
}

// hearTwice sends a heartbeat twice.
func (m *model) hearTwice(t *rapid.T, hb pool.Heartbeat) {
	m.hearOnce(t, hb)
	for _, b := range m.node().begun {
		m.checkFed(t, b.Domain)
	}
	m.checkEven(t)
	shared := m.node().shared(m.nowMillis())
	if open := m.state().Open; open != (hb.Whole && hb.Epoch == m.node().epoch && !shared) {
		t.Fatalf("heartbeat %+v of epoch %s: the node is open: %t", hb, m.node().epoch, open)
	}
	if onLoan := m.node().onLoan(""); shared && !onLoan.IsZero() {
		t.Fatalf("%v is on loan after a heartbeat, and another version has invocations on the node", onLoan)
	}

	after := m.state()
	for _, pod := range after.Raised {
		if after.Pods[pod].Borrowed.CPUMilli == 0 {
			t.Fatalf("after a heartbeat, pod %s may be raised, and borrows no CPU", pod)
		}
	}
	m.hearOnce(t, hb)
	m.expectState(t, after)
}

func (m *model) hearOnce(t *rapid.T, hb pool.Heartbeat) {
	if m.redis != nil {
		// Read both before either gets the heartbeat: a Read ends what has lapsed.
		before := m.moment()
		m.sameEpoch(t)
		m.expectTold(t, before)
		m.checkInvariants(t)
	}
	before := m.moment()
	open, err := m.memory.Heartbeat(context.Background(), m.name, hb)
	if err != nil {
		t.Fatal(err)
	}
	m.seeWhole(hb)
	m.rest(hb)
	if m.redis != nil {
		if hb.Epoch == m.node().epoch {
			hb.Epoch = m.epochs[hb.Epoch]
		}
		got, err := m.redis.Heartbeat(redistest.Context(t), m.name, hb)
		if err != nil {
			t.Fatal(err)
		}
		if got != open {
			t.Fatalf("heartbeat %+v: Redis says open %t, the specification %t", hb, got, open)
		}
		m.expectTold(t, before)
	}
}

// sameEpoch checks that Redis changes the epoch when the specification does.
func (m *model) sameEpoch(t *rapid.T) {
	got, err := m.redis.Read(redistest.Context(t), m.name)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.memory.Read(context.Background(), m.name); err != nil {
		t.Fatal(err)
	}
	m.checkEpoch(t, m.node().epoch, got.Epoch)
}

func (m *model) checkEpoch(t *rapid.T, specified, got string) {
	known, ok := m.epochs[specified]
	if !ok {
		for _, other := range m.epochs {
			if other == got {
				t.Fatalf("Redis has epoch %q again", got)
			}
		}
		m.epochs[specified] = got
	} else if known != got {
		t.Fatalf("Redis went from epoch %q to %q", known, got)
	}
}

func (m *model) safeguard(t *rapid.T) {
	domain := rapid.SampledFrom([]string{"a", "ab"}).Draw(t, "domain")
	pod := domain + "/" + rapid.SampledFrom([]string{"p", "q", "r", "s"}).Draw(t, "pod")
	before := m.moment()
	lent := before.Pods[pod].Lent.CPUMilli
	idle := rapid.IntRange(0, 2).Draw(t, "seen idle") == 0
	var donor *begun
	var lentIn string
	if p := m.node().pods[pod]; p != nil && m.node().lent(p).Add(p.spare).CPUMilli > 0 && idle == (p.idle != nil) {
		if donor = p.idle; !idle {
			donor = m.node().in(pod)[0]
		}
		lentIn = p.domain
	} else {
		lent = 0
	}

	if revoked := m.safeguardOnce(t, pod, idle); revoked != lent {
		t.Fatalf("safeguard of %s revoked %dm of %dm", pod, revoked, lent)
	}
	if donor == nil {
		m.expectState(t, before.State)
		return
	}
	m.checkFed(t, lentIn)
	if !m.node().suspended(m.nowMillis(), donors{donor.Function, idle}) {
		t.Fatalf("safeguard of %s did not suspend %s, idle: %t", pod, donor.Function, idle)
	}
	after := m.state()
	if again := m.safeguardOnce(t, pod, idle); again != 0 {
		t.Fatalf("safeguard of %s revoked %dm when repeated", pod, again)
	}
	m.expectState(t, after)
}

// ask makes a pod's invocations want more or less than they said.
func (m *model) ask(t *rapid.T) {
	pod := rapid.SampledFrom([]string{"a", "ab"}).Draw(t, "domain") + "/" + rapid.SampledFrom([]string{"p", "q", "r", "s"}).Draw(t, "pod")
	milli := rapid.SampledFrom([]int64{0, 100, 400, 1500, 4000}).Draw(t, "milli")
	here := m.node().in(pod)
	for range 2 {
		before := m.moment()
		m.do(t, func(p pool.Pool) error { return p.Ask(redistest.Context(t), m.name, pod, milli) })
		if m.redis != nil {
			m.expectTold(t, before)
		}
	}
	left := milli
	for _, b := range here {
		if want := min(left, b.WantMostMilli); b.Want.CPUMilli != want || m.node().borrowed(b).CPUMilli > want {
			t.Fatalf("%dm of %dm are left for %s, which may want %dm: it wants %v and borrowed %v", left, milli, b.ID, b.WantMostMilli, b.Want, m.node().borrowed(b))
		}
		left -= b.Want.CPUMilli
		m.checkFed(t, b.Domain)
	}
}

func (m *model) safeguardOnce(t *rapid.T, pod string, idle bool) (revokedMilli int64) {
	before := m.moment()
	struck := maps.Clone(m.node().struck)
	revokedMilli, err := m.memory.Safeguard(context.Background(), m.name, pod, idle)
	if err != nil {
		t.Fatal(err)
	}
	if m.redis != nil {
		got, err := m.redis.Safeguard(redistest.Context(t), m.name, pod, idle)
		if err != nil {
			t.Fatal(err)
		}
		if got != revokedMilli {
			t.Fatalf("safeguard of %s: Redis revoked %dm, the specification %dm", pod, got, revokedMilli)
		}
		if maps.Equal(struck, m.node().struck) {
			m.expectTold(t, before)
		} else {
			m.expectTold(t, before, pod)
		}
	}
	return revokedMilli
}

// lose empties Redis, or restarts it as far as its functions can tell.
func (m *model) lose(t *rapid.T) {
	flush := rapid.Bool().Draw(t, "flush")
	for _, r := range m.running {
		r.untold = true
	}
	clear(m.computing)
	m.before, m.beganAt = maps.Clone(m.running), m.clock.Now()
	m.read(t) // or there is nothing to lose
	another := m.node().another
	m.memory.mu.Lock()
	delete(m.memory.nodes, m.name)
	m.memory.mu.Unlock()
	if !flush {
		m.node().another = another
	}
	if m.redis == nil {
		return
	}
	ctx := redistest.Context(t)
	if flush {
		// Only this node's keys: the other tests' are in the same Redis.
		if err := m.redis.deleteNode(ctx, m.name); err != nil {
			t.Fatal(err)
		}
		m.watch(t)
		m.begins(t)
		return
	}
	if err := m.redis.client.FunctionLoadReplace(ctx, m.redis.library.Code).Err(); err != nil {
		t.Fatal(err)
	}
	m.begins(t)
	if woken, events := m.told(t); len(woken) != 1 || woken[0].Values["pods"] != "" || len(events.Begun)+len(events.Ended) > 0 {
		t.Fatalf("after a restart there are intents %v and events %+v, want one intent of no pod", woken, events)
	}
}

// begins begins an epoch of both pools at the same time.
func (m *model) begins(t *rapid.T) {
	m.do(t, func(p pool.Pool) error { _, err := p.Read(redistest.Context(t), m.name); return err })
}

// another tells another version of the pool about invocations on the node.
func (m *model) another(t *rapid.T) {
	if rapid.IntRange(0, 3).Draw(t, "another version") > 0 {
		return // or else little is ever lent
	}
	m.node().another = m.nowMillis()
	if m.redis != nil {
		if err := m.redis.client.ZAdd(redistest.Context(t), versionsKey(m.name), redis.Z{Score: float64(m.nowMillis()), Member: "another"}).Err(); err != nil {
			t.Fatal(err)
		}
	}
}

func (m *model) do(t *rapid.T, op func(pool.Pool) error) {
	if err := op(m.memory); err != nil {
		t.Fatal(err)
	}
	if m.redis != nil {
		if err := op(m.redis); err != nil {
			t.Fatal(err)
		}
	}
}

func (m *model) read(t *rapid.T) {
	before := m.moment()
	want, err := m.memory.Read(context.Background(), m.name)
	if err != nil {
		t.Fatal(err)
	}
	if m.redis != nil {
		got, err := m.redis.Read(redistest.Context(t), m.name)
		if err != nil {
			t.Fatal(err)
		}
		m.checkEpoch(t, want.Epoch, got.Epoch)
		got.Epoch = want.Epoch
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("read: Redis differs from the specification (-want +got):\n%s", diff)
		}
		m.expectTold(t, before)
		m.checkProfile(t)
	}
}

func (m *model) letPass(t *rapid.T) {
	d := rapid.OneOf(
		rapid.Int64Range(0, 1500),
		rapid.SampledFrom([]int64{
			-1, pool.LeaseTTL.Milliseconds() - 1, pool.LeaseTTL.Milliseconds(), time.Hour.Milliseconds(), -time.Hour.Milliseconds(),
			pool.SuspendLeast.Milliseconds(), pool.SuspendMost.Milliseconds(),
		}),
	).Draw(t, "ms")
	if d < 0 {
		// A Read forgets what is over, which would be there again otherwise: the specification is
		// read more often than Redis.
		m.read(t)
		m.checkUnseen(t)
	}
	m.clock.SetTime(m.clock.Now().Add(time.Duration(d) * time.Millisecond))
	m.giveUp()
}
