package placement

import (
	"math/bits"

	"github.com/cespare/xxhash/v2"
	"k8s.io/apimachinery/pkg/types"
)

// Hash keeps a revision on one node as long as that has a free slot, and goes to the next one after
// that, each revision in an order of its own (rendezvous hashing): all activators agree on it, and a node
// that comes or goes concerns only what was or will be on it. Within a node it takes the pod with the fewest
// requests.
func Hash(q *Query, candidates []Candidate) int {
	revision := hashOf(q.Revision)
	best := 0
	highest := rendezvous(revision, candidates[0].Node)
	for i := 1; i < len(candidates); i++ {
		c := &candidates[i]
		if c.Node == candidates[best].Node {
			if c.InFlight < candidates[best].InFlight {
				best = i
			}
			continue
		}
		if score := rendezvous(revision, c.Node); score > highest {
			best, highest = i, score
		}
	}
	return best
}

// rendezvous is how much a revision is at home on a node.
func rendezvous(revision uint64, node string) uint64 {
	high, low := bits.Mul64(revision^xxhash.Sum64String(node), 0x9e3779b97f4a7c15)
	return high ^ low
}

func hashOf(rev types.NamespacedName) uint64 {
	return xxhash.Sum64String(rev.Namespace) ^ bits.RotateLeft64(xxhash.Sum64String(rev.Name), 1)
}
