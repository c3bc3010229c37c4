package placement

// Random takes any candidate.
func Random(q *Query, candidates []Candidate) int { return q.below(len(candidates)) }
