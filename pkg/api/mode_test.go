package api

import (
	"strings"
	"testing"
)

func TestParseMode(t *testing.T) {
	for _, mode := range []Mode{ModeObserve, ModeLend, ModeFull} {
		if got, err := ParseMode(string(mode)); got != mode || err != nil {
			t.Errorf("ParseMode(%q) = %q, %v", mode, got, err)
		}
	}
	for _, s := range []string{"", "Full", "full ", "off"} {
		got, err := ParseMode(s)
		if err == nil || !strings.Contains(err.Error(), "want observe, lend or full") {
			t.Errorf("ParseMode(%q) = %q, %v, want an error with the accepted modes", s, got, err)
		}
	}
}
