package main

import (
	"slices"
	"testing"

	"libra.dev/libra/loadtest/demo/evaluation"
)

// Each arm has its own functions in each phase, except stock again, which uses stock's,
// and the forty, which extend the ten.
func TestNamespaces(t *testing.T) {
	seen := map[string]string{}
	for _, phase := range []string{phaseTen, phaseMemory, phaseCost} {
		for _, a := range arms {
			n := namespaceOf(phase, a.place())
			if was := seen[n]; was != "" && was != phase+a.place() {
				t.Errorf("%s is the namespace of %s and of %s", n, was, phase+a.place())
			}
			seen[n] = phase + a.place()
		}
	}
	if namespaceOf(phaseForty, evaluation.NoLimits) != namespaceOf(phaseTen, evaluation.NoLimits) || namespaceOf(phaseTen, evaluation.NoLimitsWeighted) != "evaluation-no-limits-weighted" {
		t.Error("the namespaces of the ten are not where they are looked for")
	}
}

func TestCopiesOfFunctions(t *testing.T) {
	if got := servicesOf([]string{"mst", "bfs"}, 1, 2); !slices.Equal(got, []string{"mst", "bfs", "mst-2", "bfs-2"}) {
		t.Errorf("got %q", got)
	}
}
