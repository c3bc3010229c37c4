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
	// dialTimeout bounds connecting to an activator, including TLS.
	dialTimeout = time.Second
	keepAlive   = 5 * time.Second
	// pingAfter is how long an HTTP/2 connection may be silent before a ping checks that it is alive.
	pingAfter = 15 * time.Second
)

// Transport sends requests to other activators.
type Transport struct {
	http.RoundTripper
	Scheme string
	// Address returns where the activator at ip takes requests of a version of HTTP. Nil means Knative's ports.
	Address func(ip string, protoMajor int) string

	closeIdle func()
}

// CloseIdleConnections closes the connections that are not in use.
func (t Transport) CloseIdleConnections() { t.closeIdle() }

// TLSConfig returns the configuration for one connection. It is called for each, because certificates change.
type TLSConfig func() (*tls.Config, error)

// NewTransport returns a Transport with connections of its own. It keeps up to maxIdle idle HTTP/1 connections, maxIdlePerHost
// for each host. It sends requests as they came in: in the same version of HTTP, and not compressed. With a config, it
// encrypts them.
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

// unreachableError says that no connection could be made: nothing has been sent.
type unreachableError struct{ error }

func (e unreachableError) Unwrap() error { return e.error }

type dial func(ctx context.Context, network, address, protocol string) (net.Conn, error)

func dialAs(d dial, protocol string) func(ctx context.Context, network, address string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		return d(ctx, network, address, protocol)
	}
}

// dialer returns a dial that connects within dialTimeout, with TLS if config is not nil.
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
