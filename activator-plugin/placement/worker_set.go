package placement

// loaded is the load from which on a node takes no more than it has to.
const loaded = 0.8

// MinimumWorkerSet keeps a revision on as few nodes as can carry it (Zhang et al., SOSP 2021). Each
// revision has its own order of nodes, as in Hash. Its set is the nodes up to the first one that has a free
// slot and is not loaded. That one, the least loaded of the set, is taken. When all nodes are loaded, it is
// LeastPressure. A node about which nothing is known counts as not loaded.
func MinimumWorkerSet(q *Query, candidates []Candidate) int {
	revision := hashOf(q.Revision)
	best := -1
	var highest uint64
	for i := range candidates {
		c := &candidates[i]
		score := rendezvous(revision, c.hash)
		if best >= 0 && (score < highest || score == highest && c.InFlight >= candidates[best].InFlight) {
			continue
		}
		if load := c.load(q); load < loaded || load == unknownLoad {
			best, highest = i, score
		}
	}
	if best < 0 {
		return LeastPressure(q, candidates)
	}
	return best
}
