package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"time"

	"go.uber.org/zap"

	pkgnet "knative.dev/pkg/network"
	knativetls "knative.dev/pkg/network/tls"
	"knative.dev/serving/pkg/activator/certificate"
	"knative.dev/serving/pkg/networking"
)

// readHeaderTimeout bounds how long a client may take to send a request's header, as in Knative's own servers.
const readHeaderTimeout = time.Minute

type servers struct {
	all    map[string]*http.Server
	failed chan error
}

// startServersOrDie serves plain HTTP and, if there are certificates, TLS as well.
func startServersOrDie(h http.Handler, profile *http.Server, certs *certificate.CertCache, logger *zap.SugaredLogger) *servers {
	s := &servers{all: map[string]*http.Server{
		"http1":   newServer(networking.BackendHTTPPort, h),
		"h2c":     newServer(networking.BackendHTTP2Port, h),
		"profile": profile,
	}}
	if certs != nil {
		tls, err := knativetls.DefaultConfigFromEnv("ACTIVATOR_")
		if err != nil {
			logger.Fatalw("The TLS settings in the environment, ACTIVATOR_TLS_*, are not valid", zap.Error(err))
		}
		tls.GetCertificate = certs.GetCertificate
		https := newServer(networking.BackendHTTPSPort, h)
		https.TLSConfig = tls
		s.all["https"] = https
	}

	s.failed = make(chan error, len(s.all))
	for name, server := range s.all {
		go func() {
			serve := server.ListenAndServe
			if server.TLSConfig != nil {
				serve = func() error { return server.ListenAndServeTLS("", "") }
			}
			if err := serve(); err != nil && !errors.Is(err, http.ErrServerClosed) {
				s.failed <- fmt.Errorf("serving %s: %w", name, err)
			}
		}()
	}
	return s
}

// newServer differs from Knative's own: Shutdown also waits for requests over unencrypted HTTP/2 (gRPC), and a connection
// is not upgraded to that from HTTP/1.1.
func newServer(port int, h http.Handler) *http.Server {
	s := &http.Server{
		Addr:              ":" + strconv.Itoa(port),
		Handler:           h,
		Protocols:         new(http.Protocols),
		ReadHeaderTimeout: readHeaderTimeout,
	}
	s.Protocols.SetHTTP1(true)
	s.Protocols.SetHTTP2(true)
	s.Protocols.SetUnencryptedHTTP2(true)
	return s
}

// wait returns when the activator is told to stop or a server has failed. It has readiness probes fail from
// then on.
func (s *servers) wait(terminated context.Context, terminate func(), logger *zap.SugaredLogger) {
	select {
	case <-terminated.Done():
		logger.Info("Told to stop; draining")
	case err := <-s.failed:
		logger.Errorw("A server has failed; draining the others", zap.Error(err))
	}
	terminate()
}

// drain waits until failing readiness probes keep new requests away, and then for the
// requests in flight, which the pod's grace period bounds. It does not wait for upgraded connections.
func (s *servers) drain(logger *zap.SugaredLogger) {
	logger.Infow("No longer ready; still serving until new requests go elsewhere", "for", pkgnet.DefaultDrainTimeout)
	time.Sleep(pkgnet.DefaultDrainTimeout)
	logger.Info("Waiting for the requests in flight")
	s.shutDown(logger)
	logger.Info("All requests are served, except upgraded connections")
}

// shutDown has all servers turn new connections away at once, and returns when none has a request in flight, except on
// upgraded connections.
func (s *servers) shutDown(logger *zap.SugaredLogger) {
	var all sync.WaitGroup
	for name, server := range s.all {
		all.Go(func() {
			if err := server.Shutdown(context.Background()); err != nil {
				logger.Errorw("Failed to shut down a server", "server", name, zap.Error(err))
			}
		})
	}
	all.Wait()
}
