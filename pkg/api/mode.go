package api

import "fmt"

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

// ParseMode returns an error that names the accepted modes for what is none.
func ParseMode(s string) (Mode, error) {
	switch m := Mode(s); m {
	case ModeObserve, ModeLend, ModeFull:
		return m, nil
	default:
		return "", fmt.Errorf("mode is %.64q, want %s, %s or %s", s, ModeObserve, ModeLend, ModeFull)
	}
}
