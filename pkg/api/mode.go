package api

import (
	"fmt"
	"slices"
)

// Mode is how far Libra goes with a function.
type Mode string

const (
	// ModeObserve predicts and records, and changes nothing.
	ModeObserve Mode = "observe"
	// ModeLend lends what an invocation will not use, and never borrows.
	ModeLend Mode = "lend"
	// ModeFull lends and borrows.
	ModeFull Mode = "full"
)

// modes are ordered by how far they go, the least first.
var modes = []Mode{ModeObserve, ModeLend, ModeFull}

// AtMost returns the one of m and most that goes less far. An
// invalid mode counts as ModeObserve.
func (m Mode) AtMost(most Mode) Mode {
	return modes[max(0, min(slices.Index(modes, m), slices.Index(modes, most)))]
}

// ParseMode returns s as a Mode, or an error that names the accepted modes.
func ParseMode(s string) (Mode, error) {
	switch m := Mode(s); m {
	case ModeObserve, ModeLend, ModeFull:
		return m, nil
	default:
		return "", fmt.Errorf("mode is %.64q, want %s, %s or %s", s, ModeObserve, ModeLend, ModeFull)
	}
}
