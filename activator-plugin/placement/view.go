package placement

import (
	"time"

	"libra.dev/libra/pkg/api"
)

// View is a node's pool, as functions of one domain see it. Whoever asks Picture.View for it keeps
// it, and what it says follows the picture. It may be nil, for a node that is not known. All of it may be
// used by several at a time.
type View struct{}

// Coverage says how much of a demand its node can satisfy from now on, 0 to 1 (LIBRA, section 6.2): of each
// resource the volume that can be had at each moment, over the volume times the time, and 1 of one
// that is not wanted. What this activator has decided since the picture was taken is taken off. It is
// not known when the picture is too old, or has nothing of the node.
func (v *View) Coverage(source api.Source, d Demand, now time.Time) (coverage float64, known bool) {
	return 0, false
}

// Debit takes a demand off what the node can lend, until the picture has heard more of the node.
func (v *View) Debit(source api.Source, d Demand, now time.Time) {}

// Pressure is which share of a node is in use, 0 to 1.
type Pressure struct {
	CPU    float64 // over the last second
	Memory float64
}

// Pressure is that of its node.
func (v *View) Pressure(now time.Time) (p Pressure, known bool) { return Pressure{}, false }

// InFlight is how many invocations have begun on its node, of all activators.
func (v *View) InFlight(now time.Time) (n int, known bool) { return 0, false }
