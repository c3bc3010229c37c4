package forward

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"golang.org/x/net/http2"
)

const (
	// dialTimeout is how long it is tried to connect to an activator, with TLS if it takes that.
	dialTimeout = time.Second
	keepAlive   = 5 * time.Second
	// pingAfter is how long a connection of HTTP/2 may be silent before it is asked whether it still stands.
	pingAfter = 15 * time.Second
)

// Transport is the way to other activators.
type Transport struct {
	http.RoundTripper
	Scheme string
	// Address is where the activator of an address takes requests of a version of HTTP. Nil is Knative's ports.
	Address func(ip string, protoMajor int) string

	closeIdle func()
}

// CloseIdleConnections closes those that nothing uses.
func (t Transport) CloseIdleConnections() { t.closeIdle() }

// TLSConfig is made for each connection, because certificates change.
type TLSConfig func() (*tls.Config, error)

// NewTransport makes connections of its own, and keeps so many of them. What it sends is as it came in: in the same version of
// HTTP, and not compressed. With a config it is encrypted.
func NewTransport(maxIdle, maxIdlePerHost int, config TLSConfig) Transport {
	t := Transport{Scheme: "http"}
	dial := dialer(nil)
	if config != nil {
		t.Scheme, dial = "https", dialer(config)
	}
	one := &http.Transport{
		DialContext:           dialAs(dial, ""),
		DialTLSContext:        dialAs(dial, ""),
		MaxIdleConns:          maxIdle,
		MaxIdleConnsPerHost:   maxIdlePerHost,
		IdleConnTimeout:       90 * time.Second,
		ExpectContinueTimeout: time.Second,
		DisableCompression:    true,
	}
	two := &http2.Transport{
		AllowHTTP:          true,
		DisableCompression: true,
		ReadIdleTimeout:    pingAfter,
		DialTLSContext: func(ctx context.Context, network, address string, _ *tls.Config) (net.Conn, error) {
			return dial(ctx, network, address, http2.NextProtoTLS)
		},
	}
	t.closeIdle = func() {
		one.CloseIdleConnections()
		two.CloseIdleConnections()
	}
	t.RoundTripper = roundTripper(func(r *http.Request) (*http.Response, error) {
		if r.ProtoMajor == 2 {
			return two.RoundTrip(r)
		}
		return one.RoundTrip(r)
	})
	return t
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// unreachableError is that of a connection that there is not: nothing has been sent.
type unreachableError struct{ error }

func (e unreachableError) Unwrap() error { return e.error }

type dial func(ctx context.Context, network, address, protocol string) (net.Conn, error)

func dialAs(d dial, protocol string) func(ctx context.Context, network, address string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		return d(ctx, network, address, protocol)
	}
}

// dialer connects within dialTimeout, with TLS if there is a config for it.
func dialer(config TLSConfig) dial {
	plain := &net.Dialer{KeepAlive: keepAlive}
	return func(ctx context.Context, network, address, protocol string) (net.Conn, error) {
		ctx, cancel := context.WithTimeout(ctx, dialTimeout)
		defer cancel()
		conn, err := plain.DialContext(ctx, network, address)
		if err == nil && config != nil {
			conn, err = encrypt(ctx, conn, config, protocol)
		}
		if err != nil {
			return nil, unreachableError{fmt.Errorf("connecting to the activator at %s: %w", address, err)}
		}
		return conn, nil
	}
}

func encrypt(ctx context.Context, conn net.Conn, config TLSConfig, protocol string) (net.Conn, error) {
	c, err := config()
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	if protocol != "" {
		c.NextProtos = []string{protocol}
	}
	encrypted := tls.Client(conn, c)
	if err := encrypted.HandshakeContext(ctx); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return encrypted, nil
}
