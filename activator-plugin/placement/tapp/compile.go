package tapp

import (
	"cmp"
	"maps"
	"math"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"libra.dev/libra/activator-plugin/placement"
	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/api/v1alpha1"
)

// Options are what a policy is compiled for, besides the nodes.
type Options struct {
	// Zone is the activator's zone. Empty means that it is in none.
	Zone string
	// PlacesPods says that the policy is for a component that places pods. It uses every block as the activators in the
	// block's zone do, and leaves the state of nodes for others to judge.
	PlacesPods bool
	// Policy returns what compares pods, for all strategies but BestFirst and Random. Nil means placement's own.
	Policy func(v1alpha1.Strategy) placement.Policy
	// Load returns what invalidate asks about a candidate's node: how much of its CPU is in use, 0 to 1, and how many
	// invocations are in flight on it. Nil means to ask the candidate's View, and what this activator has in flight there.
	Load func(q *placement.Query, c *placement.Candidate) (cpu float64, inFlight int)
}

// Compile makes a program of the policy of that name. An error says what is wrong, or the first of it.
func Compile(name string, spec *v1alpha1.PlacementPolicySpec, nodes *Nodes, o Options) (*Program, error) {
	if errs := Validate(name, spec); len(errs) > 0 {
		return nil, refusal(errs)
	}
	if o.Policy == nil {
		o.Policy = named
	}
	if o.Load == nil {
		o.Load = loadOf
	}
	p := &Program{
		name:     name,
		order:    cmp.Or(spec.Strategy, v1alpha1.BestFirst),
		followup: followupOf(name, spec),
		nodes:    nodes,
		load:     o.Load,
	}
	c := &compiler{Program: p, Options: o}
	for i := range spec.Blocks {
		c.addBlock(i, &spec.Blocks[i])
	}
	c.addMemberships()
	c.findUnmatched(spec)
	return p, nil
}

// named returns placement's policy for a strategy.
func named(s v1alpha1.Strategy) placement.Policy {
	return placement.Named(map[v1alpha1.Strategy]api.Placement{
		v1alpha1.Platform:      api.PlacementDefault,
		v1alpha1.Coverage:      api.PlacementCoverage,
		v1alpha1.Hash:          api.PlacementHash,
		v1alpha1.RoundRobin:    api.PlacementRoundRobin,
		v1alpha1.JSQ:           api.PlacementJoinShortest,
		v1alpha1.MWS:           api.PlacementMinimumWorkerSet,
		v1alpha1.LeastPressure: api.PlacementLeastPressure,
	}[s])
}

// loadOf returns what the picture of the pools knows. Unknown counts as nothing, except for this activator's own
// requests, the latest of which are not in the picture.
func loadOf(q *placement.Query, c *placement.Candidate) (cpu float64, inFlight int) {
	inFlight = q.OnNode(c)
	if c.View == nil {
		return 0, inFlight
	}
	if pressure, known := c.View.Pressure(q.Now); known {
		cpu = pressure.CPU
	}
	if n, known := c.View.InFlight(q.Now); known {
		inFlight = max(inFlight, n)
	}
	return cpu, inFlight
}

// followupOf returns what follows a policy of that name. For the default policy it is always fail.
func followupOf(name string, spec *v1alpha1.PlacementPolicySpec) v1alpha1.Followup {
	if name == v1alpha1.DefaultName {
		return v1alpha1.FollowupFail
	}
	return cmp.Or(spec.Followup, v1alpha1.FollowupDefault)
}

type compiler struct {
	*Program
	Options
	matchers []matcher
}

// matcher says which nodes are a worker.
type matcher struct {
	node     string
	selector labels.Selector // of a set, or nil
	// here says that the activator uses the worker at all. zone, if set, limits that to nodes in the zone.
	here bool
	zone string
	// unpressed says that a node under pressure is not valid.
	unpressed bool
}

func (c *compiler) addBlock(number int, b *v1alpha1.Block) {
	here, zone := true, ""
	outside := b.Controller != nil && b.Controller.Zone != c.Zone && !c.PlacesPods
	if outside {
		switch cmp.Or(b.Controller.TopologyTolerance, v1alpha1.ToleranceAll) {
		case v1alpha1.ToleranceSame:
			zone = b.Controller.Zone
		case v1alpha1.ToleranceNone:
			here = false
		}
	}
	of := block{number: number, chooser: c.chooser(cmp.Or(b.Strategy, v1alpha1.BestFirst))}
	for i := range b.Workers {
		of.workers |= 1 << len(c.workers)
		s := c.addWorker(&b.Workers[i], b.Invalidate)
		s.here, s.zone = here, zone
		c.matchers = append(c.matchers, s)
	}
	c.blocks = append(c.blocks, of)
	c.addZone(number, b.Controller, here, outside)
}

func (c *compiler) addWorker(w *v1alpha1.Worker, ofBlock *v1alpha1.Invalidate) matcher {
	of, s := worker{capacity: math.Inf(1), concurrent: noBound}, matcher{node: w.Node}
	if w.Set != nil {
		of.set, of.inherits = true, w.Strategy == ""
		of.chooser = c.chooser(cmp.Or(w.Strategy, v1alpha1.Platform))
		// Validate has found no errors in it.
		s.selector, _ = selectorOf(field.NewPath("set"), w.Set)
	} else {
		of.strategy = v1alpha1.BestFirst
	}
	invalidate := &v1alpha1.Invalidate{Overload: true}
	switch {
	case w.Invalidate != nil:
		invalidate = w.Invalidate
	case ofBlock != nil:
		invalidate = ofBlock
	}
	if percent := invalidate.CapacityUsedPercent; percent != nil {
		of.capacity = float64(*percent) / 100
	}
	if most := invalidate.MaxConcurrentInvocations; most != nil {
		of.concurrent = int(*most)
	}
	s.unpressed = invalidate.Overload
	if invalidate.CapacityUsedPercent != nil || invalidate.MaxConcurrentInvocations != nil {
		c.checked |= 1 << len(c.workers)
	}
	c.workers = append(c.workers, of)
	return s
}

func (c *compiler) chooser(s v1alpha1.Strategy) chooser {
	switch s {
	case v1alpha1.BestFirst, v1alpha1.Random:
		return chooser{strategy: s}
	default:
		return chooser{strategy: s, compare: c.Policy(s)}
	}
}

// addMemberships finds the workers that each node is among. A node that is not reachable is among none. A node that is
// not there may be reachable: its pods are ready.
func (c *compiler) addMemberships() {
	sorted := c.nodes.sorted
	c.memberships = make([]uint64, len(sorted), len(sorted)+len(c.matchers)+1)
	for i := range sorted {
		if sorted[i].Reachable || c.PlacesPods {
			c.memberships[i] = c.workersOf(sorted[i])
		}
	}
	c.absent = map[string]int32{}
	for _, s := range c.matchers {
		if _, there := c.nodes.index[s.node]; there || s.selector != nil {
			continue
		}
		if _, added := c.absent[s.node]; !added {
			c.absent[s.node] = int32(len(c.memberships))
			c.memberships = append(c.memberships, c.workersOf(Node{Name: s.node, unknown: true}))
		}
	}
	of := c.workersOf(Node{unknown: true})
	c.memberships = append(c.memberships, of)
	c.addIDs(of)
}

// addIDs indexes the memberships by NodeID. Nothing is known about an ID that none of the nodes here has. Names of nodes that
// are not there may be anything. They get no ID here, and come last: an ID that one gets from now on is beyond the index.
func (c *compiler) addIDs(unknown uint64) {
	add := func(id placement.NodeID, at int32) {
		for int(id) >= len(c.byID) {
			c.byID, c.atID = append(c.byID, unknown), append(c.atID, int32(len(c.memberships)-1))
		}
		c.byID[id], c.atID[id] = c.memberships[at], at
	}
	for name, at := range c.nodes.index {
		add(placement.NodeIDOf(name), at)
	}
	for name, id := range placement.KnownNodeIDs(maps.Keys(c.absent)) {
		add(id, c.absent[name])
	}
}

func (c *compiler) workersOf(n Node) (of uint64) {
	for i, s := range c.matchers {
		pressed := s.unpressed && n.Pressed && !c.PlacesPods
		if s.here && (s.zone == "" || s.zone == n.zone()) && s.selects(n) && !pressed {
			of |= 1 << i
		}
	}
	return of
}

// selects says whether a node is among those that the worker names.
func (s matcher) selects(n Node) bool {
	switch {
	case s.selector == nil:
		return s.node == n.Name
	case n.unknown:
		return s.selector.Empty()
	default:
		return s.selector.Matches(n.Labels)
	}
}

// findUnmatched finds the same blocks on all activators, whatever their zone.
func (c *compiler) findUnmatched(spec *v1alpha1.PlacementPolicySpec) {
	for i, b := range c.blocks {
		zone := spec.Blocks[i].Controller
		matched := false
		inZone := zone == nil
		for _, n := range c.nodes.sorted {
			inZone = inZone || n.zone() == zone.Zone
			for j, s := range c.matchers {
				matched = matched || b.workers&(1<<j) != 0 && s.selects(n)
			}
		}
		if !matched || !inZone {
			c.unmatched = append(c.unmatched, int32(i))
		}
	}
}
