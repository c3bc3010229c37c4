package placement

import "sync"

// NodeID stands for the name of a node. It is never another's, and 0 for a name that has none: then the
// name itself is to be looked up.
type NodeID uint16

// maxNodeIDs is how many names have one, until the activator starts anew. A cluster has fewer nodes at a time,
// and when many have come and gone the later ones cost a look-up.
const maxNodeIDs = 1<<14 - 1

// nodeNames hands out IDs to names.
type nodeNames struct {
	mu sync.RWMutex
	of map[string]NodeID
}

var nodeIDs nodeNames

// NodeIDOf is the same whenever it is asked of the same name.
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
