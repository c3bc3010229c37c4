package pooltest

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/pool"
)

// TestDomainsShare checks in both pools how domains share what is lendable when there is
// mostly not enough for all: the invocations drawn for other tests seldom want that much.
func TestDomainsShare(t *testing.T) {
	r := startRedis(t)
	for name, in := range map[string]*inRedis{"specification": nil, "Redis": r} {
		t.Run(name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				m := newModel(t, in)
				m.hearOfTenants(t)
				t.Repeat(map[string]func(*rapid.T){
					"begin":   func(t *rapid.T) { m.begin(t, drawTenants(t)) },
					"begin 2": func(t *rapid.T) { m.begin(t, drawTenants(t)) },
					"end":     func(t *rapid.T) { m.end(t, drawID(t)) },
					"hear":    m.hearOfTenants,
					"":        m.checkInvariants,
				})
			})
		})
	}
}

// drawTenants draws an invocation that lends much or wants much, alone in its pod or not.
func drawTenants(t *rapid.T) pool.Invocation {
	domain, share := rapid.SampledFrom(domains).Draw(t, "domain"), 100*rapid.Int64Range(1, 9).Draw(t, "share")
	inv := pool.Invocation{
		ID: drawID(t), Function: domain + "/resize-00001", Domain: domain, Owner: "activator-1", Size: api.UnknownSize,
		Allocation: api.Resources{CPUMilli: 1000, MemoryBytes: 1000},
		Duration:   time.Duration(rapid.IntRange(1, 5).Draw(t, "minutes")) * time.Minute,
	}
	volume := api.Resources{CPUMilli: share, MemoryBytes: share}
	if rapid.Bool().Draw(t, "borrows") {
		inv.Pod, inv.Want = domain+rapid.SampledFrom([]string{"/r", "/s"}).Draw(t, "pod"), volume
	} else {
		inv.Pod, inv.Surplus = domain+rapid.SampledFrom([]string{"/p", "/q"}).Draw(t, "pod"), volume
	}
	return inv
}

func (m *model) hearOfTenants(t *rapid.T) {
	lendable := 100 * rapid.Int64Range(0, 15).Draw(t, "lendable")
	hb := pool.Heartbeat{
		Agent: "agent-1", Epoch: m.node().epoch, Whole: true, Pods: map[string]int64{}, RestedAt: m.clock.Now(),
		Lendable: api.Resources{CPUMilli: lendable, MemoryBytes: lendable},
	}
	for _, domain := range domains {
		for _, pod := range []string{"p", "q", "r", "s"} {
			hb.Pods[fmt.Sprint(domain, "/", pod)] = 0
			hb.Rested = append(hb.Rested, fmt.Sprint(domain, "/", pod))
		}
	}
	m.hearTwice(t, hb)
}
