package placement

// Stock leaves the choice to Knative.
func Stock(*Query, []Candidate) int { return 0 }
