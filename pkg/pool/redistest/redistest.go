// Package redistest starts a real Redis for a test.
package redistest

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"k8s.io/apimachinery/pkg/util/wait"
)

const startTimeout = 30 * time.Second

// Start starts an empty Redis for the rest of the test, and returns its address:
// the path of a unix socket, which go-redis takes as an Addr.
func Start(t testing.TB) string {
	t.Helper()
	server, err := exec.LookPath("redis-server")
	if err != nil {
		t.Fatal("this test needs redis-server 7 or later: apt-get install redis-server")
	}
	// Not t.TempDir: with the name of the test in it, the path gets too long for a
	// socket.
	dir, err := os.MkdirTemp("", "redis")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	addr := filepath.Join(dir, "redis.sock")

	// The shell ends the server when its input closes, which also happens when the
	// test is killed.
	var output bytes.Buffer
	cmd := exec.Command("sh", "-c", `"$@" & read -r _; kill $!; wait`, "sh",
		server, "--port", "0", "--unixsocket", addr, "--dir", dir, "--save", "", "--appendonly", "no")
	cmd.Stdout, cmd.Stderr = &output, &output
	input, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatalf("start %s: %v", server, err)
	}
	stop := func() {
		input.Close()
		cmd.Wait() //nolint:errcheck // it ends by a signal
	}
	t.Cleanup(stop)

	client := redis.NewClient(&redis.Options{Addr: addr, MaxRetries: -1})
	defer client.Close()
	err = wait.PollUntilContextTimeout(context.Background(), 5*time.Millisecond, startTimeout, true,
		func(ctx context.Context) (bool, error) { return client.Ping(ctx).Err() == nil, nil })
	if err != nil {
		stop() // so that its output is complete
		t.Fatalf("%s does not answer after %s; it printed:\n%s", server, startTimeout, output.String())
	}
	return addr
}
