package api

import (
	"net/http"

	"golang.org/x/net/http/httpguts"
)

// AsksForUpgrade reports whether a request with the given header wants its connection to become one of another protocol,
// such as a WebSocket. Without the option in Connection, Upgrade says nothing (RFC 9110, section 7.8).
func AsksForUpgrade(h http.Header) bool {
	return h.Get("Upgrade") != "" && httpguts.HeaderValuesContainsToken(h["Connection"], "Upgrade")
}
