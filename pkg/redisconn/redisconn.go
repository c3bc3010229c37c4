// Package redisconn makes the Redis clients of all parts in Go. It alone knows the forms of an address,
// and where the password is.
package redisconn

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// DefaultAddr is the address of the Redis that Libra ships.
const DefaultAddr = "redis.libra-system.svc:6379"

// Accepted describes the forms of an address, for messages.
const Accepted = "HOST:PORT, or redis://HOST:PORT, or rediss://HOST:PORT with TLS, each with several " +
	"comma-separated HOST:PORT for a Redis Cluster; or redis-sentinel://HOST:PORT,HOST:PORT/NAME " +
	"(rediss-sentinel:// with TLS) for the Sentinels of the primary NAME"

// Files of the credentials, each of which may be missing.
const (
	usernameFile = "username"
	passwordFile = "password"
	caFile       = "ca.crt" // in PEM, instead of the system's
	// For Sentinels that require a password, which is not Redis's.
	sentinelUsernameFile = "sentinel-username"
	sentinelPasswordFile = "sentinel-password"
)

// Server says where a Redis is, and where its credentials are. The zero value is none.
type Server struct {
	address     string
	addrs       []string
	master      string // the name that Sentinels know it by; empty without them
	tls         bool
	credentials string // a folder; empty is none
	sentinel    login
}

type login struct{ username, password string }

// Parse parses an address of one of the Accepted forms, or the path of a unix socket. credentials is
// empty, or a folder, such as a mounted Secret, with the files username, password and ca.crt, each of
// which may be missing. They are read whenever a connection is made, but those of Sentinels
// (sentinel-username, sentinel-password) now.
func Parse(address, credentials string) (Server, error) {
	s := Server{address: address, credentials: credentials}
	scheme, rest, isURL := strings.Cut(address, "://")
	if !isURL {
		scheme, rest = "redis", address
	}
	if strings.Contains(address, "@") {
		// It may contain a password, so the error does not repeat it.
		return Server{}, fmt.Errorf("address contains a user, want %s; put user and password into the files %s and %s of the credentials folder",
			Accepted, usernameFile, passwordFile)
	}
	sentinel := false
	switch scheme {
	case "redis":
	case "rediss":
		s.tls = true
	case "redis-sentinel":
		sentinel = true
	case "rediss-sentinel":
		sentinel, s.tls = true, true
	default:
		return Server{}, wrong(address)
	}
	if sentinel {
		var named bool
		if rest, s.master, named = strings.Cut(rest, "/"); !named || s.master == "" || strings.ContainsAny(s.master, "/?# ") {
			return Server{}, wrong(address)
		}
	}
	s.addrs = strings.Split(rest, ",")
	if !isURL && filepath.IsAbs(address) {
		s.addrs = []string{address}
	} else if !allHostPorts(s.addrs) {
		return Server{}, wrong(address)
	}
	if credentials == "" {
		return s, nil
	}
	info, err := os.Stat(credentials)
	if err == nil && !info.IsDir() {
		err = errors.New("not a folder")
	}
	if err != nil {
		return Server{}, fmt.Errorf("credentials of Redis are in %s, want a folder with the files %s, %s and %s, each of which may be missing: %w",
			credentials, usernameFile, passwordFile, caFile, err)
	}
	if sentinel {
		s.sentinel, err = readLogin(credentials, sentinelUsernameFile, sentinelPasswordFile)
	}
	return s, err
}

func wrong(address string) error { return fmt.Errorf("address is %q, want %s", address, Accepted) }

func allHostPorts(addrs []string) bool {
	for _, addr := range addrs {
		host, port, err := net.SplitHostPort(addr)
		number, portErr := strconv.ParseUint(port, 10, 16)
		if err != nil || portErr != nil || number == 0 || host == "" || strings.ContainsAny(host, "/?# \t\n") {
			return false
		}
	}
	return true
}

// MustParse is Parse without credentials, for addresses that are known to be right. It panics on an error.
func MustParse(address string) Server {
	s, err := Parse(address, "")
	if err != nil {
		panic(err)
	}
	return s
}

// IsZero reports whether there is no Redis.
func (s Server) IsZero() bool { return s.address == "" }

// String returns the address, which has no secret in it.
func (s Server) String() string { return s.address }

// Options are what differs between clients.
type Options struct {
	Connections int // most connections to each Redis, besides subscriptions
	Idle        int // connections kept ready without a call
	IdleMost    int // most connections kept without a call; 0 is all
	// Timeout bounds each step whose context has no nearer deadline: connecting, writing, reading, and
	// waiting for a connection.
	Timeout time.Duration
}

// NewClient returns a client, which connects when it is first used. It does not retry: only the caller
// knows whether that still helps.
func (s Server) NewClient(o Options) redis.UniversalClient {
	// Errors are returned. go-redis's own lines would log them again for each attempt.
	logging.Disable()
	options := &redis.UniversalOptions{
		Addrs:                 s.addrs,
		IsClusterMode:         s.master == "" && len(s.addrs) > 1,
		MasterName:            s.master,
		SentinelUsername:      s.sentinel.username,
		SentinelPassword:      s.sentinel.password,
		PoolSize:              o.Connections,
		MinIdleConns:          o.Idle,
		MaxIdleConns:          o.IdleMost,
		PipelinePoolSize:      -1, // the few pipelines take connections of PoolSize
		ContextTimeoutEnabled: true,
		DialTimeout:           o.Timeout,
		ReadTimeout:           o.Timeout,
		WriteTimeout:          o.Timeout,
		PoolTimeout:           o.Timeout,
		Dialer:                s.dialer(o.Timeout),
		MaxRetries:            -1,
		DialerRetries:         1,
		// Both would cost every new connection a round trip.
		DisableIdentity:          true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	}
	if s.credentials != "" {
		options.CredentialsProviderContext = s.login
	}
	client := redis.NewUniversalClient(options)
	client.AddHook(explainer{s})
	return client
}

// login reads the credentials for each connection, so that a Secret that changes is followed.
func (s Server) login(context.Context) (username, password string, err error) {
	l, err := readLogin(s.credentials, usernameFile, passwordFile)
	return l.username, l.password, err
}

func readLogin(dir, usernameFile, passwordFile string) (login, error) {
	username, err := readLine(dir, usernameFile)
	if err != nil {
		return login{}, err
	}
	password, err := readLine(dir, passwordFile)
	if err != nil {
		return login{}, err
	}
	if username != "" && password == "" {
		return login{}, unusable(dir, fmt.Errorf("the file %s names a user, but the file %s is missing or empty", usernameFile, passwordFile))
	}
	return login{username, password}, nil
}

// readLine returns the text of a file without the end of its line, or "" if the file is missing.
func readLine(dir, name string) (string, error) {
	data, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", unusable(dir, err)
	}
	return strings.TrimRight(string(data), "\r\n"), nil
}

// dialer returns a function that connects. It reads the CA for each connection, like the password.
func (s Server) dialer(timeout time.Duration) func(ctx context.Context, network, addr string) (net.Conn, error) {
	dialer := &net.Dialer{
		Timeout: timeout,
		// As in go-redis's own dialer.
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 30 * time.Second, Interval: 5 * time.Second, Count: 3},
	}
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		if !s.tls {
			connection, err := dialer.DialContext(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			return connection, dropUnsent(connection)
		}
		roots, err := s.roots()
		if err != nil {
			return nil, err
		}
		secured := tls.Dialer{NetDialer: dialer, Config: &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots}}
		connection, err := secured.DialContext(ctx, network, addr)
		if err != nil {
			return nil, s.explainTLS(addr, roots != nil, err)
		}
		return connection, dropUnsent(connection.(*tls.Conn).NetConn())
	}
}

// dropUnsent makes a connection drop unsent data when it is closed. Otherwise the kernel would go on
// sending, for minutes, what a call had written before it timed out: a Begin that was lost on its way
// could arrive after its End had been answered and forgotten, and nobody would end it.
func dropUnsent(connection net.Conn) error {
	if tcp, ok := connection.(*net.TCPConn); ok {
		return tcp.SetLinger(0)
	}
	return nil // a unix socket loses nothing on its way
}

// roots returns the CAs to trust, or nil for the system's.
func (s Server) roots() (*x509.CertPool, error) {
	if s.credentials == "" {
		return nil, nil
	}
	path := filepath.Join(s.credentials, caFile)
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, unusable(s.credentials, err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(data) {
		return nil, unusable(s.credentials, fmt.Errorf("the file %s contains no PEM certificate", caFile))
	}
	return roots, nil
}
