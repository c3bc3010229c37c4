package redisconn

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"

	"github.com/redis/go-redis/v9"
)

// The settings of a part, as its variable and its flag.
const (
	addressSetting     = "LIBRA_REDIS_ADDR (--redis-addr)"
	credentialsSetting = "LIBRA_REDIS_CREDENTIALS (--redis-credentials)"
)

// explained is an error with the setting that it is about.
type explained struct {
	setting string
	err     error
	// unusable says that it is of the files of the credentials.
	unusable bool
}

func (e *explained) Error() string { return e.setting + ": " + e.err.Error() }

// Unwrap is that of several errors: go-redis takes the outermost off an error of a single one.
func (e *explained) Unwrap() []error { return []error{e.err} }

// about is err with what is wrong with a setting, unless it has that already: what happens
// while a connection is made goes through the hooks twice.
func about(err error, format string, args ...any) error {
	var already *explained
	if errors.As(err, &already) {
		return err
	}
	return &explained{setting: fmt.Sprintf(format, args...), err: err}
}

// unusable is what is wrong with files of the credentials in dir.
func unusable(dir string, err error) error {
	return &explained{setting: credentialsSetting + " is " + dir, err: err, unusable: true}
}

// Unusable says whether a connection failed for a reason that stays until somebody changes
// something, before Redis was asked: credentials that cannot be read, or a certificate that
// is not trusted.
func Unusable(err error) bool {
	var files *explained
	var certificate *tls.CertificateVerificationError
	return errors.As(err, &files) && files.unusable || errors.As(err, &certificate)
}

// setCredentials is what credentials are set to.
func (s Server) setCredentials() string {
	if s.credentials == "" {
		return credentialsSetting + " is not set"
	}
	return credentialsSetting + " is " + s.credentials
}

// setAddress is what the address is set to.
func (s Server) setAddress() string { return addressSetting + " is " + s.address }

// explainer is the hooks that say of errors what they are about.
type explainer struct{ server Server }

func (explainer) DialHook(next redis.DialHook) redis.DialHook { return next }

func (explainer) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (e explainer) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if err == nil {
			return nil
		}
		return e.server.explain(cmd.Name(), err)
	}
}

// Explain says what to look at when a subscription fails because of the settings. Errors of a
// client's commands say so by themselves.
func (s Server) Explain(err error) error { return s.explain("hello", err) }

// explain says what to look at when a command fails because of the settings.
func (s Server) explain(command string, err error) error {
	switch {
	case redis.HasErrorPrefix(err, "NOAUTH"):
		if s.credentials == "" {
			return about(err, "%s, want a folder with the files %s and %s", s.setCredentials(), usernameFile, passwordFile)
		}
		return about(err, "%s, whose files %s and %s are missing or empty", s.setCredentials(), usernameFile, passwordFile)
	case redis.HasErrorPrefix(err, "WRONGPASS"):
		return about(err, "%s, with the user %s: want one that Redis has, and its password in the file %s", s.setCredentials(), s.user(), passwordFile)
	case redis.IsPermissionError(err):
		return about(err, "%s, with the user %s: want one with the rights that manifests/components/redis-auth/users.acl gives to this part",
			s.setCredentials(), s.user())
	// The first that is said on a connection.
	case command == "hello" && !s.tls && (errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET)):
		return about(err, "%s, and the connection was closed: a Redis that wants TLS does that, want rediss:// for it", s.setAddress())
	}
	return err
}

// user is the one that the files of the credentials name.
func (s Server) user() string {
	if s.credentials == "" {
		return "default"
	}
	name, err := readLine(s.credentials, usernameFile)
	if name == "" || err != nil {
		return "default, because the file " + usernameFile + " is missing or empty"
	}
	return name + " of the file " + usernameFile
}

// explainTLS says what to look at when TLS with addr fails.
func (s Server) explainTLS(addr string, hasCA bool, err error) error {
	var refused *tls.CertificateVerificationError
	var name x509.HostnameError
	var failed *net.OpError
	switch {
	case errors.As(err, &name):
		return about(err, "%s: want a name that is in the certificate of %s", s.setAddress(), addr)
	case errors.As(err, &refused) && hasCA:
		return about(err, "%s: want the CA of %s in the file %s", s.setCredentials(), addr, caFile)
	case errors.As(err, &refused):
		return about(err, "%s, and the system's CAs count: want the CA of %s in a file %s there", s.setCredentials(), addr, caFile)
	case errors.As(err, &failed) && failed.Op == "dial":
		return err
	}
	return about(err, "%s: want a Redis with TLS at %s, or redis:// for one without", s.setAddress(), addr)
}
