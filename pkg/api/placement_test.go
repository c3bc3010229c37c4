package api

import (
	"strings"
	"testing"
)

func TestParsePlacement(t *testing.T) {
	for _, want := range Placements {
		if got, err := ParsePlacement(string(want)); err != nil || got != want {
			t.Errorf("ParsePlacement(%q) = %q, %v", want, got, err)
		}
	}
	for _, bad := range []string{"", "Hash", "jsq", strings.Repeat("x", 1000)} {
		_, err := ParsePlacement(bad)
		if err == nil || !strings.Contains(err.Error(), "want default, coverage, ") || !strings.Contains(err.Error(), "random or stock") || len(err.Error()) > 300 {
			t.Errorf("ParsePlacement(%.64q) = %v, want an error with what is accepted", bad, err)
		}
	}
}
