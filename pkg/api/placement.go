package api

import (
	"fmt"
	"slices"
	"strings"
)

// Placement is how the pod for a request is chosen when no PlacementPolicy applies to its function.
type Placement string

const (
	// PlacementDefault is PlacementCoverage for a request that can use more than its function owns,
	// and PlacementHash for all others.
	PlacementDefault Placement = "default"
	// PlacementCoverage chooses the node that can give the most of what the request would borrow,
	// for as long as the request needs it.
	PlacementCoverage Placement = "coverage"
	// PlacementHash keeps the requests of a function on one node while that has a free slot.
	PlacementHash             Placement = "hash"
	PlacementRoundRobin       Placement = "round-robin"
	PlacementJoinShortest     Placement = "join-shortest-queue"
	PlacementMinimumWorkerSet Placement = "minimum-worker-set"
	PlacementLeastPressure    Placement = "least-pressure"
	PlacementRandom           Placement = "random"
	// PlacementStock leaves the choice to Knative.
	PlacementStock Placement = "stock"
)

// Placements are all valid placements.
var Placements = []Placement{
	PlacementDefault, PlacementCoverage, PlacementHash, PlacementRoundRobin, PlacementJoinShortest,
	PlacementMinimumWorkerSet, PlacementLeastPressure, PlacementRandom, PlacementStock,
}

// ParsePlacement returns s as a Placement, or an error that names the accepted placements.
func ParsePlacement(s string) (Placement, error) {
	if p := Placement(s); slices.Contains(Placements, p) {
		return p, nil
	}
	names := make([]string, len(Placements))
	for i, p := range Placements {
		names[i] = string(p)
	}
	last := len(names) - 1
	return "", fmt.Errorf("placement is %.64q, want %s or %s", s, strings.Join(names[:last], ", "), names[last])
}
