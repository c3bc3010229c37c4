package placement

import "libra.dev/libra/pkg/api"

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
