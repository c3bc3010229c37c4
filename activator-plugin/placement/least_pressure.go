package placement

// A node's load is mostly that of its CPU.
const cpuOfLoad, memoryOfLoad = 0.8, 0.2

// unknownLoad is more than any node's load.
const unknownLoad = 2

// LeastPressure takes a pod on the least loaded node, and of several there, the one with the fewest
// requests. When nothing is known about any node, it is JoinShortestQueue.
func LeastPressure(q *Query, candidates []Candidate) int {
	best, least := 0, candidates[0].load(q)
	for i := 1; i < len(candidates); i++ {
		c := &candidates[i]
		load := c.load(q)
		if load < least || load == least && c.InFlight < candidates[best].InFlight {
			best, least = i, load
		}
	}
	if least == unknownLoad {
		return JoinShortestQueue(q, candidates)
	}
	return best
}

// load returns the share of its node that is in use, 0 to 1, or unknownLoad.
func (c *Candidate) load(q *Query) float64 {
	p, known := c.View.Pressure(q.Now)
	if !known {
		return unknownLoad
	}
	return cpuOfLoad*p.CPU + memoryOfLoad*p.Memory
}
