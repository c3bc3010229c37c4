package placement

import "libra.dev/libra/pkg/api"

// Stock leaves the choice to Knative.
func Stock(*Query, []Candidate) int { return 0 }

// Random takes any candidate.
func Random(q *Query, candidates []Candidate) int { return q.Below(len(candidates)) }

// Default is Coverage for a request that can be accelerated. All others go where Hash has them go, so that
// they leave room on other nodes, unless Knative's pick has fewer requests.
func Default(q *Query, candidates []Candidate) int {
	if q.Demand.Accelerable() {
		return Coverage(q, candidates)
	}
	return homeUnlessFuller(q, candidates)
}

// AllNamed returns the policy of each setting. Each call makes new policies.
func AllNamed() map[api.Placement]Policy {
	all := make(map[api.Placement]Policy, len(api.Placements))
	for _, name := range api.Placements {
		all[name] = Named(name)
	}
	return all
}

// Named returns the policy that a setting names, and Stock for an unknown name. Each call makes a
// new policy, which shares no memory with others.
func Named(name api.Placement) Policy {
	switch name {
	case api.PlacementDefault:
		return Default
	case api.PlacementCoverage:
		return Coverage
	case api.PlacementHash:
		return Hash
	case api.PlacementRoundRobin:
		return NewRoundRobin()
	case api.PlacementJoinShortest:
		return JoinShortestQueue
	case api.PlacementMinimumWorkerSet:
		return MinimumWorkerSet
	case api.PlacementLeastPressure:
		return LeastPressure
	case api.PlacementRandom:
		return Random
	default:
		return Stock
	}
}
