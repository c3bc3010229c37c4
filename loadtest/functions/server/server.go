// Package server is what the demo's functions share: an HTTP server that hands
// a request's body to one Go function and answers with what that function did.
package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"
)

const (
	maxBodyBytes = 16 << 20
	drainTimeout = 10 * time.Second
)

// Work does the work of a function. Its result says what was done, and nothing
// that differs between two runs on the same body, so that a wrong answer shows.
type Work func(ctx context.Context, body []byte) (did any, err error)

// BadRequestError is an error in what the client sent.
type BadRequestError struct{ Err error }

func (e BadRequestError) Error() string { return e.Err.Error() }
func (e BadRequestError) Unwrap() error { return e.Err }

// Answer is the body of every response with status 200.
type Answer struct {
	// RequestID is the X-Request-Id as the function saw it: a gateway may have
	// replaced the client's.
	RequestID string `json:"request_id"`
	Did       any    `json:"did"`
}

// Handler answers each request with what work did to its body.
func Handler(work Work) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBodyBytes))
		if err != nil {
			refuse(w, readStatus(err), fmt.Errorf("read the body (at most %d bytes): %w", maxBodyBytes, err))
			return
		}
		did, err := work(r.Context(), body)
		if err != nil {
			status := http.StatusInternalServerError
			if errors.As(err, &BadRequestError{}) {
				status = http.StatusBadRequest
			}
			refuse(w, status, err)
			return
		}
		WriteJSON(w, http.StatusOK, Answer{RequestID: r.Header.Get("X-Request-Id"), Did: did})
	})
}

func readStatus(err error) int {
	if tooLarge := (&http.MaxBytesError{}); errors.As(err, &tooLarge) {
		return http.StatusRequestEntityTooLarge
	}
	return http.StatusBadRequest
}

func refuse(w http.ResponseWriter, status int, err error) {
	WriteJSON(w, status, map[string]string{"error": err.Error()})
}

// WriteJSON answers with v. It ignores errors, because a client that is gone
// cannot be told.
func WriteJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v)
}

// Main serves h on the port that the environment variable PORT names until the
// process is told to end, and then lets requests in flight finish. lc sets up
// the listening socket.
func Main(h http.Handler, lc net.ListenConfig) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := listenAndServe(ctx, h, lc); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func listenAndServe(ctx context.Context, h http.Handler, lc net.ListenConfig) error {
	port := os.Getenv("PORT")
	if port == "" {
		port = "8080"
	}
	l, err := lc.Listen(ctx, "tcp", net.JoinHostPort("", port))
	if err != nil {
		return err
	}
	srv := &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(l) }()
	select {
	case err := <-served:
		return err
	case <-ctx.Done():
	}
	drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainTimeout)
	defer cancel()
	return srv.Shutdown(drain)
}
