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

// concentratedUpTo is up to which containerConcurrency Knative fills one pod after the other. Above it, Knative spreads
// requests: one pod with all of them would take several times as long for what it computes.
const concentratedUpTo = 3

// homeUnlessFuller is Hash, but stays with Knative's pick, where Knative spreads requests, if that has fewer.
func homeUnlessFuller(q *Query, candidates []Candidate) int {
	home := Hash(q, candidates)
	if pick := &candidates[0]; pick.Dest == q.spreadTo && pick.InFlight < candidates[home].InFlight {
		return 0
	}
	return home
}

// rendezvous returns how high a node ranks in a revision's order.
func rendezvous(revision, node uint64) uint64 {
	high, low := bits.Mul64(revision^node, 0x9e3779b97f4a7c15)
	return high ^ low
}

func hashOf(rev types.NamespacedName) uint64 {
	return xxhash.Sum64String(rev.Namespace) ^ bits.RotateLeft64(xxhash.Sum64String(rev.Name), 1)
}
