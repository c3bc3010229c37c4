//go:build skew

// Package skew tests parts of two commits that share a Redis, as in an upgrade and in a
// rollback.
package skew

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"libra.dev/libra/loadtest/demo/report"
	"libra.dev/libra/pkg/pool"
	"libra.dev/libra/pkg/pool/redistest"
)

var (
	base = flag.String("base", "origin/main", "commit to upgrade from and go back to")
	out  = flag.String("out", "out/skew-test", "folder for the results, relative to the root of the repository")
)

const (
	program  = "loadtest/skew/part"
	together = 5 * time.Second // how long activators of both commits run at once
	resumes  = 10 * time.Second
	stops    = 10 * time.Second
)

// commit is a commit that parts are built from.
type commit struct{ name, part string }

// part is a running process.
type part struct {
	t    *testing.T
	name string
	cmd  *exec.Cmd
	done chan struct{}

	mu  sync.Mutex
	now told
}

type told struct {
	Calls, Failed, Borrowed int64
	Error                   string
}

func TestSkew(t *testing.T) {
	root := git(t, ".", "rev-parse", "--show-toplevel")
	old, ours := build(t, treeOf(t, root, *base), *base), build(t, root, "this")
	addr := redistest.StartServer(t).Addr
	var all []*part
	run := func(c commit, role string) *part {
		p := start(t, c, role, addr, len(all))
		all = append(all, p)
		return p
	}

	agent, activator := run(old, "agent"), run(old, "activator")
	activator.lends(time.Minute)
	shared := int64(0)

	// Up: agents first.
	agent.stop()
	agent = run(ours, "agent")
	next := run(ours, "activator")
	shared += borrowedBeside(activator, next)
	activator.stop()
	up := next.lends(resumes)
	t.Logf("from %s to this commit: lends %s after the last activator of before", *base, up)

	// Back: activators first.
	activator = run(old, "activator")
	shared += borrowedBeside(next, activator)
	next.stop()
	back := time.Now()
	agent.stop()
	agent = run(old, "agent")
	activator.lends(resumes)
	down := time.Since(back)
	t.Logf("and back: lends %s after the last activator of this commit", down)
	agent.stop()
	activator.stop()

	client := redis.NewClient(&redis.Options{Addr: addr})
	defer client.Close()
	libraries, err := client.FunctionList(t.Context(), redis.FunctionListQuery{LibraryNamePattern: "libra*"}).Result()
	if err != nil {
		t.Fatal(err)
	}
	// Commits with one version of the pool share one pool, and lend all the time.
	if alike := len(libraries) == 1; alike != (shared > 0) {
		t.Errorf("while activators of both commits had requests, %d loans were made; versions of the pool: %d", shared, len(libraries))
	}
	metrics := map[string]float64{"versions": float64(len(libraries)), "resumed_s": max(up, down).Seconds(), "borrowed_beside": float64(shared)}
	for _, p := range all {
		metrics["calls"] += float64(p.now.Calls)
		metrics["failed_requests"] += float64(p.now.Failed)
		if p.now.Failed > 0 {
			t.Errorf("%s: %d of %d calls failed, the first: %s", p.name, p.now.Failed, p.now.Calls, p.now.Error)
		}
	}
	record(t, root, *out, metrics)
}

// record writes the results of a test into a folder of the repository.
func record(t *testing.T, root, folder string, metrics map[string]float64) {
	t.Helper()
	dir := filepath.Join(root, folder)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	results := report.Results{Machine: fmt.Sprintf("%d CPUs, %s", runtime.NumCPU(), runtime.GOARCH), Commit: git(t, root, "describe", "--always", "--dirty"), Metrics: metrics}
	if err := results.Write(dir); err != nil {
		t.Fatal(err)
	}
	t.Logf("%v: %s", metrics, filepath.Join(dir, report.ResultsFile))
}

// borrowedBeside returns how many Begins of either borrow something while both run, after the
// pool whose agent has stopped has closed.
func borrowedBeside(a, b *part) int64 {
	time.Sleep(pool.LeaseTTL + time.Second)
	before := a.told().Borrowed + b.told().Borrowed
	time.Sleep(together)
	return a.told().Borrowed + b.told().Borrowed - before
}

func git(t *testing.T, dir string, args ...string) string {
	t.Helper()
	cmd := exec.Command("git", args...)
	cmd.Dir = dir
	output, err := cmd.Output()
	if err != nil {
		t.Fatalf("git %s: %v", strings.Join(args, " "), err)
	}
	return strings.TrimSpace(string(output))
}

// treeOf checks a commit out, for the rest of the test.
func treeOf(t *testing.T, root, name string) string {
	t.Helper()
	tree := filepath.Join(t.TempDir(), "tree")
	git(t, root, "worktree", "add", "--detach", tree, name)
	t.Cleanup(func() { git(t, root, "worktree", "remove", "--force", tree) })
	return tree
}

func build(t *testing.T, tree, name string) commit {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "part")
	cmd := exec.Command("go", "build", "-o", binary, "./"+program)
	cmd.Dir = tree
	if output, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build the part of %s: %v\n%s", name, err, output)
	}
	return commit{name, binary}
}

func start(t *testing.T, c commit, role, addr string, number int) *part {
	t.Helper()
	p := &part{t: t, name: c.name + "'s " + role, done: make(chan struct{})}
	p.cmd = exec.Command(c.part, "--redis", addr, "--role", role, "--name", role+"-"+string(rune('a'+number)))
	p.cmd.Stderr = os.Stderr
	lines, err := p.cmd.StdoutPipe()
	if err == nil {
		err = p.cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.cmd.Process.Kill() }) //nolint:errcheck // it may have ended
	go func() {
		defer close(p.done)
		for scanner := bufio.NewScanner(lines); scanner.Scan(); {
			p.mu.Lock()
			if err := json.Unmarshal(scanner.Bytes(), &p.now); err != nil {
				t.Errorf("%s says %q: %v", p.name, scanner.Text(), err)
			}
			p.mu.Unlock()
		}
	}()
	return p
}

func (p *part) told() told {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.now
}

// lends waits until something is borrowed again, and returns how long that took.
func (p *part) lends(most time.Duration) time.Duration {
	p.t.Helper()
	from, before := time.Now(), p.told().Borrowed
	for p.told().Borrowed == before {
		if time.Since(from) > most {
			p.t.Fatalf("nothing was borrowed of %s for %s; it tells %+v", p.name, most, p.told())
		}
		time.Sleep(10 * time.Millisecond)
	}
	return time.Since(from)
}

// stop ends the part as Kubernetes would.
func (p *part) stop() {
	p.t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		p.t.Fatal(err)
	}
	select {
	case <-p.done:
	case <-time.After(stops):
		p.t.Fatalf("%s has not ended after %s", p.name, stops)
	}
	if err := p.cmd.Wait(); err != nil {
		p.t.Errorf("%s: %v", p.name, err)
	}
}
