package tapp

import (
	"fmt"
	"sync/atomic"

	"libra.dev/libra/activator-plugin/placement"
	"libra.dev/libra/pkg/api/v1alpha1"
)

// key names a policy. A policy of the cluster has no namespace.
type key struct{ namespace, name string }

func (k key) String() string {
	if k.namespace == "" {
		return k.name
	}
	return k.namespace + "/" + k.name
}

// force is all that is in force at one time. It is immutable.
type force struct {
	policies map[key]*enforced
	platform placement.Policy
}

// of returns the policy for functions of a namespace with a tag, or nil.
func (f *force) of(namespace, tag string) *enforced {
	if e := f.named(namespace, tag); e != nil {
		return e
	}
	return f.named(namespace, v1alpha1.DefaultName)
}

// named returns the namespace's policy of that name, or else the cluster's.
func (f *force) named(namespace, name string) *enforced {
	if e := f.policies[key{namespace, name}]; e != nil {
		return e
	}
	return f.policies[key{"", name}]
}

// enforced is a policy in force, with what follows it.
type enforced struct {
	*Program
	in         *force
	counts     *counts
	key        key
	generation int64
}

// followedBy returns the default policy that follows it for functions of a namespace, or nil.
func (e *enforced) followedBy(namespace string) *enforced {
	if e.followup == v1alpha1.FollowupFail {
		return nil
	}
	return e.in.named(namespace, v1alpha1.DefaultName)
}

// RefusedBy implements placement.Program. It names this policy, or the default that follows it.
func (e *enforced) RefusedBy(namespace string) string {
	by := e
	if d := e.followedBy(namespace); d != nil {
		by = d
	}
	kind := "PlacementPolicy"
	if by.key.namespace == "" {
		kind = "ClusterPlacementPolicy"
	}
	return fmt.Sprintf("%s %s (generation %d)", kind, by.key, by.generation)
}

// counts are the counts of one policy's decisions.
type counts struct {
	placed            [maxBlocks]atomic.Uint64 // by block
	followed, refused atomic.Uint64
	refusedEdits      atomic.Uint64
}

// Place implements placement.Program. The block is None if what follows the policy has placed the request.
func (e *enforced) Place(q *placement.Query, candidates []placement.Candidate) (index, block int) {
	if i, b := e.Program.Place(q, candidates); i >= 0 {
		e.counts.placed[b].Add(1)
		return i, b
	}
	// If the program will be asked again about the request, only the last answer counts.
	if e.followup == v1alpha1.FollowupFail {
		if !q.Others {
			e.counts.refused.Add(1)
		}
		return -1, None
	}
	if d := e.followedBy(q.Revision.Namespace); d != nil {
		index, _ = d.Place(q, candidates)
	} else {
		index = e.in.platform(q, candidates)
	}
	if index >= 0 || !q.Others {
		e.counts.followed.Add(1)
	}
	return index, None
}
