package tapp

import (
	"cmp"

	"libra.dev/libra/activator-plugin/placement"
	"libra.dev/libra/pkg/api/v1alpha1"
)

// zoning is what a program knows about the controllers of its blocks, as bits of blocks.
type zoning struct {
	// passing are the blocks whose requests go to an activator in another zone if one can be reached. own are the blocks
	// whose controller is in this activator's zone.
	passing, own uint64
	zones        [maxBlocks]string // of the controllers of passing blocks
	// used are the blocks that this activator uses, even if only as a stand-in for another.
	used uint64
}

func (z *zoning) addZone(number int, controller *v1alpha1.Controller, used, outside bool) {
	bit := uint64(1) << number
	if used {
		z.used |= bit
	}
	switch {
	case controller == nil:
	case !outside:
		z.own |= bit
	case cmp.Or(controller.Outside, v1alpha1.OutsideForward) == v1alpha1.OutsideForward:
		z.passing |= bit
		z.zones[number] = controller.Zone
	}
}

// preferred returns the blocks to take the next from, among those left. If chance orders the blocks, the activator that
// passed a request on has drawn a block of this zone.
func (p *Program) preferred(q *placement.Query, left uint64) uint64 {
	if own := left & p.own; q.Forwarded && own != 0 && p.order == v1alpha1.Random {
		return own
	}
	return left
}

// where says who places a request.
type where int

const (
	nowhere   where = iota // no block takes it
	here                   // this activator places it
	elsewhere              // it is passed on
)

// Route is Route of placement.Router, for a program that nothing follows.
func (p *Program) Route(q *placement.Query, candidates func() []placement.Candidate, reachable func(zone string) bool) (zone string, forward bool) {
	zone, where := p.route(q, candidates, reachable)
	return zone, where == elsewhere
}

// route tries the blocks in their order. If a block's controller can be reached, the request goes there, whatever
// becomes of it. Any other block that is used here is this activator's to place if it has a valid worker. While no pod
// has a free slot, or none exists yet, the request waits here for one, and may then go to any block that is used here.
func (p *Program) route(q *placement.Query, candidates func() []placement.Candidate, reachable func(zone string) bool) (string, where) {
	if q.Forwarded {
		return "", here
	}
	c := choices.Get().(*choice)
	defer c.end()
	begun := false
	for left := uint64(1)<<len(p.blocks) - 1; left != 0; {
		number := p.next(q, left)
		bit := uint64(1) << number
		left &^= bit
		switch {
		case p.passing&bit != 0 && reachable(p.zones[number]):
			return p.zones[number], elsewhere
		case p.used&bit == 0:
		default:
			if !begun {
				begun = true
				c.begin(p, q, candidates())
			}
			if len(c.candidates) == 0 || c.check(p.blocks[number].workers) != 0 {
				return "", here
			}
		}
	}
	return "", nowhere
}

// Routes implements placement.Router.
func (e *enforced) Routes(namespace string) bool {
	d := e.followedBy(namespace)
	return e.passing != 0 || d != nil && d.passing != 0
}

// Route implements placement.Router. The default follows a policy whose followup is not fail, as in Place.
func (e *enforced) Route(q *placement.Query, candidates func() []placement.Candidate, reachable func(zone string) bool) (zone string, forward bool) {
	zone, where := e.route(q, candidates, reachable)
	if d := e.followedBy(q.Revision.Namespace); where == nowhere && d != nil {
		zone, where = d.route(q, candidates, reachable)
	}
	return zone, where == elsewhere
}
