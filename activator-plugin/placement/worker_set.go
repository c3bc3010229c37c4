package placement

// loaded is the load past which a node takes no more than it has to.
const loaded = 0.8

// MinimumWorkerSet keeps a revision on as few nodes as carry it (Zhang et al., SOSP 2021). Each
// revision has an order of nodes, as in Hash. Its set are the first of them, up to the first one that has a
// free slot and is not loaded, and that one, the least loaded of the set, is taken. Where all are loaded
// it is LeastPressure. A node of which nothing is known is not loaded.
func MinimumWorkerSet(q *Query, candidates []Candidate) int {
	revision := hashOf(q.Revision)
	best := -1
	var highest uint64
	for i := range candidates {
		c := &candidates[i]
		if best >= 0 && c.Node == candidates[best].Node {
			if c.InFlight < candidates[best].InFlight {
				best = i
			}
			continue
		}
		score := rendezvous(revision, c.Node)
		if best >= 0 && score <= highest {
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
