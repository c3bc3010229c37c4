package main

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"libra.dev/libra/pkg/api"
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
	pod        part = "pod"    // of a function
	sourcePart part = "source" // of CPU, in the settings
	workerNode part = "worker" // one without functions
)

// kind is a way to break one part.
type kind struct {
	part   part
	action string
	// onStock means that stock Knative has the part, too, where it is broken for comparison.
	onStock bool
	// inPairs means that the kind may be drawn for a pair.
	inPairs bool
	// only is the one source under which the kind makes sense; empty means both.
	only api.Source
	// crowded means that a bystander wants the CPU that functions use, and that the fault
	// begins when one of them is held.
	crowded bool
	// several means that the box must have several nodes.
	several bool
}

// name returns the name that --only takes and the table shows.
func (k kind) name() string { return string(k.part) + "-" + k.action }

// under reports whether the kind makes sense under a source.
func (k kind) under(source api.Source) bool { return k.only == "" || k.only == source }

const (
	kill  = "kill"  // SIGKILL; Kubernetes restarts the container
	pause = "pause" // SIGSTOP for a while: the part sees its clock jump
	fill  = "fill"  // no room: every write is refused for a while
	flush = "flush" // everything is deleted, several times
	gone  = "gone"  // for longer than others wait for it; nothing restarts it meanwhile

	killHolding  = "kill-holding"  // like kill, while functions are held
	pauseHolding = "pause-holding" // like pause, while functions are held

	evict   = "evict"
	remove  = "delete"
	restart = "restart" // SIGKILL and a restart, of the user container or of a component

	flip = "flip" // to the other source and back, several times

	cut = "cut" // off from the other nodes for a while
)

// kinds has all faults. The box restarts its own components only on request; the API server
// is paused, not killed.
var kinds = []kind{
	{part: activator, action: kill, onStock: true, inPairs: true},
	{part: activator, action: pause, onStock: true, inPairs: true},
	{part: predictor, action: kill, inPairs: true},
	{part: predictor, action: pause, inPairs: true},
	{part: redisPart, action: kill, inPairs: true},
	{part: redisPart, action: pause, inPairs: true},
	{part: redisPart, action: gone, only: api.SourceNode},
	{part: redisPart, action: fill},
	{part: redisPart, action: flush},
	{part: controller, action: kill, inPairs: true},
	{part: controller, action: pause, inPairs: true},
	{part: controller, action: gone, only: api.SourceNode},
	{part: agent, action: kill, inPairs: true},
	{part: agent, action: pause, inPairs: true},
	{part: agent, action: killHolding, only: api.SourceNode, crowded: true},
	{part: agent, action: pauseHolding, only: api.SourceNode, crowded: true},
	{part: agent, action: gone, only: api.SourceNode, crowded: true},
	{part: kubelet, action: pause, onStock: true, inPairs: true},
	{part: kubelet, action: restart, onStock: true},
	{part: apiServer, action: pause, onStock: true, inPairs: true},
	{part: pod, action: evict},
	{part: pod, action: remove},
	{part: pod, action: restart},
	{part: sourcePart, action: flip},
	{part: workerNode, action: cut, several: true},
	{part: workerNode, action: gone, several: true},
}

const (
	// A pause is longer than a lease, so that leases expire in it. It is shorter than
	// liveness probes (three times ten seconds) and leader elections (ten seconds) take to
	// act, which would be another fault than the one named. The resizer's lease is shorter,
	// so that its other pod may take over.
	leastPause, mostPause = 6 * time.Second, 9 * time.Second
	// A part is gone for longer than the agent waits for the controller to set a ceiling, and
	// the controller for an agent (docs/resizer.md).
	leastGone, mostGone = 15 * time.Second, 18 * time.Second
	// The two faults of a pair overlap.
	mostApart = 3 * time.Second
	// The lead varies with the seed, so that faults find different requests in flight.
	leastLead, mostLead = 0, 2 * time.Second
)

// fault is one kind at one time.
type fault struct {
	kind
	after  time.Duration // since the trial's first fault began
	length time.Duration // until chaos ends it; 0 if the cluster recovers by itself
}

// trial is one run under load: one fault, or a pair.
type trial struct {
	name   string
	source api.Source    // empty with stock, where nothing is lent
	stock  bool          // with the stock activator
	lead   time.Duration // from steady load until the first fault
	seed   uint64        // of the load
	faults []fault
}

// allSources is what --source both stands for. Owners come first: lending needs what the demo
// has just learned.
var allSources = []api.Source{api.SourceOwners, api.SourceNode}

// sourcesOf returns the sources that --source names.
func sourcesOf(said string) ([]api.Source, error) {
	if said == "both" {
		return allSources, nil
	}
	source, err := api.ParseSource(said)
	if err != nil {
		return nil, fmt.Errorf("--source is %.64q; it must be %s, %s or both", said, api.SourceNode, api.SourceOwners)
	}
	return []api.Source{source}, nil
}

// makePlan makes the trials with Libra, source by source, and the trials with stock that both
// are compared with. only has names of kinds and of pairs; none means all. several says that
// the box has several nodes.
func makePlan(seed uint64, pairs int, only []string, sources []api.Source, several bool) (libra, stock []trial, err error) {
	var all []trial
	for i, k := range kinds {
		if k.several && !several {
			continue
		}
		// Each trial has its own random numbers, so that it stays the same whatever else
		// runs.
		rng := rand.New(rand.NewPCG(seed, uint64(i)))
		all = append(all, newTrial(rng, k.name(), k))
	}
	rng := rand.New(rand.NewPCG(seed, 1<<32))
	for i := range pairs {
		a, b := drawPair(rng)
		all = append(all, newTrial(rng, pairName(i), a, b))
	}
	for _, name := range only {
		i := slices.IndexFunc(all, func(t trial) bool { return t.name == name })
		if i < 0 {
			return nil, nil, fmt.Errorf("--only names %q; want some of %s", name, strings.Join(names(all), ", "))
		}
		if !slices.ContainsFunc(sources, all[i].under) {
			return nil, nil, fmt.Errorf("--only names %q, which exists only under the source %s", name, all[i].faults[0].only)
		}
	}
	wanted := func(t trial) bool { return len(only) == 0 || slices.Contains(only, t.name) }
	for _, source := range sources {
		for _, t := range all {
			if wanted(t) && t.under(source) {
				t.source = source
				libra = append(libra, t)
			}
		}
	}
	for _, t := range all {
		// A pair loses the faults of parts that stock does not have.
		t.faults = slices.DeleteFunc(slices.Clone(t.faults), func(f fault) bool { return !f.onStock })
		if wanted(t) && len(t.faults) > 0 {
			t.stock = true
			stock = append(stock, t)
		}
	}
	return libra, stock, nil
}

// on returns the trial's source, or stock.
func (t trial) on() string {
	if t.stock {
		return "stock"
	}
	return string(t.source)
}

// under reports whether all of the trial's faults make sense under a source.
func (t trial) under(source api.Source) bool {
	return !slices.ContainsFunc(t.faults, func(f fault) bool { return !f.under(source) })
}

// crowded reports whether the trial needs a bystander that wants CPU.
func (t trial) crowded() bool {
	return slices.ContainsFunc(t.faults, func(f fault) bool { return f.crowded })
}

func newTrial(rng *rand.Rand, name string, kinds ...kind) trial {
	t := trial{name: name, lead: between(rng, leastLead, mostLead), seed: rng.Uint64()}
	for i, k := range kinds {
		f := fault{kind: k}
		if i > 0 {
			f.after = between(rng, 0, mostApart)
		}
		switch k.action {
		case pause, pauseHolding, fill, flush, flip, cut: // flush and flip repeat until then
			f.length = between(rng, leastPause, mostPause)
		case gone:
			f.length = between(rng, leastGone, mostGone)
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

// what describes the trial's faults.
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
