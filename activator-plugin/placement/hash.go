package placement

import (
	"math/bits"

	"github.com/cespare/xxhash/v2"
	"k8s.io/apimachinery/pkg/types"
)

// Hash keeps a revision on one node as long as that node has a free slot, and then goes on to the next. Each
// revision has its own order of nodes (rendezvous hashing). All activators agree on the order, and a node
// that comes or goes affects only what was or will be on it. Within a node, Hash takes the pod with the
// fewest requests.
func Hash(q *Query, candidates []Candidate) int {
	revision := hashOf(q.Revision)
	best := 0
	highest := rendezvous(revision, candidates[0].hash)
	for i := 1; i < len(candidates); i++ {
		c := &candidates[i]
		if score := rendezvous(revision, c.hash); score > highest || score == highest && c.InFlight < candidates[best].InFlight {
			best, highest = i, score
		}
	}
	return best
}

// homeUnlessFuller is Hash, but stays with the first candidate, which is Knative's pick, where that has fewer
// requests: above a containerConcurrency of 3, Knative spreads requests, and one pod with all of them would take
// several times as long for what it computes.
func homeUnlessFuller(q *Query, candidates []Candidate) int {
	if home := Hash(q, candidates); candidates[home].InFlight <= candidates[0].InFlight {
		return home
	}
	return 0
}

// rendezvous returns how high a node ranks in a revision's order.
func rendezvous(revision, node uint64) uint64 {
	high, low := bits.Mul64(revision^node, 0x9e3779b97f4a7c15)
	return high ^ low
}

func hashOf(rev types.NamespacedName) uint64 {
	return xxhash.Sum64String(rev.Namespace) ^ bits.RotateLeft64(xxhash.Sum64String(rev.Name), 1)
}
