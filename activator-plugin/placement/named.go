package placement

import "libra.dev/libra/pkg/api"

// Named returns the policy that a setting names. Each call makes one: what a policy remembers is its
// own. A name that is none is Stock.
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
