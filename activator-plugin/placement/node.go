package placement

import "sync"

// NodeID stands for the name of a node. It is never another's, and 0 for a name that has none: then the
// name itself is to be looked up.
type NodeID uint16

// maxNodeIDs is how many names have one, until the activator starts anew. A cluster has fewer nodes at a time,
// and when many have come and gone the later ones cost a look-up.
const maxNodeIDs = 1<<14 - 1

var nodeIDs = struct {
	sync.RWMutex
	of map[string]NodeID
}{of: map[string]NodeID{}}

// NodeIDOf is the same whenever it is asked of the same name.
func NodeIDOf(name string) NodeID {
	if name == "" {
		return 0
	}
	nodeIDs.RLock()
	id, known := nodeIDs.of[name]
	full := len(nodeIDs.of) >= maxNodeIDs
	nodeIDs.RUnlock()
	if known || full {
		return id
	}
	nodeIDs.Lock()
	defer nodeIDs.Unlock()
	id, known = nodeIDs.of[name]
	if !known && len(nodeIDs.of) < maxNodeIDs {
		id = NodeID(len(nodeIDs.of) + 1)
		nodeIDs.of[name] = id
	}
	return id
}
