// Package k6 tests the scripts with a real k6 against its own servers.
package k6

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"libra.dev/libra/pkg/boxcache"
)

// runTimeout kills a k6 that hangs. It is long enough for any machine.
const runTimeout = 3 * time.Minute

// binary returns the path of a k6 of the box's version: from the box's cache,
// from the tests' own, or newly built.
var binary = sync.OnceValues(func() (string, error) {
	versions, err := os.ReadFile("../box/versions/versions.go")
	if err != nil {
		return "", err
	}
	m := regexp.MustCompile(`(?m)^\s*K6\s*=\s*"(v[^"]+)"`).FindSubmatch(versions)
	if m == nil {
		return "", errors.New("loadtest/box/versions names no version K6")
	}
	version := string(m[1])
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	box, err := boxcache.Binary("k6")
	if err != nil {
		return "", err
	}
	own := filepath.Join(cache, "libra-test")
	for _, path := range []string{box, filepath.Join(own, "k6")} {
		if out, err := exec.Command(path, "version").Output(); err == nil && strings.HasPrefix(string(out), "k6 "+version+" ") {
			return path, nil
		}
	}
	if err := os.MkdirAll(own, 0o755); err != nil {
		return "", err
	}
	dir, err := os.MkdirTemp(own, "build-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(dir)
	// Without a Go version the module graph is not pruned, and the requirements
	// of dependencies' dependencies would count, too.
	module := fmt.Sprintf("module throwaway\n\ngo %s\n\nrequire go.k6.io/k6 %s\n", strings.TrimPrefix(runtime.Version(), "go"), version)
	if err := os.WriteFile(filepath.Join(dir, "go.mod"), []byte(module), 0o644); err != nil {
		return "", err
	}
	build := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-mod=mod", "-o", "k6", "go.k6.io/k6")
	build.Dir = dir
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOTOOLCHAIN=local", "GOWORK=off", "GOFLAGS=-buildvcs=false")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build k6 %s: %w\n%s", version, err, out)
	}
	return filepath.Join(own, "k6"), os.Rename(filepath.Join(dir, "k6"), filepath.Join(own, "k6"))
})

// entry is one request of a schedule and its expected answer.
type entry struct {
	N         int              `json:"n"`
	AtMS      int64            `json:"at_ms"`
	Function  string           `json:"function"`
	Size      int              `json:"size"`
	Body      string           `json:"body,omitempty"`
	Offset    int              `json:"offset,omitempty"`
	Expect    map[string]int64 `json:"expect,omitempty"`
	SizeClass string           `json:"size_class,omitempty"`
	Input     int              `json:"input"`
}

// received is one request as the server saw it.
type received struct {
	function, host, path, id string
	body                     []byte
}

// server stands in for all functions: it answers with a body's size and
// checksum, unless the test makes it answer something else.
type server struct {
	*httptest.Server
	// answer may answer request n itself; otherwise it returns false.
	answer func(n int, r received, w http.ResponseWriter) bool

	mu  sync.Mutex
	got []received
}

func newServer(t *testing.T) *server {
	s := &server{}
	s.Server = httptest.NewServer(s)
	t.Cleanup(s.Close)
	return s
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	function, _, _ := strings.Cut(r.Host, ".")
	got := received{function, r.Host, r.URL.Path, r.Header.Get("X-Request-Id"), body}
	s.mu.Lock()
	n := len(s.got)
	s.got = append(s.got, got)
	s.mu.Unlock()
	if s.answer != nil && s.answer(n, got, w) {
		return
	}
	json.NewEncoder(w).Encode(map[string]any{
		"request_id": got.id,
		"did":        map[string]int64{"bytes": int64(len(body)), "crc32": int64(crc32.ChecksumIEEE(body))},
	})
}

// figures and summary are the fields of a script's summary.
type figures struct {
	Sent, Failed, Wrong, Late int
	Response                  *struct {
		Count         int
		P50, P99, Max float64
	} `json:"response_ms"`
}

type summary struct {
	figures
	Script, Run     string
	Planned, Unsent int
	Passed          bool
	Broken          []string
	LateMS          struct{ Max float64 } `json:"late_ms"`
	Functions       map[string]struct {
		figures
		SizeClasses map[string]figures `json:"size_classes"`
	}
	Parts []struct {
		figures
		Part int
	}
	Drift *struct{ P50, P99 float64 }
}

// outcome is the result of a k6 run.
type outcome struct {
	summary
	code   int // k6's exit code
	output string
}

// corpus is the data that bodies are cut from.
var corpus = bytes.Repeat([]byte("0123456789abcdefghijklmnopqrstuvwxyz\x00\xff"), 4000)

// run runs a script. env adds to the settings, which include schedule, corpus
// and gateway, or overrides them; an empty value removes a setting. Unless env
// sets LATE_MS, no machine is so slow that a send is late.
func (s *server) run(t *testing.T, script string, schedule []entry, env map[string]string) outcome {
	t.Helper()
	k6, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	plan, err := json.Marshal(schedule)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	// Relative to the folder in which k6 starts, as a person types them.
	for name, content := range map[string][]byte{"schedule.json": plan, "corpus.bin": corpus} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	settings := map[string]string{
		"SCHEDULE": "schedule.json", "CORPUS": "corpus.bin", "SUMMARY": "summary.json",
		"GATEWAY": s.URL, "HOST_HEADER": "{function}.default.example.com", "LATE_MS": "60000", "TIMEOUT_S": "60",
	}
	args := []string{"run", "--quiet", "--no-usage-report", "--no-color", "--log-format", "raw"}
	for name, value := range env {
		settings[name] = value
	}
	for name, value := range settings {
		if value != "" {
			args = append(args, "--env", name+"="+value)
		}
	}
	path, err := filepath.Abs(script)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), k6, append(args, path)...)
	cmd.Dir = dir
	cmd.Env = append(environment(), "PWD="+dir)
	late := time.AfterFunc(runTimeout, func() { cmd.Process.Kill() })
	defer late.Stop()
	out, err := cmd.CombinedOutput()
	o := outcome{output: string(out)}
	if exit := (&exec.ExitError{}); errors.As(err, &exit) {
		o.code = exit.ExitCode()
	} else if err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(filepath.Join(dir, "summary.json")); err == nil {
		if err := json.Unmarshal(b, &o.summary); err != nil {
			t.Fatalf("summary: %v\n%s", err, b)
		}
	} else if !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	return o
}

// environment returns this process' environment without variables that would
// affect k6.
func environment() []string {
	var env []string
	for _, v := range os.Environ() {
		name, _, _ := strings.Cut(v, "=")
		if !strings.HasPrefix(name, "K6_") && !strings.HasSuffix(strings.ToUpper(name), "_PROXY") && name != "PWD" {
			env = append(env, v)
		}
	}
	return env
}

// ids returns the requests' IDs in the order of their arrival.
func (s *server) ids() []string {
	var ids []string
	for _, r := range s.got {
		ids = append(ids, r.id)
	}
	return ids
}

// cut returns a request whose body is a piece of the corpus.
func cut(n int, atMS int64, function, class string, offset, size int) entry {
	return entry{N: n, AtMS: atMS, Function: function, SizeClass: class, Size: size, Offset: offset, Expect: map[string]int64{
		"bytes": int64(size), "crc32": int64(crc32.ChecksumIEEE(corpus[offset : offset+size])),
	}}
}

// inline returns a request whose body is in the schedule.
func inline(n int, atMS int64, function, body string) entry {
	return entry{N: n, AtMS: atMS, Function: function, SizeClass: "any", Size: len(body), Body: body, Expect: map[string]int64{
		"bytes": int64(len(body)), "crc32": int64(crc32.ChecksumIEEE([]byte(body))),
	}}
}
