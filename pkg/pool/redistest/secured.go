package redistest

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"libra.dev/libra/pkg/redisconn"
)

// usersFile is the ACL that Libra ships, from the root of the module.
const usersFile = "manifests/components/redis-auth/users.acl"

const admin = "admin"

// command matches the commands that a rule grants.
var command = regexp.MustCompile(`\+[^)]*`)

// Secured is a Redis that speaks nothing but TLS, with the users that Libra ships.
type Secured struct {
	Addr string // host:port
	// Admin may do everything.
	Admin *redis.Client

	ca    *CA
	rules map[string][]string // by user, without passwords
}

// StartSecured starts a Secured for the rest of the test, with further options as on the
// command line of redis-server.
func StartSecured(t testing.TB, options ...string) *Secured {
	t.Helper()
	s := &Secured{Addr: FreeAddr(t), ca: NewCA(t), rules: users(t)}
	s.rules[admin] = []string{"on", "~*", "&*", "+@all"}
	dir := t.TempDir()
	acl := filepath.Join(dir, "users.acl")
	var lines strings.Builder
	for user, rules := range s.rules {
		fmt.Fprintf(&lines, "user %s %s\n", user, strings.Join(append(rules, hashed(PasswordOf(user))), " "))
	}
	write(t, acl, []byte(lines.String()))
	cert, key := s.ca.Issue(t, dir)
	ca := filepath.Join(dir, "ca.crt")
	write(t, ca, s.ca.PEM)
	_, port, err := net.SplitHostPort(s.Addr)
	if err != nil {
		t.Fatal(err)
	}
	Run(t, s.ca.Options(t, s.Addr), append([]string{
		"--bind", "127.0.0.1", "--port", "0", "--tls-port", port, "--dir", dir, "--aclfile", acl,
		"--tls-cert-file", cert, "--tls-key-file", key, "--tls-ca-cert-file", ca, "--tls-auth-clients", "no",
	}, slices.Concat(inMemory, options)...)...)
	as := s.ca.Options(t, s.Addr)
	as.Username, as.Password = admin, PasswordOf(admin)
	s.Admin = redis.NewClient(as)
	t.Cleanup(func() { s.Admin.Close() })
	return s
}

// PasswordOf returns a user's password, until a test changes it.
func PasswordOf(user string) string { return "the password of " + user }

// hashed returns a password as an ACL has it.
func hashed(password string) string { return fmt.Sprintf("#%x", sha256.Sum256([]byte(password))) }

// users returns the rules that Libra ships.
func users(t testing.TB) map[string][]string {
	t.Helper()
	root, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := os.Stat(filepath.Join(root, "go.mod")); err == nil {
			break
		}
		if root == filepath.Dir(root) {
			t.Fatal("the test is not in a module")
		}
		root = filepath.Dir(root)
	}
	text, err := os.ReadFile(filepath.Join(root, usersFile))
	if err != nil {
		t.Fatal(err)
	}
	rules := map[string][]string{}
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if len(fields) < 3 || fields[0] != "user" {
			t.Fatalf("%s has a line %q, want user NAME RULES", usersFile, line)
		}
		rules[fields[1]] = fields[2:]
	}
	return rules
}

// Credentials returns a new folder with the files of a user's Secret.
func (s *Secured) Credentials(t testing.TB, user string) string {
	t.Helper()
	dir := t.TempDir()
	write(t, filepath.Join(dir, "username"), []byte(user+"\n"))
	write(t, filepath.Join(dir, "password"), []byte(PasswordOf(user)+"\n"))
	write(t, filepath.Join(dir, "ca.crt"), s.ca.PEM)
	return dir
}

// As returns the Redis with a user's credentials.
func (s *Secured) As(t testing.TB, user string) redisconn.Server {
	t.Helper()
	server, err := redisconn.Parse("rediss://"+s.Addr, s.Credentials(t, user))
	if err != nil {
		t.Fatal(err)
	}
	return server
}

// Refused returns what users were refused since the last call.
func (s *Secured) Refused(t testing.TB) []string {
	t.Helper()
	entries, err := s.Admin.ACLLog(t.Context(), 100).Result()
	if err == nil {
		err = s.Admin.ACLLogReset(t.Context()).Err()
	}
	if err != nil {
		t.Fatal(err)
	}
	var refused []string
	for _, e := range entries {
		refused = append(refused, fmt.Sprintf("%s: %s %s", e.Username, e.Reason, e.Object))
	}
	return refused
}

// CheckRights checks that a user has the rights for does, and that it needs every command
// in a group of its rights. Group 0 is those outside of parentheses, 1 those in the first
// pair, and so on. It starts from an empty Redis each time.
func (s *Secured) CheckRights(t *testing.T, user string, group int, does func(ctx context.Context) error) {
	t.Helper()
	try := func(rules []string) ([]string, error) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		for _, call := range [][]any{
			append([]any{"ACL", "SETUSER", user, "reset", hashed(PasswordOf(user))}, anys(joined(rules))...),
			{"FLUSHALL"}, {"FUNCTION", "FLUSH"}, {"SCRIPT", "FLUSH"},
		} {
			if err := s.Admin.Do(ctx, call...).Err(); err != nil {
				t.Fatalf("%v: %v", call, err)
			}
		}
		s.Refused(t)
		err := does(ctx)
		return s.Refused(t), err
	}

	rules, ok := s.rules[user]
	if !ok {
		t.Fatalf("%s has no user %s", usersFile, user)
	}
	if refused, err := try(rules); err != nil || len(refused) > 0 {
		t.Fatalf("as %s: %v; refused: %q", user, err, refused)
	}
	tried := 0
	for i, in := range groups(rules) {
		if in != group || !strings.HasPrefix(strings.TrimLeft(rules[i], "("), "+") {
			continue
		}
		tried++
		without := slices.Clone(rules)
		without[i] = command.ReplaceAllString(rules[i], "")
		if refused, err := try(without); len(refused) == 0 {
			t.Errorf("without %s %s is refused nothing (error: %v): it does not need it", rules[i], user, err)
		}
	}
	if tried == 0 {
		t.Errorf("%s has no commands in group %d", user, group)
	}
}

// Groups returns how many groups of rights a user has, as CheckRights counts them.
func (s *Secured) Groups(user string) int {
	in := groups(s.rules[user])
	return in[len(in)-1] + 1
}

// groups returns the group of each rule.
func groups(rules []string) []int {
	in, begun := make([]int, len(rules)), 0
	open := false
	for i, rule := range rules {
		if strings.HasPrefix(rule, "(") {
			begun++
			open = true
		}
		if open {
			in[i] = begun
		}
		if strings.HasSuffix(rule, ")") {
			open = false
		}
	}
	return in
}

// joined makes each pair of parentheses one argument, as Redis wants it except in a file.
func joined(rules []string) []string {
	var args []string
	in := groups(rules)
	for i, rule := range rules {
		if i > 0 && in[i] > 0 && in[i] == in[i-1] {
			args[len(args)-1] += " " + rule
			continue
		}
		args = append(args, rule)
	}
	return args
}

func anys(texts []string) []any {
	all := make([]any, len(texts))
	for i, text := range texts {
		all[i] = text
	}
	return all
}

// CA is a certificate authority that only a test trusts.
type CA struct {
	PEM []byte

	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

// NewCA makes a CA.
func NewCA(t testing.TB) *CA {
	t.Helper()
	ca := &CA{key: newKey(t)}
	template := &x509.Certificate{
		SerialNumber: serial(t), Subject: pkix.Name{CommonName: "CA of a test"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, ca.key.Public(), ca.key)
	if err != nil {
		t.Fatal(err)
	}
	if ca.certificate, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	ca.PEM = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	return ca
}

// Issue writes a certificate for this machine, and its key, into a folder.
func (ca *CA) Issue(t testing.TB, dir string) (certFile, keyFile string) {
	t.Helper()
	key := newKey(t)
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: serial(t), Subject: pkix.Name{CommonName: "redis"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		DNSNames: []string{"localhost"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}, ca.certificate, key.Public(), ca.key)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	certFile, keyFile = filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	write(t, certFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	write(t, keyFile, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}))
	return certFile, keyFile
}

// Options returns the options of a client that trusts the CA.
func (ca *CA) Options(t testing.TB, addr string) *redis.Options {
	t.Helper()
	pool := x509.NewCertPool()
	pool.AddCert(ca.certificate)
	return &redis.Options{Addr: addr, TLSConfig: &tls.Config{RootCAs: pool}}
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func serial(t testing.TB) *big.Int {
	t.Helper()
	n, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func write(t testing.TB, path string, data []byte) {
	t.Helper()
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
}
