package placement

// Default is Coverage for a request that can be accelerated, and Hash for the others, so that
// they leave room where they do not come.
func Default(q *Query, candidates []Candidate) int {
	if q.Demand.Accelerable() {
		return Coverage(q, candidates)
	}
	return Hash(q, candidates)
}
