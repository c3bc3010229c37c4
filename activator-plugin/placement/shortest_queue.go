package placement

import "math"

// JoinShortestQueue takes the pod with the fewest requests of this activator. If several tie, it takes
// one on the node with the fewest of all activators, and if those tie, any.
func JoinShortestQueue(q *Query, candidates []Candidate) int {
	best, same := 0, 1
	inPod, onNode := candidates[0].InFlight, candidates[0].onNode(q)
	for i := 1; i < len(candidates); i++ {
		c := &candidates[i]
		if c.InFlight > inPod {
			continue
		}
		n := c.onNode(q)
		switch {
		case c.InFlight < inPod || n < onNode:
			best, same, inPod, onNode = i, 1, c.InFlight, n
		case n == onNode:
			if same++; q.Below(same) == 0 {
				best = i
			}
		}
	}
	return best
}

// onNode returns how many invocations are on its node, or the largest int if that is not known.
func (c *Candidate) onNode(q *Query) int {
	if n, known := c.View.InFlight(q.Now); known {
		return n
	}
	return math.MaxInt
}
