package forward

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"time"

	"golang.org/x/net/http2"
	"knative.dev/serving/pkg/networking"
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

// address returns where an activator takes requests of a version of HTTP.
func (t Transport) address(ip string, protoMajor int) string {
	if t.Address != nil {
		return t.Address(ip, protoMajor)
	}
	port := networking.BackendHTTPPort
	switch {
	case t.Scheme == "https":
		port = networking.BackendHTTPSPort
	case protoMajor == 2:
		port = networking.BackendHTTP2Port
	}
	return net.JoinHostPort(ip, strconv.Itoa(port))
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
	if config != nil {
		t.Scheme = "https"
	}
	dial := dialer(config)
	dialOne := func(ctx context.Context, network, address string) (net.Conn, error) {
		return dial(ctx, network, address, "")
	}
	one := &http.Transport{
		DialContext:           dialOne,
		DialTLSContext:        dialOne,
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

// errUnreachable says that no connection could be made: nothing has been sent over it.
var errUnreachable = errors.New("failed to connect to the activator")

type dial func(ctx context.Context, network, address, protocol string) (net.Conn, error)

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
			return nil, fmt.Errorf("%w at %s: %w", errUnreachable, address, err)
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
