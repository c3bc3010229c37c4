package pooltest

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/pool"
)

// busyPart is BUSY_PART in ../lua/4_calls.lua.
const busyPart = 10

// ReadProfiles returns the profiles of all nodes, changed or not.
func (m *Memory) ReadProfiles(ctx context.Context, _ pool.Moments) ([]pool.Changes, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.clock.Now().UnixMilli()
	changes := pool.Changes{Now: time.UnixMilli(now)}
	for _, name := range slices.Sorted(maps.Keys(m.nodes)) {
		p := m.nodes[name].profile(now)
		p.Node = name
		changes.Profiles = append(changes.Profiles, p)
	}
	return []pool.Changes{changes}, nil
}

func (n *memoryNode) profile(now int64) pool.Profile {
	p := pool.Profile{
		Open: n.beat.Whole && n.beat.Epoch == n.epoch && !n.wasShared, Begun: len(n.begun),
		Capacity: n.beat.Capacity, Idle: n.beat.Idle, Unused: n.unused(now),
	}
	if n.beatAt > 0 {
		p.Heard = time.UnixMilli(n.beatAt)
	}
	names := make(map[string]bool)
	for _, donor := range n.donors("") {
		if lent := n.lent(donor); !lent.Add(donor.spare).IsZero() {
			names[donor.domain] = true
		}
	}
	for _, b := range n.begun {
		if !b.Want.IsZero() {
			names[b.Domain] = true
		}
	}
	for name := range names {
		if p.Domains == nil {
			p.Domains = make(map[string]pool.DomainProfile)
		}
		p.Domains[name] = n.domainProfile(now, name, p.Open)
	}
	return p
}

// domainProfile returns what can be borrowed in a domain.
func (n *memoryNode) domainProfile(now int64, domain string, open bool) (d pool.DomainProfile) {
	var room api.Resources
	if open {
		room = n.beat.Lendable.Sub(n.onLoan("")).Max(api.Resources{})
	}
	donors := slices.DeleteFunc(n.donors(domain), func(p *memoryPod) bool { return n.expires(p) <= now })
	for _, p := range donors {
		d.Surplus = d.Surplus.Add(p.spare)
	}
	for _, b := range n.begun {
		if b.Domain == domain {
			d.Lacks = d.Lacks.Add(b.Want.Sub(n.borrowed(b)).Max(api.Resources{}))
		}
	}
	// For each moment at which a donor ends, add up what the donors that end later have.
	var at []int64
	for _, p := range donors {
		at = append(at, n.expires(p))
	}
	slices.Sort(at)
	d.Lends = []pool.Step{{}}
	for i, from := range append([]int64{0}, slices.Compact(at)...) {
		var lasts api.Resources
		for _, p := range donors {
			if n.expires(p) > from {
				lasts = lasts.Add(p.spare)
			}
		}
		step := pool.Step{Volume: lasts.Min(room)}
		if i == 0 {
			d.Lends[0] = step
		} else if step.From = time.UnixMilli(from); step.Volume != d.Lends[len(d.Lends)-1].Volume {
			d.Lends = append(d.Lends, step)
		}
	}
	return d
}

// rate returns what b is predicted to use on average, in milli CPU, no more than at its peak; 0 when that is not known.
func (b *begun) rate() int64 {
	millis := wholeMillis(b.Duration)
	if !b.Ranked || millis == 0 {
		return 0
	}
	return min(ceilMillis(b.CPUTime)*1000/millis, b.Predicted.CPUMilli)
}

func (n *memoryNode) rate() (sum int64) {
	for _, b := range n.begun {
		sum += b.rate()
	}
	return sum
}

// noteUse takes in how much of the node's CPU was unused. On a busy node, invocations that wait
// for CPU get it first.
func (n *memoryNode) noteUse() {
	capacity, idle := n.beat.Capacity.CPUMilli, n.beat.Idle.CPUMilli
	n.rateThen, n.unusedThen = n.rate(), idle
	if idle < capacity/busyPart {
		n.unusedThen -= max(0, n.rateThen-(capacity-idle))
	}
}

func (n *memoryNode) unused(now int64) []pool.Step {
	left := n.unusedThen + n.rateThen - n.rate()
	steps := []pool.Step{{Volume: api.Resources{CPUMilli: max(0, left)}}}
	ends := slices.SortedFunc(maps.Values(n.begun), func(x, y *begun) int {
		return cmp.Or(cmp.Compare(x.expires, y.expires), strings.Compare(x.ID, y.ID))
	})
	for _, b := range ends {
		if b.expires <= now || b.rate() == 0 {
			continue
		}
		left += b.rate()
		step := pool.Step{From: time.UnixMilli(b.expires), Volume: api.Resources{CPUMilli: max(0, left)}}
		if last := &steps[len(steps)-1]; last.From.Equal(step.From) {
			*last = step
		} else {
			steps = append(steps, step)
		}
	}
	return steps
}
