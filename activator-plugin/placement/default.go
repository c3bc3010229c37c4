package placement

// Default is Coverage for a request that can be accelerated, and Hash for all others, so that those
// leave room on the nodes that they do not go to.
func Default(q *Query, candidates []Candidate) int {
	if q.Demand.Accelerable() {
		return Coverage(q, candidates)
	}
	return Hash(q, candidates)
}
