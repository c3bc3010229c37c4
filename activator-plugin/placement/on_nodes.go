package placement

import "sync/atomic"

// nodesAtOnce is how many nodes' counters are allocated at once.
const nodesAtOnce = 1 << 8

// onNodes counts the requests of all revisions on each node that has an ID. The zero value is ready.
type onNodes struct {
	some [(maxNodeIDs + 1) / nodesAtOnce]atomic.Pointer[[nodesAtOnce]atomic.Int32]
}

func (o *onNodes) add(node NodeID, n int) {
	if node == 0 || n == 0 {
		return
	}
	at := &o.some[node/nodesAtOnce]
	if at.Load() == nil {
		at.CompareAndSwap(nil, new([nodesAtOnce]atomic.Int32))
	}
	at.Load()[node%nodesAtOnce].Add(int32(n))
}

func (o *onNodes) of(node NodeID) int {
	if counters := o.some[node/nodesAtOnce].Load(); counters != nil {
		return int(counters[node%nodesAtOnce].Load())
	}
	return 0
}
