package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"libra.dev/libra/activator-plugin/placement"
	"libra.dev/libra/loadtest/bench/rig"
	"libra.dev/libra/loadtest/bench/stats"
	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/pool"
	"libra.dev/libra/pkg/settings"
)

// grantedGoal is for the CPU that invocations were granted, as a share of what they were placed for.
var grantedGoal = stats.Goal{Bound: 0.85, AtLeast: true}

const mostPlacing = 16

// measurePlaced has activators place invocations on a Redis of their own.
func (p picturing) measurePlaced(ctx context.Context, as shipped, pinned bool, out io.Writer) (_ map[string]float64, err error) {
	p.standing, p.connections = 0, 2*p.activators // each activator has two pods on a node
	s, err := startServer(ctx, as, pinned)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.stop()) }()
	l, err := newLoad(ctx, p.options, s.addr, p.nodes[0])
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, l.close()) }()
	var granted []float64
	var total promises
	if err := l.place(ctx, p, func(round *promises) {
		granted = append(granted, round.share())
		total.add(round)
		fmt.Fprintf(out, "round %d of %d: %.0f core-seconds were promised to %d of %d invocations that wanted some, and %.3f of that was granted\n",
			len(granted), p.rounds, round.coreSeconds(), round.number.Load(), round.wanted.Load(), round.share())
	}); err != nil {
		return nil, err
	}
	share := stats.Mean(granted)
	fmt.Fprintf(out, "%d activators: share granted of what was promised: %.3f (%.3f to %.3f); %s: %s\n",
		p.activators, share.Estimate, share.Low, share.High, grantedGoal, stats.Said(grantedGoal.Absolute(share)))
	return map[string]float64{
		"granted_over_promised": share.Estimate, "granted_over_promised_low": share.Low, "granted_over_promised_high": share.High,
		"begun_over_promised": float64(total.begun.Load()) / float64(max(total.promised.Load(), 1)),
		"share_with_choice":   float64(total.chosen.Load()) / float64(max(total.requests.Load(), 1)),
		"promised_core_s":     total.coreSeconds(), "promised_to": float64(total.number.Load()), "wanted": float64(total.wanted.Load()),
		"failed_calls": float64(total.failed.Load()), "activators": float64(p.activators), "placed_invocations_per_s": p.placed,
	}, nil
}

// promises has, in milli CPU times milliseconds, what invocations were placed for, what they borrowed of that until they
// ended, and what they would have borrowed had they kept what they had when they began. The activator's metric
// libra.placement.cpu has the last.
type promises struct {
	promised, granted, begun atomic.Int64
	number, wanted, failed   atomic.Int64
	// requests counts all, and chosen those that could go to more than one pod.
	requests, chosen atomic.Int64
	running          sync.WaitGroup
}

func (p *promises) add(o *promises) {
	p.promised.Add(o.promised.Load())
	p.granted.Add(o.granted.Load())
	p.begun.Add(o.begun.Load())
	p.number.Add(o.number.Load())
	p.wanted.Add(o.wanted.Load())
	p.failed.Add(o.failed.Load())
	p.requests.Add(o.requests.Load())
	p.chosen.Add(o.chosen.Load())
}

func (p *promises) share() float64 {
	return float64(p.granted.Load()) / float64(max(p.promised.Load(), 1))
}
func (p *promises) coreSeconds() float64 { return float64(p.promised.Load()) / 1e6 }

// activator is an activator that places invocations.
type activator struct {
	pools           *pool.Redis
	donors, wanting *placement.Revision
	dests           []string
	random          *rand.Rand
	borrowed        *loans // by all activators
}

// place calls tell with each round that counts.
func (l *load) place(ctx context.Context, p picturing, tell func(*promises)) (err error) {
	following, stop := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer stop()
	borrowed := newLoans()
	var activators []*activator
	for i := range p.activators {
		a, err := l.newActivator(following, &running, i, p.seed)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, a.pools.Close()) }()
		a.borrowed = borrowed
		activators = append(activators, a)
	}
	// The first round fills up until as much is in flight as later. The last runs until the one before it has ended.
	var rounds []*promises
	defer func() {
		for _, of := range rounds {
			of.running.Wait()
		}
	}()
	for round := range p.rounds + 2 {
		of := &promises{}
		rounds = append(rounds, of)
		var placing sync.WaitGroup
		for i, a := range activators {
			placing.Go(func() { l.placing(ctx, a, p, fmt.Sprintf("%d-%d", round, i), i, of) })
		}
		placing.Wait()
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if round > 1 {
			rounds[round-1].running.Wait()
			tell(rounds[round-1])
		}
	}
	return nil
}

// owners is the source of all pods.
type owners struct{}

func (owners) Source(string, string) api.Source { return api.SourceOwners }
func (owners) For(string) settings.Settings     { return settings.Default }

func (l *load) newActivator(ctx context.Context, running *sync.WaitGroup, number int, seed uint64) (*activator, error) {
	a := &activator{pools: pool.NewRedis(l.server), random: rand.New(rand.NewPCG(seed, uint64(number)))}
	picture, err := newPicture(a.pools)
	if err != nil {
		return nil, errors.Join(err, a.pools.Close())
	}
	running.Go(func() { picture.Run(ctx) })
	slots := placement.NewSlots(picture, owners{})
	donors, wanting := types.NamespacedName{Namespace: "default", Name: "donor"}, types.NamespacedName{Namespace: "default", Name: "wanting"}
	activators := l.connections / 2
	for _, id := range []types.NamespacedName{donors, wanting} {
		// Each activator has one of the pods on a node.
		slots.SetActivators(id, number, activators)
		for i, n := range l.nodes {
			for of := range activators {
				ip := fmt.Sprintf("10.%d.%d.%d", of, i>>8, i&255)
				slots.SetPod(id, placement.Pod{Name: fmt.Sprintf("default/%s-%06d-%02d", id.Name, i, of), Node: n.name, IPs: []string{ip}, Ready: true})
			}
			if id == wanting {
				a.dests = append(a.dests, fmt.Sprintf("10.%d.%d.%d:8012", number, i>>8, i&255))
			}
		}
	}
	a.donors, a.wanting = slots.Of(donors, 1), slots.Of(wanting, 1)
	return a, nil
}

// placing makes an activator place invocations for the length of a round. Half of them lend and half borrow. They end
// by themselves.
func (l *load) placing(ctx context.Context, a *activator, p picturing, prefix string, number int, of *promises) {
	start := time.Now()
	for i := 0; ; i++ {
		due := start.Add(time.Duration(float64(i*p.activators) / p.placed * float64(time.Second)))
		if due.Sub(start) >= p.length || rig.Pause(ctx, time.Until(due)) != nil {
			return
		}
		inv := l.invocation(fmt.Sprintf("placed-%s-%d", prefix, i), podOf(2*number), a.random.IntN(l.revisions))
		inv.Duration = 200*time.Millisecond + rand.N(1800*time.Millisecond)
		ask := placement.Ask{Policy: placement.Random, Now: time.Now()}
		pods := a.donors
		if i%2 == 0 {
			inv.Surplus = api.Resources{CPUMilli: 100 * (1 + a.random.Int64N(9))}
		} else {
			inv.Pod, pods = podOf(2*number+1), a.wanting
			inv.Want = api.Resources{CPUMilli: 100 * (1 + a.random.Int64N(9))}
			ask.Policy, ask.Demand = placement.Coverage, placement.Demand{Want: inv.Want, Duration: inv.Duration, OwnCPUMilli: allocation.CPUMilli}
		}
		choice := pods.Take(a.dests[a.random.IntN(len(a.dests))], ask)
		of.requests.Add(1)
		if choice.Outcome == placement.Moved || choice.Outcome == placement.Kept {
			of.chosen.Add(1)
		}
		of.running.Go(func() {
			defer choice.Release()
			l.invoke(ctx, a, choice, inv, of)
		})
	}
}

// invoke begins an invocation where it was placed, and ends it after its duration.
func (l *load) invoke(ctx context.Context, a *activator, choice placement.Choice, inv pool.Invocation, of *promises) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTimeout+inv.Duration)
	defer cancel()
	// An invocation without a free slot shares a pod, and then it is not known which one borrows what.
	wants := inv.Want.CPUMilli > 0 && !choice.Over
	if wants {
		a.borrowed.begin(choice.Node, inv.Pod)
	}
	note := func(err error) {
		if err != nil {
			of.failed.Add(1)
		}
	}
	atFirst, begunErr := a.pools.Begin(ctx, choice.Node, inv)
	note(begunErr)
	note(a.borrowed.changed(ctx, a.pools, choice.Node))
	_ = rig.Pause(ctx, inv.Duration)
	if wants {
		granted := a.borrowed.end(choice.Node, inv.Pod)
		of.wanted.Add(1)
		if promised := choice.PromisedCPUMilli; promised > 0 {
			of.number.Add(1)
			promise := promised * inv.Duration.Milliseconds()
			of.promised.Add(promise)
			of.granted.Add(min(granted, promise)) // more than one was promised makes up for no other
			of.begun.Add(atFirst.CPUMilli * inv.Duration.Milliseconds())
		}
	}
	_, err := a.pools.End(ctx, choice.Node, pool.Ending{ID: inv.ID, Duration: inv.Duration, Status: 200, BeginAnswered: begunErr == nil})
	note(err)
	note(a.borrowed.changed(ctx, a.pools, choice.Node))
}
