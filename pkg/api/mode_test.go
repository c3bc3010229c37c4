package api

import "testing"

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
