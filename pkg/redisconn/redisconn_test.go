package redisconn_test

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"
	"k8s.io/apimachinery/pkg/util/wait"

	"libra.dev/libra/pkg/pool/redistest"
	"libra.dev/libra/pkg/redisconn"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		// After a client is closed while it cannot connect, this ends within a second.
		goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial"))
}

func TestParseAcceptsEachForm(t *testing.T) {
	for _, address := range []string{
		redisconn.DefaultAddr, "/run/redis.sock", "[fd00::7]:6379", "a:1,b:2",
		"redis://redis:6379", "rediss://redis:6379", "rediss://redis-0:6379,redis-1:6379,redis-2:6379",
		"redis-sentinel://sentinel:26379/libra", "rediss-sentinel://sentinel-0:26379,sentinel-1:26379/libra",
	} {
		server, err := redisconn.Parse(address, "")
		if err != nil || server.IsZero() || server.String() != address {
			t.Errorf("Parse(%q) = %v, %v", address, server, err)
		}
	}
}

func TestParseSaysWhatItWants(t *testing.T) {
	for _, address := range []string{
		"", "redis", ":6379", "redis:", "redis:0", "redis:65536", "redis:port", "a:1,b", "a:1, b:2", "a:1,", "a b:1",
		"redis://", "redis://redis", "redis://redis:6379/3", "redis://redis:6379?db=3", "http://redis:6379",
		"redis-sentinel://sentinel:26379", "redis-sentinel://sentinel:26379/", "redis-sentinel://sentinel:26379/a/b",
		"rediss:///run/redis.sock",
	} {
		_, err := redisconn.Parse(address, "")
		if err == nil || !strings.Contains(err.Error(), "want HOST:PORT") || !strings.Contains(err.Error(), `"`+address+`"`) {
			t.Errorf("Parse(%q) = %v, want an error with it and the accepted forms", address, err)
		}
	}
}

func TestParseRepeatsNoPassword(t *testing.T) {
	for _, address := range []string{"redis://user:hunter2@redis:6379", "user:hunter2@redis:6379", "x://:hunter2@redis:6379"} {
		_, err := redisconn.Parse(address, "")
		if err == nil || strings.Contains(err.Error(), "hunter2") || !strings.Contains(err.Error(), "files username and password") {
			t.Errorf("Parse(%q) = %v, want an error that says where the password goes, without it", address, err)
		}
	}
}

func TestParseWantsAFolderOfCredentials(t *testing.T) {
	file := filepath.Join(t.TempDir(), "password")
	write(t, file, "hunter2")
	for _, credentials := range []string{file, t.TempDir() + "/none"} {
		_, err := redisconn.Parse("redis:6379", credentials)
		if err == nil || !strings.Contains(err.Error(), credentials) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("with credentials %s: %v", credentials, err)
		}
	}
}

// An optional Secret that does not exist is an empty folder.
func TestNoCredentials(t *testing.T) {
	server, err := redisconn.Parse(redistest.Start(t), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if err := client(t, server).Ping(t.Context()).Err(); err != nil {
		t.Error(err)
	}
}

func TestUserNeedsAPassword(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "username"), "agent")
	server, err := redisconn.Parse(redistest.Start(t), dir)
	if err != nil {
		t.Fatal(err)
	}
	err = client(t, server).Ping(t.Context()).Err()
	if err == nil || !strings.Contains(err.Error(), "the file password is missing or empty") {
		t.Errorf("Ping() = %v, want to be told of the missing password", err)
	}
}

// Every error says where the setting is and what is accepted there.
func TestErrorsNameTheSetting(t *testing.T) {
	s := redistest.StartSecured(t)
	tlsAddr, plain := "rediss://"+s.Addr, redistest.StartServer(t).Addr
	for name, c := range map[string]struct {
		address string
		without []string          // files of the agent's Secret
		with    map[string]string // other contents
		want    []string
	}{
		"wrong password": {
			tlsAddr, nil, map[string]string{"password": "hunter3"},
			[]string{"WRONGPASS", "LIBRA_REDIS_CREDENTIALS", "DIR", "the user agent of the file username", "the file password"},
		},
		"no such user": {
			tlsAddr, nil, map[string]string{"username": "nobody"},
			[]string{"WRONGPASS", "LIBRA_REDIS_CREDENTIALS", "DIR", "the user nobody of the file username", "the file password"},
		},
		"no username": {
			tlsAddr, []string{"username"}, nil,
			[]string{"WRONGPASS", "LIBRA_REDIS_CREDENTIALS", "DIR", "the user default, because the file username is missing"},
		},
		"no password": {
			tlsAddr, []string{"password"}, nil,
			[]string{"LIBRA_REDIS_CREDENTIALS", "DIR", "the file password is missing or empty"},
		},
		"no username and no password": {
			tlsAddr, []string{"username", "password"}, nil,
			[]string{"NOAUTH", "LIBRA_REDIS_CREDENTIALS", "DIR", "files username and password are missing"},
		},
		"wrong CA": {
			tlsAddr, nil, map[string]string{"ca.crt": string(redistest.NewCA(t).PEM)},
			[]string{"unknown authority", "LIBRA_REDIS_CREDENTIALS", "DIR", "want the CA of " + s.Addr + " in the file ca.crt"},
		},
		"no CA": {
			tlsAddr, []string{"ca.crt"}, nil,
			[]string{"unknown authority", "LIBRA_REDIS_CREDENTIALS", "DIR", "the system's CAs count: want a folder with the CA of " + s.Addr + " in the file ca.crt"},
		},
		"a CA that is none": {
			tlsAddr, nil, map[string]string{"ca.crt": "not one"},
			[]string{"LIBRA_REDIS_CREDENTIALS", "DIR", "the file ca.crt contains no PEM certificate"},
		},
		"an address that is not in the certificate": {
			"rediss://" + strings.Replace(s.Addr, "127.0.0.1", "0.0.0.0", 1), nil, nil,
			[]string{"LIBRA_REDIS_ADDR", "not 0.0.0.0", "want a name that is in the certificate"},
		},
		"TLS that is not asked for": {
			"redis://" + s.Addr, nil, nil,
			[]string{"LIBRA_REDIS_ADDR", "redis://" + s.Addr, "want rediss://"},
		},
		"TLS that there is not": {
			"rediss://" + plain, nil, nil,
			[]string{"LIBRA_REDIS_ADDR", "rediss://" + plain, "want a Redis with TLS", "or redis://"},
		},
		"users that there are not": {
			plain, nil, nil,
			[]string{"WRONGPASS", "LIBRA_REDIS_CREDENTIALS", "DIR", "the user agent of the file username"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := s.Credentials(t, "agent")
			for _, file := range c.without {
				if err := os.Remove(filepath.Join(dir, file)); err != nil {
					t.Fatal(err)
				}
			}
			for file, content := range c.with {
				write(t, filepath.Join(dir, file), content)
			}
			server, err := redisconn.Parse(c.address, dir)
			if err != nil {
				t.Fatal(err)
			}
			err = client(t, server).Time(t.Context()).Err()
			if err == nil {
				t.Fatal("it was let in")
			}
			for _, want := range c.want {
				if want == "DIR" {
					want = dir
				}
				if strings.Count(err.Error(), want) != 1 {
					t.Errorf("%v: want %q in it, once", err, want)
				}
			}
			for _, password := range []string{redistest.PasswordOf("agent"), "hunter3"} {
				if strings.Contains(err.Error(), password) {
					t.Errorf("the error has the password: %v", err)
				}
			}
		})
	}
}

func TestErrorsNameTheSettingThatThereIsNot(t *testing.T) {
	s := redistest.StartSecured(t)
	err := client(t, redisconn.MustParse("rediss://"+s.Addr)).Time(t.Context()).Err()
	if err == nil || !strings.Contains(err.Error(), "LIBRA_REDIS_CREDENTIALS (--redis-credentials) is not set") || !strings.Contains(err.Error(), "unknown authority") {
		t.Errorf("without credentials: %v", err)
	}
	wants := redistest.StartServer(t, "--requirepass", "hunter2")
	err = client(t, redisconn.MustParse(wants.Addr)).Time(t.Context()).Err()
	if !redis.IsAuthError(err) || !strings.Contains(err.Error(), "LIBRA_REDIS_CREDENTIALS (--redis-credentials) is not set") {
		t.Errorf("without a password: %v", err)
	}
}

func TestRefusedCommandNamesTheUser(t *testing.T) {
	s := redistest.StartSecured(t)
	err := client(t, s.As(t, "agent")).FlushAll(t.Context()).Err()
	if !redis.IsPermissionError(err) || !strings.Contains(err.Error(), "user agent") || !strings.Contains(err.Error(), "redis-auth/users.acl") {
		t.Errorf("FLUSHALL as the agent: %v", err)
	}
	acl := filepath.Join(t.TempDir(), "users.acl")
	write(t, acl, "user default on nopass +ping\n")
	anybody := client(t, redisconn.MustParse(redistest.StartServer(t, "--aclfile", acl).Addr))
	t.Chdir(s.Credentials(t, "agent"))
	if err := anybody.FlushAll(t.Context()).Err(); !redis.IsPermissionError(err) || !strings.Contains(err.Error(), "is not set, with the user default:") {
		t.Errorf("FLUSHALL without credentials: %v", err)
	}
}

func TestTLSWantsTheRightCA(t *testing.T) {
	s := redistest.StartSecured(t)
	dir := s.Credentials(t, "agent")
	ca, err := os.ReadFile(filepath.Join(dir, "ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	server, err := redisconn.Parse("rediss://"+s.Addr, dir)
	if err != nil {
		t.Fatal(err)
	}
	// A connection for each call, so that the files are read again.
	ask := func() error {
		c := server.NewClient(redisconn.Options{Connections: 1, Timeout: time.Second})
		defer c.Close()
		return c.Time(t.Context()).Err()
	}
	if err := ask(); err != nil {
		t.Fatal(err)
	}
	for want, data := range map[string]string{
		"unknown authority":           string(redistest.NewCA(t).PEM),
		"contains no PEM certificate": "not one",
	} {
		write(t, filepath.Join(dir, "ca.crt"), data)
		if err := ask(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("with another CA: %v, want %s", err, want)
		}
	}
	if err := os.Remove(filepath.Join(dir, "ca.crt")); err != nil {
		t.Fatal(err)
	}
	if err := ask(); err == nil || !strings.Contains(err.Error(), "unknown authority") {
		t.Errorf("with the system's CAs: %v", err)
	}
	write(t, filepath.Join(dir, "ca.crt"), string(ca))
	if err := ask(); err != nil {
		t.Errorf("with the CA again: %v", err)
	}
	plain := client(t, redisconn.MustParse(s.Addr))
	if err := plain.Ping(t.Context()).Err(); err == nil {
		t.Error("it was let in without TLS")
	}
}

// A call that timed out must not arrive later: the connection is reset, so that the kernel drops what it
// has not sent.
func TestNothingIsSentOnAConnectionThatIsClosed(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	ended := make(chan error, 1)
	go func() {
		connection, err := listener.Accept()
		if err != nil {
			ended <- err
			return
		}
		defer connection.Close()
		_, err = io.Copy(io.Discard, connection) // never answers
		ended <- err
	}()
	// The dial has this timeout, too.
	c := redisconn.MustParse(listener.Addr().String()).NewClient(redisconn.Options{Connections: 1, Timeout: 2 * time.Second})
	defer c.Close()
	if err := c.Time(t.Context()).Err(); err == nil {
		t.Fatal("it was answered")
	}
	if err := <-ended; !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the connection ended with %v, want a reset", err)
	}
}

// The same client goes on after the password changes in the Secret and in Redis.
func TestRotatedPasswordIsFollowed(t *testing.T) {
	s := redistest.StartSecured(t)
	dir := s.Credentials(t, "agent")
	server, err := redisconn.Parse("rediss://"+s.Addr, dir)
	if err != nil {
		t.Fatal(err)
	}
	c := client(t, server)
	if err := c.Time(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	rotate := func(password string) {
		t.Helper()
		for _, command := range [][]any{
			{"ACL", "SETUSER", "agent", "resetpass", ">" + password},
			{"CLIENT", "KILL", "USER", "agent"},
		} {
			if err := s.Admin.Do(t.Context(), command...).Err(); err != nil {
				t.Fatal(err)
			}
		}
	}
	rotate("hunter3")
	var refused error
	// The first call may get the connection that was killed.
	err = wait.PollUntilContextTimeout(t.Context(), time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
		refused = c.Time(ctx).Err()
		return refused != nil && strings.Contains(refused.Error(), "WRONGPASS"), nil
	})
	if err != nil {
		t.Fatalf("with the password of before: %v, want to be refused", refused)
	}
	if strings.Contains(refused.Error(), redistest.PasswordOf("agent")) {
		t.Errorf("the error has the password: %v", refused)
	}
	write(t, filepath.Join(dir, "password"), "hunter3")
	err = wait.PollUntilContextTimeout(t.Context(), time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
		err = c.Time(ctx).Err()
		return err == nil, nil
	})
	if err != nil {
		t.Errorf("with the new password: %v", err)
	}
}

// The users of the parts need no more permissions on a cluster than to find its masters.
func TestSecuredCluster(t *testing.T) {
	s := redistest.StartSecured(t, "--cluster-enabled", "yes", "--tls-cluster", "yes", "--cluster-port", freePort(t), "--cluster-announce-ip", "127.0.0.1")
	if err := s.Admin.ClusterAddSlotsRange(t.Context(), 0, 16383).Err(); err != nil {
		t.Fatal(err)
	}
	for user, key := range map[string]string{"activator": "libra:{n}:node", "controller": "libra:{n}:node", "agent": "libra:{n}:node", "predictor": "libra:predictor:{state}:fence"} {
		server, err := redisconn.Parse("rediss://"+s.Addr+","+s.Addr, s.Credentials(t, user))
		if err != nil {
			t.Fatal(err)
		}
		err = wait.PollUntilContextTimeout(t.Context(), 10*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
			info, err := s.Admin.ClusterInfo(ctx).Result()
			return strings.Contains(info, "cluster_state:ok"), err
		})
		if err != nil {
			t.Fatal(err)
		}
		groups := s.Groups(user)
		s.CheckRights(t, user, groups-1, func(ctx context.Context) error {
			c := server.NewClient(redisconn.Options{Connections: 1, Timeout: time.Second})
			defer c.Close()
			if _, ok := c.(*redis.ClusterClient); !ok {
				t.Fatalf("a client of a cluster is a %T", c)
			}
			return c.Set(ctx, key, "1", 0).Err()
		})
	}
}

func TestSentinel(t *testing.T) {
	primary := redistest.StartServer(t, "--requirepass", "hunter2")
	sentinel := redistest.StartSentinel(t, "libra", primary.Addr, "hunter2", "hunter4")
	dir := t.TempDir()
	write(t, filepath.Join(dir, "password"), "hunter2")
	write(t, filepath.Join(dir, "sentinel-password"), "hunter4")
	server, err := redisconn.Parse("redis-sentinel://"+sentinel+"/libra", dir)
	if err != nil {
		t.Fatal(err)
	}
	c := client(t, server)
	if err := c.Set(t.Context(), "key", "value", 0).Err(); err != nil {
		t.Fatal(err)
	}
	direct := redis.NewClient(&redis.Options{Addr: primary.Addr, Password: "hunter2"})
	defer direct.Close()
	if got, err := direct.Get(t.Context(), "key").Result(); got != "value" || err != nil {
		t.Errorf("the primary has %q, %v", got, err)
	}

	server, err = redisconn.Parse("redis-sentinel://"+sentinel+"/another", dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := client(t, server).Ping(t.Context()).Err(); err == nil {
		t.Error("a primary was found that there is not")
	}
}

func client(t *testing.T, server redisconn.Server) redis.UniversalClient {
	t.Helper()
	c := server.NewClient(redisconn.Options{Connections: 2, Timeout: time.Second})
	t.Cleanup(func() { c.Close() })
	return c
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func freePort(t *testing.T) string {
	t.Helper()
	_, port, err := net.SplitHostPort(redistest.FreeAddr(t))
	if err != nil {
		t.Fatal(err)
	}
	return port
}
