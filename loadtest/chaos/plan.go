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
	sourcePart part = "source" // of what is lent, in the settings
	workerNode part = "worker" // another than the functions are on
)

// kind is a way to break one part.
type kind struct {
	part   part
	action string
	// onStock says that stock Knative has the part too, and is broken for comparison.
	onStock bool
	// inPairs says that pairs are drawn from it.
	inPairs bool
	// only is the source under which it makes sense; empty for both.
	only api.Source
	// crowded says that a pod that did not opt in wants the CPU that functions use, and that
	// the fault begins when one of them is held for it.
	crowded bool
	// several says that there must be several nodes.
	several bool
}

// name is what --only takes and the table shows.
func (k kind) name() string { return string(k.part) + "-" + k.action }

// under says that the kind makes sense under a source.
func (k kind) under(source api.Source) bool { return k.only == "" || k.only == source }

const (
	kill  = "kill"  // SIGKILL; Kubernetes starts the container again
	pause = "pause" // SIGSTOP for a while: to the part itself, its clock jumps
	fill  = "fill"  // no room: every write is refused for a while
	flush = "flush" // everything is deleted, some times over
	gone  = "gone"  // for longer than others wait for it, and nobody starts it again meanwhile

	killHolding  = "kill-holding"  // as kill, while functions are held to their allocations
	pauseHolding = "pause-holding" // as pause, likewise

	evict   = "evict"
	remove  = "delete"
	restart = "restart" // SIGKILL, and started again: to the user container, or to a component

	flip = "flip" // to the other one and back, some times over

	cut = "cut" // off from the other nodes for a while
)

// kinds are all the faults. The box starts its own components again only when it is
// asked to; the API server is paused and not killed.
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
	// A pause outlives a lease, so that leases run out in it, and stays below what
	// makes liveness probes (three times ten seconds) and leader elections (ten
	// seconds) take action: another fault than the one that is named. The resizer's lease is
	// shorter, so that its other pod may take over.
	leastPause, mostPause = 6 * time.Second, 9 * time.Second
	// What is gone is so for longer than the agent waits for the controller to set a
	// ceiling, and the controller for an agent (docs/resizer.md).
	leastGone, mostGone = 15 * time.Second, 18 * time.Second
	// Two faults of a pair overlap.
	mostApart = 3 * time.Second
	// What is in flight when a fault begins differs from seed to seed.
	leastLead, mostLead = 0, 2 * time.Second
)

// fault is one kind at one time.
type fault struct {
	kind
	after  time.Duration // since the beginning of the trial's first fault
	length time.Duration // of what is ended here; 0 where the cluster mends it by itself
}

// trial is one run under load: one fault, or a pair.
type trial struct {
	name   string
	source api.Source    // empty with stock, where nothing is lent
	stock  bool          // with the stock activator
	lead   time.Duration // from when the load is steady until the first fault
	seed   uint64        // of the load
	faults []fault
}

// allSources are what --source both stands for. The owners' are first: to lend takes what
// the demo has just learned.
var allSources = []api.Source{api.SourceOwners, api.SourceNode}

// sourcesOf are the sources that --source names.
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

// makePlan makes the trials with Libra, source by source, and those with stock, which are
// compared with both, for a box of one node or several. only are names of kinds and of pairs;
// none are all.
func makePlan(seed uint64, pairs int, only []string, sources []api.Source, several bool) (libra, stock []trial, err error) {
	var all []trial
	for i, k := range kinds {
		if k.several && !several {
			continue
		}
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
		i := slices.IndexFunc(all, func(t trial) bool { return t.name == name })
		if i < 0 {
			return nil, nil, fmt.Errorf("--only names %q; it must be of %s", name, strings.Join(names(all), ", "))
		}
		if !slices.ContainsFunc(sources, all[i].under) {
			return nil, nil, fmt.Errorf("--only names %q, which there is under the source %s alone", name, all[i].faults[0].only)
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
		// Of a pair, what stock has no part for is left out.
		t.faults = slices.DeleteFunc(slices.Clone(t.faults), func(f fault) bool { return !f.onStock })
		if wanted(t) && len(t.faults) > 0 {
			t.stock = true
			stock = append(stock, t)
		}
	}
	return libra, stock, nil
}

// on says what the trial is on.
func (t trial) on() string {
	if t.stock {
		return "stock"
	}
	return string(t.source)
}

// under says that all of the trial's faults make sense under a source.
func (t trial) under(source api.Source) bool {
	return !slices.ContainsFunc(t.faults, func(f fault) bool { return !f.under(source) })
}

// crowded says that a pod that did not opt in is to want CPU in the trial.
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
		case pause, pauseHolding, fill, flush, flip, cut: // of some, the last ends it
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
