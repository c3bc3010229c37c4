package main

import (
	"errors"
	"net"
	"net/http"
	"os"
	"testing"
	"time"

	"go.uber.org/zap/zaptest"
)

var protocols = map[string]func(*http.Protocols, bool){
	"HTTP/1.1": (*http.Protocols).SetHTTP1,
	"HTTP/2":   (*http.Protocols).SetUnencryptedHTTP2,
}

// clientOf returns a client that speaks only one protocol.
func clientOf(t *testing.T, set func(*http.Protocols, bool)) *http.Client {
	transport := &http.Transport{Protocols: new(http.Protocols)}
	set(transport.Protocols, true)
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: 30 * time.Second}
}

// listen serves on an address of its own until the test ends.
func listen(t *testing.T, s *http.Server) (address string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = s.Serve(l) }()
	t.Cleanup(func() { _ = s.Close() })
	return l.Addr().String()
}

// A request that is in flight when the activator stops is served to its end, gRPC's included, while no server takes a new
// connection.
func TestShutDownWaitsForRequests(t *testing.T) {
	for name, set := range protocols {
		t.Run(name, func(t *testing.T) {
			arrived, goOn := make(chan struct{}), make(chan struct{})
			busy := newServer(0, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				if (r.ProtoMajor == 2) != (name == "HTTP/2") {
					t.Errorf("the request came over %s, want %s", r.Proto, name)
				}
				close(arrived)
				<-goOn
			}))
			idle := newServer(0, http.NotFoundHandler())
			busyAt, idleAt := listen(t, busy), listen(t, idle)
			client := clientOf(t, set)
			answered := make(chan error, 1)
			go func() {
				resp, err := client.Get("http://" + busyAt)
				if err == nil {
					err = resp.Body.Close()
				}
				answered <- err
			}()
			select {
			case <-arrived:
			case err := <-answered:
				t.Fatal("The request was answered before it arrived:", err)
			}

			closed := make(chan struct{}, 2)
			for _, server := range []*http.Server{busy, idle} {
				server.RegisterOnShutdown(func() { closed <- struct{}{} }) // once it no longer listens
			}
			down := make(chan struct{})
			go func() {
				(&servers{all: map[string]*http.Server{"busy": busy, "idle": idle}}).shutDown(zaptest.NewLogger(t).Sugar())
				close(down)
			}()
			for range cap(closed) {
				select {
				case <-closed:
				case <-time.After(30 * time.Second):
					t.Error("a server waits for another's requests before it shuts down")
				}
			}
			for _, address := range []string{busyAt, idleAt} {
				if conn, err := net.Dial("tcp", address); err == nil {
					_ = conn.Close()
					t.Errorf("%s still takes connections", address)
				}
			}
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

// The time for a header ends neither requests nor connections that have sent theirs, as it did over HTTP/2 with Go 1.26.6.
func TestRequestsOutlastTheHeaderTimeout(t *testing.T) {
	for name, set := range protocols {
		t.Run(name, func(t *testing.T) {
			const timeout = 100 * time.Millisecond
			var connections []string
			s := newServer(0, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				connections = append(connections, r.RemoteAddr)
				time.Sleep(3 * timeout)
			}))
			s.ReadHeaderTimeout = timeout
			address, client := listen(t, s), clientOf(t, set)
			for range 2 {
				resp, err := client.Get("http://" + address)
				if err != nil {
					t.Fatal(err)
				}
				if err := resp.Body.Close(); err != nil {
					t.Error(err)
				}
			}
			if name == "HTTP/2" && connections[0] != connections[1] {
				t.Errorf("two requests came over the connections %v, want one", connections)
			}
		})
	}
}

// A client that sends nothing does not hold a connection, as it did with Go 1.26.5.
func TestConnectionsWithoutRequestsAreClosed(t *testing.T) {
	s := newServer(0, http.NotFoundHandler())
	if s.ReadHeaderTimeout != readHeaderTimeout {
		t.Errorf("the time for a header is %s, want %s", s.ReadHeaderTimeout, readHeaderTimeout)
	}
	s.ReadHeaderTimeout = 100 * time.Millisecond
	conn, err := net.Dial("tcp", listen(t, s))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close() //nolint:errcheck // the server closes it
	if err := conn.SetReadDeadline(time.Now().Add(30 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if n, err := conn.Read(make([]byte, 1)); n > 0 || err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("Read() = %d, %v, want a connection that the server has closed", n, err)
	}
}
