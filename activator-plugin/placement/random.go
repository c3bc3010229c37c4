package placement

// Random takes any of them.
func Random(q *Query, candidates []Candidate) int { return q.below(len(candidates)) }
