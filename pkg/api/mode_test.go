package api

import (
	"strings"
	"testing"
)

func TestAtMost(t *testing.T) {
	for _, tc := range []struct{ mode, most, want Mode }{
		{ModeObserve, ModeObserve, ModeObserve}, {ModeObserve, ModeLend, ModeObserve}, {ModeObserve, ModeFull, ModeObserve},
		{ModeLend, ModeObserve, ModeObserve}, {ModeLend, ModeLend, ModeLend}, {ModeLend, ModeFull, ModeLend},
		{ModeFull, ModeObserve, ModeObserve}, {ModeFull, ModeLend, ModeLend}, {ModeFull, ModeFull, ModeFull},
		{"", ModeFull, ModeObserve}, {ModeFull, "", ModeObserve}, {"on", "off", ModeObserve},
	} {
		if got := tc.mode.AtMost(tc.most); got != tc.want {
			t.Errorf("%q at most %q is %q, want %q", tc.mode, tc.most, got, tc.want)
		}
	}
}

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
