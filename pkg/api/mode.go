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

// modes go further from one to the next.
var modes = []Mode{ModeObserve, ModeLend, ModeFull}

// AtMost is the mode, or most where that goes less far. What is no mode is ModeObserve.
func (m Mode) AtMost(most Mode) Mode {
	return modes[max(0, min(slices.Index(modes, m), slices.Index(modes, most)))]
}

// ParseMode returns an error that names the accepted modes for what is none.
func ParseMode(s string) (Mode, error) {
	switch m := Mode(s); m {
	case ModeObserve, ModeLend, ModeFull:
		return m, nil
	default:
		return "", fmt.Errorf("mode is %.64q, want %s, %s or %s", s, ModeObserve, ModeLend, ModeFull)
	}
}
