package placement

import (
	"iter"
	"sync"
)

// NodeID stands for a node's name. No two names share one. It is 0 for a name that has none: then look up the
// name itself.
type NodeID uint16

// maxNodeIDs is how many names get an ID until the activator restarts. A cluster has fewer nodes at a time.
// When many have come and gone, later ones cost a look-up.
const maxNodeIDs = 1<<14 - 1

// KnownNodeIDs returns the IDs, by name, of those that have one now. It is for names that need not be those of nodes.
func KnownNodeIDs(names iter.Seq[string]) map[string]NodeID {
	nodeIDs.mu.RLock()
	defer nodeIDs.mu.RUnlock()
	known := map[string]NodeID{}
	for name := range names {
		if id := nodeIDs.of[name]; id != 0 {
			known[name] = id
		}
	}
	return known
}

// nodeNames assigns IDs to names.
type nodeNames struct {
	mu sync.RWMutex
	of map[string]NodeID
}

var nodeIDs nodeNames

// NodeIDOf returns the ID of a name: always the same one, or 0 if it has none.
func NodeIDOf(name string) NodeID {
	return nodeIDs.id(name)
}

func (n *nodeNames) id(name string) NodeID {
	if name == "" {
		return 0
	}
	n.mu.RLock()
	id, known := n.of[name]
	full := len(n.of) >= maxNodeIDs
	n.mu.RUnlock()
	if known || full {
		return id
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	id, known = n.of[name]
	if !known && len(n.of) < maxNodeIDs {
		id = NodeID(len(n.of) + 1)
		if n.of == nil {
			n.of = map[string]NodeID{}
		}
		n.of[name] = id
	}
	return id
}
