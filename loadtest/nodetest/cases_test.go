package main

import (
	"testing"

	"libra.dev/libra/pkg/api"
)

func TestWhole(t *testing.T) {
	const allocatable = 3000
	for name, c := range map[string]struct {
		f           function
		cpu, memory int64
		whole       bool
	}{
		"as owed":           {donor, donor.owed.CPUMilli, donor.owed.MemoryBytes, true},
		"more memory":       {donor, donor.owed.CPUMilli, 2 * donor.owed.MemoryBytes, true},
		"less memory":       {donor, donor.owed.CPUMilli, donor.owed.MemoryBytes / 2, false},
		"lends":             {donor, donor.owed.CPUMilli - lentMilli, donor.owed.MemoryBytes, false},
		"borrows":           {borrower, borrower.owed.CPUMilli + lentMilli, borrower.owed.MemoryBytes, false},
		"at the ceiling":    {first, allocatable, first.owed.MemoryBytes, true},
		"held":              {first, first.owed.CPUMilli, first.owed.MemoryBytes, false},
		"above the ceiling": {first, allocatable + 1, first.owed.MemoryBytes, false},
		"without a limit":   {first, 0, first.owed.MemoryBytes, false},
	} {
		err := c.f.whole(api.Resources{CPUMilli: c.cpu, MemoryBytes: c.memory}, allocatable)
		if (err == nil) != c.whole {
			t.Errorf("%s: %v, want whole: %t", name, err, c.whole)
		}
	}
}
