package api

import (
	"net/http"
	"strings"

	"golang.org/x/net/http/httpguts"
)

// AsksForUpgrade reports whether a request with the given header wants its connection to become one of another protocol,
// such as a WebSocket. Without the option in Connection, Upgrade says nothing (RFC 9110, section 7.8). A client that offers
// HTTP/2 this way is answered over HTTP/1.1, for neither the activator nor a proxy behind it takes the offer.
func AsksForUpgrade(h http.Header) bool {
	protocol := h.Get("Upgrade")
	return protocol != "" && !strings.EqualFold(protocol, "h2c") && httpguts.HeaderValuesContainsToken(h["Connection"], "Upgrade")
}
