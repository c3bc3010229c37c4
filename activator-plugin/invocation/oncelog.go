package invocation

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"
)

// maxLogged bounds what a onceLog remembers. Past it all is forgotten, and said
// once more.
const maxLogged = 4096

// onceLog keeps what is wrong with a revision from being logged for each request.
type onceLog struct {
	mu   sync.Mutex
	seen map[onceKey]struct{}
}

type onceKey struct {
	rev  types.NamespacedName
	what string
}

// first says whether this is the first time that what is to be said of rev.
func (l *onceLog) first(rev types.NamespacedName, what string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	key := onceKey{rev, what}
	if _, ok := l.seen[key]; ok {
		return false
	}
	if l.seen == nil || len(l.seen) >= maxLogged {
		l.seen = make(map[onceKey]struct{})
	}
	l.seen[key] = struct{}{}
	return true
}
