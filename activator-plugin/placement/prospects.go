package placement

// prospect is a node about which something is known, by one of the candidates there.
type prospect struct {
	at     int32
	known  estimate
	covers float64 // an upper bound unless it is exact
}

// estimate says how close to the truth it is what a prospect covers.
type estimate int8

const (
	rough estimate = iota
	closer
	exact
)

// prospectsOf returns the nodes of a part about which something is known, as a heap: first the one that may cover the
// most. Of equals, chance decides which comes first.
func (q *Query) prospectsOf(candidates []Candidate, b *bounding, of part) []prospect {
	start := len(q.prospects)
	clear(q.visited)
	for left, i := len(candidates), q.Below(len(candidates)); left > 0; left-- {
		if c := &candidates[i]; of.has(c) && q.visit(c) {
			if level := b.roughly(c); level >= 0 {
				q.prospects = append(q.prospects, prospect{at: int32(i), covers: b.atMost(level)})
			}
		}
		if i++; i == len(candidates) {
			i = 0
		}
	}
	among := q.prospects[start:]
	for i := len(among)/2 - 1; i >= 0; i-- {
		sink(among, i)
	}
	return among
}

// visit says whether the candidate's node is known and not visited yet.
func (q *Query) visit(c *Candidate) bool {
	slot := c.slots.lent
	word, bit := int(slot/64), uint64(1)<<(slot%64)
	for word >= len(q.visited) {
		q.visited = append(q.visited, 0)
	}
	isNew := q.visited[word]&bit == 0
	q.visited[word] |= bit
	return slot != 0 && isNew
}

// sink moves a prospect of a heap down to where it belongs.
func sink(heap []prospect, i int) {
	if i >= len(heap) {
		return
	}
	sinking := heap[i]
	for {
		child := 2*i + 1
		if child >= len(heap) {
			break
		}
		if next := child + 1; next < len(heap) && heap[next].covers > heap[child].covers {
			child = next
		}
		if heap[child].covers <= sinking.covers {
			break
		}
		heap[i] = heap[child]
		i = child
	}
	heap[i] = sinking
}
