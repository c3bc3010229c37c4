package main

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// part is what a fault breaks.
type part string

const (
	activator  part = "activator"
	predictor  part = "predictor"
	redisPart  part = "redis"
	controller part = "controller"
	agent      part = "agent"
	kubelet    part = "kubelet"
	apiServer  part = "apiserver"
	pod        part = "pod" // of a function
)

// kind is a way to break one part.
type kind struct {
	part   part
	action string
	// onStock says that stock Knative has the part too, and is broken for comparison.
	onStock bool
	// inPairs says that pairs are drawn from it.
	inPairs bool
}

// name is what --only takes and the table shows.
func (k kind) name() string { return string(k.part) + "-" + k.action }

const (
	kill  = "kill"  // SIGKILL; Kubernetes starts the container again
	pause = "pause" // SIGSTOP for a while: to the part itself, its clock jumps
	fill  = "fill"  // no room: every write is refused for a while
	flush = "flush" // everything is deleted, some times over

	evict   = "evict"
	remove  = "delete"
	restart = "restart" // SIGKILL to the user container
)

// kinds are all the faults. The box starts its own components once, so the kubelet and
// the API server are paused and not killed.
var kinds = []kind{
	{activator, kill, true, true},
	{activator, pause, true, true},
	{predictor, kill, false, true},
	{predictor, pause, false, true},
	{redisPart, kill, false, true},
	{redisPart, pause, false, true},
	{redisPart, fill, false, false},
	{redisPart, flush, false, false},
	{controller, kill, false, true},
	{controller, pause, false, true},
	{agent, kill, false, true},
	{agent, pause, false, true},
	{kubelet, pause, true, true},
	{apiServer, pause, true, true},
	{pod, evict, false, false},
	{pod, remove, false, false},
	{pod, restart, false, false},
}

const (
	// A pause outlives a lease, so that leases run out in it, and stays below what
	// makes liveness probes (three times ten seconds) and leader elections (ten
	// seconds) take action: another fault than the one that is named.
	leastPause, mostPause = 6 * time.Second, 9 * time.Second
	// Two faults of a pair overlap.
	mostApart = 3 * time.Second
	// What is in flight when a fault begins differs from seed to seed.
	leastLead, mostLead = 0, 2 * time.Second
)

// fault is one kind at one time.
type fault struct {
	kind
	after  time.Duration // since the beginning of the trial's first fault
	length time.Duration // of a pause or a fill; 0 where the cluster mends it by itself
}

// trial is one run under load: one fault, or a pair.
type trial struct {
	name   string
	stock  bool          // with the stock activator
	lead   time.Duration // from when the load is steady until the first fault
	seed   uint64        // of the load
	faults []fault
}

// makePlan makes the trials with Libra and those with stock. only are names of kinds and of
// pairs; none are all.
func makePlan(seed uint64, pairs int, only []string) (libra, stock []trial, err error) {
	var all []trial
	for i, k := range kinds {
		// Each has its own random numbers, so that it is the same whatever else runs.
		rng := rand.New(rand.NewPCG(seed, uint64(i)))
		all = append(all, newTrial(rng, k.name(), k))
	}
	rng := rand.New(rand.NewPCG(seed, 1<<32))
	for i := range pairs {
		a, b := drawPair(rng)
		all = append(all, newTrial(rng, pairName(i), a, b))
	}
	for _, name := range only {
		if !slices.ContainsFunc(all, func(t trial) bool { return t.name == name }) {
			return nil, nil, fmt.Errorf("--only names %q; it must be of %s", name, strings.Join(names(all), ", "))
		}
	}
	for _, t := range all {
		if len(only) > 0 && !slices.Contains(only, t.name) {
			continue
		}
		libra = append(libra, t)
		// Of a pair, what stock has no part for is left out.
		t.faults = slices.DeleteFunc(slices.Clone(t.faults), func(f fault) bool { return !f.onStock })
		if len(t.faults) > 0 {
			t.stock = true
			stock = append(stock, t)
		}
	}
	return libra, stock, nil
}

func newTrial(rng *rand.Rand, name string, kinds ...kind) trial {
	t := trial{name: name, lead: between(rng, leastLead, mostLead), seed: rng.Uint64()}
	for i, k := range kinds {
		f := fault{kind: k}
		if i > 0 {
			f.after = between(rng, 0, mostApart)
		}
		// Flushes are spread over as long.
		if k.action == pause || k.action == fill || k.action == flush {
			f.length = between(rng, leastPause, mostPause)
		}
		t.faults = append(t.faults, f)
	}
	return t
}

// drawPair draws faults of two different parts.
func drawPair(rng *rand.Rand) (a, b kind) {
	pairable := slices.DeleteFunc(slices.Clone(kinds), func(k kind) bool { return !k.inPairs })
	a = pairable[rng.IntN(len(pairable))]
	others := slices.DeleteFunc(pairable, func(k kind) bool { return k.part == a.part })
	return a, others[rng.IntN(len(others))]
}

func pairName(i int) string { return fmt.Sprintf("pair-%02d", i+1) }

func between(rng *rand.Rand, least, most time.Duration) time.Duration {
	return least + time.Duration(rng.Int64N(int64(most-least)))
}

func names(trials []trial) []string {
	var names []string
	for _, t := range trials {
		names = append(names, t.name)
	}
	return names
}

// what says what a trial breaks.
func (t trial) what() string {
	var all []string
	for _, f := range t.faults {
		s := f.name()
		if f.length > 0 {
			s += fmt.Sprintf(" for %.1f s", f.length.Seconds())
		}
		if f.after > 0 {
			s += fmt.Sprintf(" after %.1f s", f.after.Seconds())
		}
		all = append(all, s)
	}
	return strings.Join(all, ", ")
}
