package api

import (
	"fmt"
	"slices"
	"strings"
)

// Placement is how the pod of a request is chosen, where nobody has said more for its function.
type Placement string

const (
	// PlacementDefault is PlacementCoverage for a request that more could accelerate, and
	// PlacementHash for the others.
	PlacementDefault Placement = "default"
	// PlacementCoverage goes where the most of what the request would borrow can be had for as long
	// as it needs it.
	PlacementCoverage Placement = "coverage"
	// PlacementHash keeps the requests of a function on one node, as long as it has a free slot.
	PlacementHash             Placement = "hash"
	PlacementRoundRobin       Placement = "round-robin"
	PlacementJoinShortest     Placement = "join-shortest-queue"
	PlacementMinimumWorkerSet Placement = "minimum-worker-set"
	PlacementLeastPressure    Placement = "least-pressure"
	PlacementRandom           Placement = "random"
	// PlacementStock leaves the choice to Knative.
	PlacementStock Placement = "stock"
)

// Placements are all there are.
var Placements = []Placement{
	PlacementDefault, PlacementCoverage, PlacementHash, PlacementRoundRobin, PlacementJoinShortest,
	PlacementMinimumWorkerSet, PlacementLeastPressure, PlacementRandom, PlacementStock,
}

// ParsePlacement returns an error that names the accepted placements for what is none.
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
