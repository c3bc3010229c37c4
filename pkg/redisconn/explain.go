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

// The settings of a part, each by its environment variable and its flag.
const (
	addressSetting     = "LIBRA_REDIS_ADDR (--redis-addr)"
	credentialsSetting = "LIBRA_REDIS_CREDENTIALS (--redis-credentials)"
)

// explained is an error with the setting that it is about.
type explained struct {
	setting string
	err     error
	// unusable says that the error is about the files of the credentials.
	unusable bool
}

func (e *explained) Error() string { return e.setting + ": " + e.err.Error() }

// Unwrap has the form for several errors, because go-redis strips the outermost error off one
// that wraps a single error.
func (e *explained) Unwrap() []error { return []error{e.err} }

// about returns err with what is wrong with a setting, unless it has that already: an error
// while a connection is made goes through the hooks twice.
func about(err error, format string, args ...any) error {
	var already *explained
	if errors.As(err, &already) {
		return err
	}
	return &explained{setting: fmt.Sprintf(format, args...), err: err}
}

// unusable returns an error about the files of the credentials in dir.
func unusable(dir string, err error) error {
	return &explained{setting: credentialsSetting + " is " + dir, err: err, unusable: true}
}

// Unusable reports whether a connection failed, before Redis was asked, for a reason that
// stays until somebody changes something: credentials that cannot be read, or a certificate
// that is not trusted.
func Unusable(err error) bool {
	var files *explained
	var certificate *tls.CertificateVerificationError
	return errors.As(err, &files) && files.unusable || errors.As(err, &certificate)
}

// setCredentials says what the credentials are set to.
func (s Server) setCredentials() string {
	if s.credentials == "" {
		return credentialsSetting + " is not set"
	}
	return credentialsSetting + " is " + s.credentials
}

// setAddress says what the address is set to.
func (s Server) setAddress() string { return addressSetting + " is " + s.address }

// explainer has the hooks that add to errors what they are about.
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

// Explain adds what to look at to the error of a subscription that failed because of the
// settings. The errors of a client's commands have it already.
func (s Server) Explain(err error) error { return s.explain("hello", err) }

// NotPermitted says whether Redis refused a command because the user has no right to it, on its own or in a function.
func NotPermitted(err error) bool {
	return redis.IsPermissionError(err) ||
		redis.HasErrorPrefix(err, "The user executing the script can't") || redis.HasErrorPrefix(err, "ACL failure in script")
}

// explain adds what to look at to the error of a command that failed because of the settings.
func (s Server) explain(command string, err error) error {
	switch {
	case redis.HasErrorPrefix(err, "NOAUTH"):
		if s.credentials == "" {
			return about(err, "%s, want a folder with the files %s and %s", s.setCredentials(), usernameFile, passwordFile)
		}
		return about(err, "%s, whose files %s and %s are missing or empty", s.setCredentials(), usernameFile, passwordFile)
	case redis.HasErrorPrefix(err, "WRONGPASS"):
		return about(err, "%s, with the user %s: want a user that Redis has, and its password in the file %s", s.setCredentials(), s.user(), passwordFile)
	case NotPermitted(err):
		return about(err, "%s, with the user %s: want a user with the rights that manifests/components/redis-auth/users.acl gives this part",
			s.setCredentials(), s.user())
	// HELLO is the first command on a connection.
	case command == "hello" && !s.tls && (errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET)):
		return about(err, "%s, and the connection was closed; a Redis that requires TLS does that: want rediss:// for it", s.setAddress())
	}
	return err
}

// user names the user in the files of the credentials.
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

// explainTLS adds what to look at to the error of TLS with addr.
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
		return about(err, "%s, and only the system's CAs count: want a folder with the CA of %s in the file %s", s.setCredentials(), addr, caFile)
	case errors.As(err, &failed) && failed.Op == "dial":
		return err
	}
	return about(err, "%s: want a Redis with TLS at %s, or redis:// for one without", s.setAddress(), addr)
}
