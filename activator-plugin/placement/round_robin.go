package placement

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"
)

// maxRounds bounds how many revisions a round robin remembers the last pod of. Past it, all begin anew.
const maxRounds = 10_000

// NewRoundRobin returns a policy that takes a revision's pods in turn, in the order of their addresses.
func NewRoundRobin() Policy {
	var mu sync.Mutex
	last := map[types.NamespacedName]string{}
	return func(q *Query, candidates []Candidate) int {
		mu.Lock()
		defer mu.Unlock()
		after := last[q.Revision]
		first, next := 0, -1
		for i := range candidates {
			dest := candidates[i].Dest
			if dest < candidates[first].Dest {
				first = i
			}
			if dest > after && (next < 0 || dest < candidates[next].Dest) {
				next = i
			}
		}
		if next < 0 {
			next = first
		}
		if len(last) >= maxRounds {
			clear(last)
		}
		last[q.Revision] = candidates[next].Dest
		return next
	}
}
