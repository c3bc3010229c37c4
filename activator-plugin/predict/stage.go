package predict

import "k8s.io/apimachinery/pkg/types"

// Stage is how far the predictor has come with a function.
type Stage int

const (
	// Unseen means that there is no table, or that the predictor does not answer.
	Unseen Stage = iota
	// Learning means that the table predicts no demand yet.
	Learning
	// Learned means that the table predicts demand.
	Learned
)

// Stage returns how far the predictor has come with a function, as far as the Client knows: it
// asks nobody.
func (c *Client) Stage(name types.NamespacedName) Stage {
	f := c.find(name)
	if f == nil {
		return Unseen
	}
	switch s := f.state.Load(); {
	case s.table == nil || !c.usable(s, c.clock.Now()):
		return Unseen
	case s.table.predictsNothing():
		return Learning
	default:
		return Learned
	}
}
