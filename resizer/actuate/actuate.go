// Package actuate changes the limits of a running container. There are two ways, and
// both are an Actuator.
//
// The API patch is the record. Everybody sees it, the kubelet keeps it in force across
// its own restarts, and it needs nothing on the node. But it takes 24 ms until the limit
// is in force (95th percentile 37 ms), and nearly a second (977 ms) when the kubelet has
// just handled the same pod, because it looks at a pod again only once a second. It
// cannot go below the pod's requests, nor change a Guaranteed pod's class.
//
// The cgroup write is the reflex. It takes 8 us for CPU and 2 us for memory (99th
// percentile 44 and 5 us, on a busy machine), is in force when it returns, and may go below the requests,
// on v2 through memory.high, which never kills. But nobody else hears of it: the kubelet
// and the runtime write back what the spec says whenever they handle the pod, and the
// limit is gone when the agent that would write it again is.
//
// So this is the rule:
//
//   - On a node with a living agent, the agent writes the cgroup at once, and again when
//     it reads there what it did not write. The controller patches only what has stood for
//     a while: by then the record is worth a patch, and the patch, which resends what the
//     spec had of the other resource, is corrected by the agent within a sample.
//   - What a pod is owed goes to the record at once, too: the record must never keep less
//     than that for longer than a loan lasts.
//   - On a node whose agent is silent the controller patches everything at once, and the
//     pool lends nothing more.
//   - Requests are never patched, and memory is never patched below what a pod is owed:
//     the scheduler must not see as free what will be asked back, and a kubelet that sets
//     memory.max under what is in use kills. Only the agent's memory.high lowers memory.
package actuate

import (
	"context"

	"libra.dev/libra/pkg/api"
)

// Actuator sets the limits of one container, and nothing else of it.
type Actuator interface {
	// SetLimits sets limits; a resource that is zero in limits is left as it is. Of the
	// API it returns when they are accepted, of the cgroup when they are in force.
	SetLimits(ctx context.Context, limits api.Resources) error
}
