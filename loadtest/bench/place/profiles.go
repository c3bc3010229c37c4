package main

import (
	"context"
	"math/rand/v2"
	"time"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/pool"
)

// profiles makes up the profiles of nodes, some of which change from one call to the next. It is the source of a
// picture.
type profiles struct {
	o         options
	mostMilli int64
	random    *rand.Rand
	asked     int
	// gate holds a value while the picture must not change.
	gate chan struct{}
}

func newProfiles(o options, mostMilli int64) *profiles {
	return &profiles{o: o, mostMilli: mostMilli, random: rand.New(rand.NewPCG(o.seed, 1)), gate: make(chan struct{}, 1)}
}

// ReadProfiles returns all nodes the first time. After that it returns those that change and, as in a cluster, a
// tenth of the others for their heartbeats.
func (p *profiles) ReadProfiles(ctx context.Context, _ pool.Moments) ([]pool.Changes, error) {
	select {
	case p.gate <- struct{}{}:
		defer func() { <-p.gate }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	now := time.Now()
	changes := pool.Changes{Now: now}
	for i := range p.o.nodes {
		if p.asked == 0 || p.random.IntN(p.o.nodes) < p.o.changing || (i+p.asked)%10 == 0 {
			changes.Profiles = append(changes.Profiles, p.profile(i, now))
		}
	}
	p.asked++
	return []pool.Changes{changes}, nil
}

// profile returns the profile of a node whose donors end within two seconds and together lend up to mostMilli.
func (p *profiles) profile(node int, now time.Time) pool.Profile {
	lends := make([]pool.Step, p.o.steps+1)
	left := api.Resources{CPUMilli: p.random.Int64N(p.mostMilli), MemoryBytes: p.random.Int64N(4 << 30)}
	at := now
	for i := range lends {
		lends[i] = pool.Step{Volume: left}
		if i > 0 {
			at = at.Add(time.Duration(1 + p.random.Int64N(int64(2*time.Second)/int64(p.o.steps))))
			lends[i].From = at
		}
		left = api.Resources{CPUMilli: left.CPUMilli * 9 / 10, MemoryBytes: left.MemoryBytes * 9 / 10}
	}
	return pool.Profile{
		Node: nodeName(node), Heard: now, Open: true, Begun: p.random.IntN(50),
		Capacity: api.Resources{CPUMilli: 32_000, MemoryBytes: 64 << 30},
		Idle:     api.Resources{CPUMilli: p.random.Int64N(32_000), MemoryBytes: p.random.Int64N(64 << 30)},
		Unused:   lends,
		Domains:  map[string]pool.DomainProfile{namespace: {Lends: lends}},
	}
}
