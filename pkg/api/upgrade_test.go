package api

import (
	"net/http"
	"testing"
)

func TestAsksForUpgrade(t *testing.T) {
	for name, tc := range map[string]struct {
		header http.Header
		want   bool
	}{
		"WebSocket":             {http.Header{"Connection": {"Upgrade"}, "Upgrade": {"websocket"}}, true},
		"among other options":   {http.Header{"Connection": {"keep-alive, upgrade"}, "Upgrade": {"websocket"}}, true},
		"in another field line": {http.Header{"Connection": {"keep-alive", "Upgrade"}, "Upgrade": {"websocket"}}, true},
		"without the option":    {http.Header{"Connection": {"keep-alive"}, "Upgrade": {"websocket"}}, false},
		"an offer of HTTP/2":    {http.Header{"Connection": {"Upgrade, HTTP2-Settings"}, "Upgrade": {"h2c"}, "Http2-Settings": {""}}, false},
		"without a protocol":    {http.Header{"Connection": {"Upgrade"}}, false},
		"another option":        {http.Header{"Connection": {"not-Upgrade"}, "Upgrade": {"websocket"}}, false},
		"a plain request":       {http.Header{}, false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := AsksForUpgrade(tc.header); got != tc.want {
				t.Errorf("AsksForUpgrade(%v) = %v, want %v", tc.header, got, tc.want)
			}
		})
	}
}
