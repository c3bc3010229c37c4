package predict

import "k8s.io/apimachinery/pkg/types"

// Stage is how far the predictor is with a function.
type Stage int

const (
	// Unseen has no table, or no predictor that answers.
	Unseen Stage = iota
	// Learning has a table that predicts no demand yet.
	Learning
	// Learned has predictions.
	Learned
)

// Stage returns how far the predictor is with a function, as far as it is known: it asks nobody.
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
