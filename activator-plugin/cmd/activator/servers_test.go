package main

import (
	"net"
	"net/http"
	"testing"
	"time"

	"go.uber.org/zap/zaptest"
)

// A request that is in flight when the activator stops is served to its end, gRPC's included.
func TestShutDownWaitsForRequests(t *testing.T) {
	for name, only := range map[string]func(*http.Protocols, bool){
		"HTTP/1.1": (*http.Protocols).SetHTTP1,
		"HTTP/2":   (*http.Protocols).SetUnencryptedHTTP2,
	} {
		t.Run(name, func(t *testing.T) {
			arrived, goOn := make(chan struct{}), make(chan struct{})
			server := newServer(0, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				if r.Proto[:6] != name[:6] {
					t.Errorf("the request came over %s, want %s", r.Proto, name)
				}
				close(arrived)
				<-goOn
			}))
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			go func() { _ = server.Serve(l) }()

			transport := &http.Transport{Protocols: new(http.Protocols)}
			defer transport.CloseIdleConnections()
			only(transport.Protocols, true)
			answered := make(chan error, 1)
			go func() {
				resp, err := (&http.Client{Transport: transport}).Get("http://" + l.Addr().String())
				if err == nil {
					err = resp.Body.Close()
				}
				answered <- err
			}()
			<-arrived

			down := make(chan struct{})
			go func() {
				(&servers{all: map[string]*http.Server{name: server}}).shutDown(zaptest.NewLogger(t).Sugar())
				close(down)
			}()
			select {
			case <-down:
				t.Error("shut down with a request in flight")
			case <-time.After(100 * time.Millisecond):
			}
			close(goOn)
			if err := <-answered; err != nil {
				t.Error("The request failed:", err)
			}
			<-down
		})
	}
}
