package pool

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
	"libra.dev/libra/pkg/pool/redistest"
)

// TestMemory holds the specification to its invariants.
func TestMemory(t *testing.T) {
	// rapid's default of 100 sequences is for properties that cost more than these.
	for range 30 {
		rapid.Check(t, func(t *rapid.T) { runModel(t, nil) })
	}
}

// TestRedisIsMemory holds Redis to the specification.
func TestRedisIsMemory(t *testing.T) {
	r := newRedis(t, redistest.Start(t))
	rapid.Check(t, func(t *rapid.T) { runModel(t, r) })
}

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

var nodesUsed atomic.Int64

// model is one node, driven by random operations. Redis is nil or gets the same
// operations as the specification.
type model struct {
	name   string
	clock  *testingclock.FakePassiveClock
	memory *Memory
	redis  *Redis

	lastIntent, lastEnded string // what was seen of the streams
}

func runModel(t *rapid.T, r *Redis) {
	m := &model{
		name:       fmt.Sprintf("node-%d", nodesUsed.Add(1)),
		clock:      testingclock.NewFakePassiveClock(epoch),
		redis:      r,
		lastIntent: streamStart,
		lastEnded:  streamStart,
	}
	m.memory = NewMemory(m.clock)
	if r != nil {
		r.nowMillis = func() int64 { return m.clock.Now().UnixMilli() }
	}

	t.Repeat(map[string]func(*rapid.T){
		"begin":    m.begin,
		"begin 2":  m.begin, // as often again, or else little is ever lent
		"end":      func(t *rapid.T) { m.end(t, drawID(t)) },
		"renew":    m.renew,
		"open":     m.open,
		"open 2":   m.open,
		"read":     m.read,
		"let pass": m.letPass,
		"":         m.checkInvariants,
	})

	if rapid.Bool().Draw(t, "all end") {
		for _, id := range slices.Sorted(maps.Keys(m.node().begun)) {
			m.end(t, id)
		}
	} else {
		m.clock.SetTime(m.clock.Now().Add(LeaseTTL))
		m.read(t) // may find leases in the future, and restart them
		m.clock.SetTime(m.clock.Now().Add(LeaseTTL))
	}
	m.read(t)
	if diff := cmp.Diff(State{Pods: map[string]Balance{}}, m.state()); diff != "" {
		t.Fatalf("after the last invocation, the state differs from an empty one (-want +got):\n%s", diff)
	}
	m.checkNothingLeaks(t)
}

// node is the node in the specification.
func (m *model) node() (node *memoryNode) {
	err := m.memory.with(context.Background(), m.name, func(n *memoryNode, _ int64) { node = n })
	if err != nil {
		panic(err)
	}
	return node
}

func (m *model) nowMillis() int64 { return m.clock.Now().UnixMilli() }

// state is the state, without the effects of a Read.
func (m *model) state() State { return m.node().state(m.nowMillis()) }

func drawID(t *rapid.T) string {
	return rapid.StringMatching(`[a-l]`).Draw(t, "id")
}

func drawResources(t *rapid.T, label string) api.Resources {
	cpu := rapid.SampledFrom([]int64{0, 0, 100, 300, 700}).Draw(t, label+" cpu")
	memory := rapid.SampledFrom([]int64{0, 0, 64 << 20, 256 << 20, 1 << 40}).Draw(t, label+" memory")
	return api.Resources{CPUMilli: cpu, MemoryBytes: memory}
}

func drawInvocation(t *rapid.T) Invocation {
	// One domain's name starts like the other's, and ids start like domains.
	domain := rapid.SampledFrom([]string{"a", "ab"}).Draw(t, "domain")
	return Invocation{
		ID:            drawID(t),
		Function:      domain + "/resize-00001",
		Configuration: rapid.SampledFrom([]string{"", domain + "/resize"}).Draw(t, "configuration"),
		Pod:           domain + "/" + rapid.SampledFrom([]string{"p", "q", "r", "s"}).Draw(t, "pod"),
		Domain:        domain,
		Owner:         rapid.SampledFrom([]string{"activator-1", "activator-2"}).Draw(t, "owner"),
		Size:          rapid.SampledFrom([]int64{api.UnknownSize, 0, 1<<63 - 1}).Draw(t, "size"),
		Predicted:     drawResources(t, "predicted"),
		Duration:      time.Duration(rapid.SampledFrom([]int{0, 100_500, 1_000_000, 60_000_000}).Draw(t, "µs")) * time.Microsecond,
		Surplus:       drawResources(t, "surplus"),
		Want:          drawResources(t, "want"),
		MinRemaining:  time.Duration(rapid.SampledFrom([]int{0, 0, 99_500, 500_000}).Draw(t, "least µs")) * time.Microsecond,
	}
}

func (m *model) begin(t *rapid.T) {
	inv := drawInvocation(t)
	known := m.node().begun[inv.ID]

	borrowed := m.beginOnce(t, inv)
	begun := m.node().begun[inv.ID]
	isNew := begun != nil && begun != known
	if isNew && !m.node().open(m.nowMillis()) && !(borrowed.IsZero() && begun.spare.IsZero()) {
		t.Fatalf("a node that is not open lent %v and took %v", borrowed, begun.spare)
	}

	if isNew {
		m.checkFed(t, inv.Domain)
	}

	after := m.state()
	if again := m.beginOnce(t, inv); again != borrowed {
		t.Fatalf("begin of %v returned %v, and %v when repeated", inv, borrowed, again)
	}
	m.expectState(t, after)
}

func (m *model) beginOnce(t *rapid.T, inv Invocation) api.Resources {
	before := m.state()
	borrowed, err := m.memory.Begin(context.Background(), m.name, inv)
	if err != nil {
		t.Fatal(err)
	}
	if m.redis != nil {
		got, err := m.redis.Begin(testContext(t), m.name, inv)
		if err != nil {
			t.Fatal(err)
		}
		if got != borrowed {
			t.Fatalf("begin of %+v: Redis lends %v, the specification %v", inv, got, borrowed)
		}
		m.expectIntents(t, before)
	}
	return borrowed
}

func (m *model) end(t *rapid.T, id string) {
	e := Ending{
		ID:       id,
		Duration: time.Duration(rapid.Int64Min(0).Draw(t, "duration")),
		Status:   rapid.SampledFrom([]int{200, 503}).Draw(t, "status"),
		Late:     rapid.Bool().Draw(t, "late"),
	}
	known := m.node().begun[id]
	m.endOnce(t, e)
	if known != nil {
		m.checkFed(t, known.Domain)
	}

	after := m.state()
	if again := m.endOnce(t, e); again.Found {
		t.Fatalf("end of %s found it when repeated", id)
	}
	m.expectState(t, after)
}

func (m *model) endOnce(t *rapid.T, e Ending) Outcome {
	before := m.state()
	known := m.node().begun[e.ID]
	outcome, err := m.memory.End(context.Background(), m.name, e)
	if err != nil {
		t.Fatal(err)
	}
	if e.Late && outcome.Alone {
		t.Fatalf("late end of %s: what is measured until now is taken to be its own", e.ID)
	}
	if m.redis != nil {
		got, err := m.redis.End(testContext(t), m.name, e)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(outcome, got); diff != "" {
			t.Fatalf("end of %s: Redis differs from the specification (-want +got):\n%s", e.ID, diff)
		}
		m.expectIntents(t, before)
		m.expectEnded(t, known, e, outcome)
	}
	return outcome
}

func (m *model) renew(t *rapid.T) {
	owner := rapid.SampledFrom([]string{"activator-1", "activator-2", "activator-3"}).Draw(t, "owner")
	before := m.state()
	m.do(t, func(p Pool) error { return p.Renew(testContext(t), m.name, owner) })
	if m.redis != nil {
		m.expectIntents(t, before)
	}
}

func (m *model) open(t *rapid.T) {
	m.do(t, func(p Pool) error { return p.Open(testContext(t), m.name) })
}

func (m *model) do(t *rapid.T, op func(Pool) error) {
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
	before := m.state()
	want, err := m.memory.Read(context.Background(), m.name)
	if err != nil {
		t.Fatal(err)
	}
	if m.redis != nil {
		got, err := m.redis.Read(testContext(t), m.name)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("read: Redis differs from the specification (-want +got):\n%s", diff)
		}
		m.expectIntents(t, before)
		m.expectEnded(t, nil, Ending{}, Outcome{})
	}
}

func (m *model) letPass(t *rapid.T) {
	d := rapid.OneOf(
		rapid.Int64Range(0, 1500),
		rapid.SampledFrom([]int64{-1, LeaseTTL.Milliseconds() - 1, LeaseTTL.Milliseconds(), time.Hour.Milliseconds(), -time.Hour.Milliseconds()}),
	).Draw(t, "ms")
	m.clock.SetTime(m.clock.Now().Add(time.Duration(d) * time.Millisecond))
}

func (m *model) expectState(t *rapid.T, want State) {
	if diff := cmp.Diff(want, m.state()); diff != "" {
		t.Fatalf("a repeated call changed the state (-before +after):\n%s", diff)
	}
}

func (m *model) checkInvariants(t *rapid.T) {
	n := m.node()

	var borrowed, lent api.Resources
	for _, b := range m.state().Pods {
		borrowed, lent = borrowed.Add(b.Borrowed), lent.Add(b.Lent)
	}
	if borrowed != lent {
		t.Fatalf("pods borrowed %v but lent %v", borrowed, lent)
	}

	inPod := make(map[string]int)
	for _, b := range n.begun {
		inPod[b.Pod]++
	}
	for id, b := range n.begun {
		lent, borrowed := n.balance(b)
		if put := lent.Add(b.spare); put.Max(b.Surplus) != b.Surplus {
			t.Fatalf("%s has %v in the pool, of a surplus of %v", id, put, b.Surplus)
		}
		if borrowed.Max(b.Want) != b.Want {
			t.Fatalf("%s borrowed %v and wanted %v", id, borrowed, b.Want)
		}
		if min(b.spare.CPUMilli, b.spare.MemoryBytes, borrowed.CPUMilli, borrowed.MemoryBytes) < 0 {
			t.Fatalf("%s has spare %v and borrowed %v: less than nothing", id, b.spare, borrowed)
		}
		if inPod[b.Pod] > 1 && (b.alone || !lent.IsZero() || !b.spare.IsZero()) {
			t.Fatalf("%s is one of %d in its pod: alone is %t, it lent %v and offers %v", id, inPod[b.Pod], b.alone, lent, b.spare)
		}
	}
	for l := range n.loans {
		if l.donor.Domain != l.borrower.Domain {
			t.Fatalf("%s of %s lent to %s of %s", l.donor.ID, l.donor.Domain, l.borrower.ID, l.borrower.Domain)
		}
		if l.donor.Pod == l.borrower.Pod {
			t.Fatalf("%s lent to %s within pod %s", l.donor.ID, l.borrower.ID, l.donor.Pod)
		}
		if n.begun[l.donor.ID] != l.donor || n.begun[l.borrower.ID] != l.borrower {
			t.Fatalf("%s lends to %s, but one of them has ended", l.donor.ID, l.borrower.ID)
		}
	}
}

// checkFed checks, after a change in a domain, that nobody goes without what others
// could lend.
func (m *model) checkFed(t *rapid.T, domain string) {
	n, now := m.node(), m.nowMillis()
	if !n.open(now) {
		return
	}
	for _, b := range n.begun {
		_, borrowed := n.balance(b)
		for _, d := range n.begun {
			until := now + b.leastRemaining()
			if b == d || b.Domain != domain || d.Domain != domain || b.expires < until || d.expires < until {
				continue
			}
			for _, of := range volumes {
				if *of(&borrowed) < *of(&b.Want) && *of(&d.spare) > 0 {
					t.Fatalf("%s wants %v and borrowed %v, while %s has %v to spare", b.ID, b.Want, borrowed, d.ID, d.spare)
				}
			}
		}
	}
}

// expectIntents checks that the last operation appended one intent for each pod
// whose balance differs from before.
func (m *model) expectIntents(t *rapid.T, before State) {
	after := m.state()
	var want, got []string
	for pod := range after.Pods {
		if after.Pods[pod] != before.Pods[pod] {
			want = append(want, pod)
		}
	}
	for pod := range before.Pods {
		if _, ok := after.Pods[pod]; !ok {
			want = append(want, pod)
		}
	}
	for _, entry := range m.newEntries(t, intentsStream(m.name), &m.lastIntent) {
		got = append(got, entry.Values["pod"].(string))
	}
	if diff := cmp.Diff(want, got, cmpopts.SortSlices(strings.Compare)); diff != "" {
		t.Fatalf("intents differ from the pods that changed (-want +got):\n%s", diff)
	}
}

// expectEnded checks that the last operation appended one record, if it ended
// an invocation that was known.
func (m *model) expectEnded(t *rapid.T, known *begun, e Ending, o Outcome) {
	var want, got []api.Ended
	if known != nil {
		want = append(want, api.Ended{
			ID: known.ID, Function: known.Function, Configuration: known.Configuration,
			Pod: known.Pod, Size: known.Size, Predicted: known.Predicted,
			Duration: e.Duration, Status: e.Status,
			Alone: o.Alone, Lent: o.Lent, Borrowed: o.Borrowed,
		})
	}
	for _, entry := range m.newEntries(t, endedStream(m.name), &m.lastEnded) {
		read, err := readEnded(entry)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, read)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Fatalf("ended records differ (-want +got):\n%s", diff)
	}
}

func (m *model) newEntries(t *rapid.T, stream string, last *string) []redis.XMessage {
	entries, err := m.redis.calls.XRange(testContext(t), stream, "("+*last, "+").Result()
	if err != nil {
		t.Fatal(err)
	}
	if len(entries) > 0 {
		*last = entries[len(entries)-1].ID
	}
	return entries
}

// checkNothingLeaks checks, on a node where all has ended, that what is left goes
// away by itself.
func (m *model) checkNothingLeaks(t *rapid.T) {
	if m.redis == nil {
		return
	}
	ctx := testContext(t)
	keys, err := m.redis.calls.Keys(ctx, "libra:{"+m.name+"}:*").Result()
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range keys {
		switch kind := key[strings.LastIndex(key, ":")+1:]; kind {
		case "intents", "ended", "open", "leases", "tombstones":
		default:
			t.Errorf("key %s is left on a node without invocations", key)
		}
		ttl, err := m.redis.calls.PTTL(ctx, key).Result()
		if err != nil {
			t.Fatal(err)
		}
		if ttl <= 0 {
			t.Errorf("key %s never expires", key)
		}
	}
}

// testContext gives each call its own deadline, far above what it takes.
func testContext(t interface{ Cleanup(func()) }) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}
