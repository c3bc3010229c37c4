// Package redistest starts a real Redis for a test.
package redistest

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"k8s.io/apimachinery/pkg/util/wait"
)

const startTimeout = 30 * time.Second

// inMemory keeps a Redis from writing to a disk by itself.
var inMemory = []string{"--save", "", "--appendonly", "no"}

// Context returns a context with a deadline far above what one call to a Redis, or a few, take.
func Context(t interface{ Cleanup(func()) }) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// Start starts an empty Redis for the rest of the test, and returns its address:
// the path of a unix socket, which go-redis takes as an Addr.
func Start(t testing.TB) string {
	t.Helper()
	// Not t.TempDir: with the name of the test in it, the path gets too long for a
	// socket.
	dir, err := os.MkdirTemp("", "redis")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	addr := filepath.Join(dir, "redis.sock")
	Run(t, &redis.Options{Addr: addr}, append([]string{"--port", "0", "--unixsocket", addr, "--dir", dir}, inMemory...)...)
	return addr
}

// Server is a Redis on a TCP port of the loopback interface, which replicas and clusters need.
type Server struct {
	Addr string // host:port
	Dir  string // where it keeps its files

	options []string
	stop    func()
}

// StartServer starts a Redis for the rest of the test, with further options as on the
// command line of redis-server.
func StartServer(t testing.TB, options ...string) *Server {
	t.Helper()
	s := &Server{Addr: FreeAddr(t), Dir: t.TempDir(), options: options}
	s.start(t)
	return s
}

// Restart kills the server and starts it again with what it has on disk.
func (s *Server) Restart(t testing.TB) {
	t.Helper()
	s.stop()
	s.start(t)
}

func (s *Server) start(t testing.TB) {
	t.Helper()
	_, port, err := net.SplitHostPort(s.Addr)
	if err != nil {
		t.Fatal(err)
	}
	s.stop = Run(t, &redis.Options{Addr: s.Addr}, append([]string{"--bind", "127.0.0.1", "--port", port, "--dir", s.Dir}, slices.Concat(inMemory, s.options)...)...)
}

// StartCluster starts a Redis Cluster of three masters without replicas, and returns
// their addresses.
func StartCluster(t testing.TB) []string {
	t.Helper()
	const slots = 16384
	var addrs []string
	var clients []*redis.Client
	for range 3 {
		_, bus, err := net.SplitHostPort(FreeAddr(t))
		if err != nil {
			t.Fatal(err)
		}
		s := StartServer(t, "--cluster-enabled", "yes", "--cluster-port", bus)
		client := redis.NewClient(&redis.Options{Addr: s.Addr})
		defer client.Close()
		first, last := slots*len(addrs)/3, slots*(len(addrs)+1)/3-1
		if err := client.ClusterAddSlotsRange(t.Context(), first, last).Err(); err != nil {
			t.Fatal(err)
		}
		addrs, clients = append(addrs, s.Addr), append(clients, client)
		if len(clients) > 1 {
			host, port, err := net.SplitHostPort(s.Addr)
			if err != nil {
				t.Fatal(err)
			}
			if err := clients[0].Do(t.Context(), "cluster", "meet", host, port, bus).Err(); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, client := range clients {
		err := wait.PollUntilContextTimeout(t.Context(), 20*time.Millisecond, startTimeout, true,
			func(ctx context.Context) (bool, error) {
				info, err := client.ClusterInfo(ctx).Result()
				return strings.Contains(info, "cluster_state:ok") && strings.Contains(info, "cluster_known_nodes:3"), err
			})
		if err != nil {
			t.Fatalf("the cluster has no state that is ok after %s: %v", startTimeout, err)
		}
	}
	return addrs
}

// StartSentinel starts a Sentinel with its own password for the rest of the test, and returns its
// address. It monitors a primary under a name.
func StartSentinel(t testing.TB, name, primary, primaryPassword, password string) string {
	t.Helper()
	addr := FreeAddr(t)
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	host, primaryPort, err := net.SplitHostPort(primary)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	config := filepath.Join(dir, "sentinel.conf") // Sentinel writes what it learns into it
	write(t, config, fmt.Appendf(nil, "sentinel monitor %s %s %s 1\nsentinel auth-pass %[1]s %s\n", name, host, primaryPort, primaryPassword))
	Run(t, &redis.Options{Addr: addr}, config, "--sentinel", "--bind", "127.0.0.1", "--port", port, "--dir", dir, "--requirepass", password)
	return addr
}

// given are the addresses that FreeAddr has returned. There may be no listener on them yet.
var given sync.Map

// FreeAddr returns an address with a port that is free now, below the kernel's ephemeral ports.
// Redis does not take port 0.
func FreeAddr(t testing.TB) string {
	t.Helper()
	for range 100 {
		addr := fmt.Sprintf("127.0.0.1:%d", 20_000+rand.IntN(12_000))
		l, err := net.Listen("tcp", addr)
		if err != nil {
			continue
		}
		l.Close() //nolint:errcheck // then Redis cannot listen, and says so
		if _, before := given.LoadOrStore(addr, true); !before {
			return addr
		}
	}
	t.Fatal("none of 100 ports from 20000 to 31999 is free")
	return ""
}

// Run runs a redis-server until the end of the test or until stop is called, and waits
// until it answers a client.
func Run(t testing.TB, answers *redis.Options, options ...string) (stop func()) {
	t.Helper()
	server, err := exec.LookPath("redis-server")
	if err != nil {
		t.Fatal("this test needs redis-server 7 or later: apt-get install redis-server")
	}
	// The shell ends the server when its input closes, which also happens when the test is killed. It
	// outlives a signal to the whole process group: a server that is stopped would not end by that.
	var output bytes.Buffer
	cmd := exec.Command("sh", append([]string{
		"-c", `trap : HUP INT TERM; "$@" & read -r _; kill -9 $!; wait`, "sh", server,
	}, options...)...)
	cmd.Stdout, cmd.Stderr = &output, &output
	input, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatalf("start %s: %v", server, err)
	}
	stop = sync.OnceFunc(func() {
		input.Close()
		cmd.Wait() //nolint:errcheck // it ends by a signal
	})
	t.Cleanup(stop)

	answers.MaxRetries = -1
	client := redis.NewClient(answers)
	defer client.Close()
	err = wait.PollUntilContextTimeout(context.Background(), 5*time.Millisecond, startTimeout, true,
		func(ctx context.Context) (bool, error) {
			err := client.Ping(ctx).Err()
			return err == nil || redis.HasErrorPrefix(err, "NOAUTH"), nil
		})
	if err != nil {
		stop() // so that its output is complete
		t.Fatalf("%s does not answer after %s; it printed:\n%s", server, startTimeout, output.String())
	}
	return stop
}
