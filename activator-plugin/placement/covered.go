package placement

// closeEnough is the difference of coverage below which candidates are as good as each other. Those
// who have the same picture would all send to the same node otherwise.
const closeEnough = 0.02

// Coverage takes a candidate whose node covers the most of the demand (LIBRA, section 6.3), by
// chance where several do, and takes the demand off what its node can lend. (The code that its
// authors published takes the least covered one first.) Where nothing is known of any node it is Hash.
func Coverage(q *Query, candidates []Candidate) int {
	q.coverages = q.coverages[:0]
	most := -1.0
	for i := range candidates {
		c := &candidates[i]
		covered, known := c.View.Coverage(c.Source, q.Demand, q.Now)
		if !known {
			covered = -1
		}
		q.coverages = append(q.coverages, covered)
		most = max(most, covered)
	}
	if most < 0 {
		return Hash(q, candidates)
	}
	least, near := max(0, most-closeEnough), 0
	for _, covered := range q.coverages {
		if covered >= least {
			near++
		}
	}
	picked := q.below(near)
	for i, covered := range q.coverages {
		if covered < least {
			continue
		}
		if picked == 0 {
			candidates[i].debit(q, covered)
			return i
		}
		picked--
	}
	return 0 // never: near of them were covered by so much
}

// debit takes the demand off what its node can lend, which covers so much of it.
func (c *Candidate) debit(q *Query, covered float64) {
	if q.Demand.Accelerable() {
		c.View.Debit(c.Source, q.Demand, q.Now)
		q.debited, q.covered = true, covered
	}
}
