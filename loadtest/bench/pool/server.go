package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sys/unix"
)

const (
	// redisCore is the core that Redis has to itself, where there are several.
	redisCore = 0

	startTimeout = 10 * time.Second
	// The kernel counts a core's time in hundredths of a second.
	ticksPerSecond = 100
)

// leaveCore takes this process off a core, and says whether there is another. What
// other processes do there is not its to say: what was left of the cores is.
func leaveCore(core int) (bool, error) {
	var all unix.CPUSet
	if err := unix.SchedGetaffinity(0, &all); err != nil {
		return false, fmt.Errorf("read the cores that may be used: %w", err)
	}
	if all.Count() < 2 || !all.IsSet(core) {
		return false, nil
	}
	all.Clear(core)
	// Threads inherit it from the one that starts them, which may be about to.
	for range 2 {
		threads, err := os.ReadDir("/proc/self/task")
		if err != nil {
			return false, fmt.Errorf("find the threads of this process: %w", err)
		}
		for _, thread := range threads {
			id, err := strconv.Atoi(thread.Name())
			if err != nil {
				continue
			}
			if err := unix.SchedSetaffinity(id, &all); err != nil && !errors.Is(err, unix.ESRCH) {
				return false, fmt.Errorf("leave core %d to Redis: %w", core, err)
			}
		}
	}
	return true, nil
}

// server is a redis-server that this process started.
type server struct {
	addr    string
	process *exec.Cmd
	dir     string
	client  *redis.Client
}

func startServer(ctx context.Context, pinned bool) (*server, error) {
	path, err := exec.LookPath("redis-server")
	if err != nil {
		return nil, fmt.Errorf("redis-server 7 or later is not on the PATH: apt-get install redis-server: %w", err)
	}
	// Redis takes no port 0, and another process may take this one first: then Redis
	// ends, and says so.
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	port := free.Addr().(*net.TCPAddr).Port
	if err := free.Close(); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "bench-pool")
	if err != nil {
		return nil, err
	}
	args := []string{path, "--bind", "127.0.0.1", "--port", strconv.Itoa(port), "--dir", dir,
		"--save", "", "--appendonly", "no", "--maxmemory-policy", "noeviction"}
	if pinned {
		args = append([]string{"taskset", "-c", strconv.Itoa(redisCore)}, args...)
	}
	s := &server{addr: net.JoinHostPort("127.0.0.1", strconv.Itoa(port)), dir: dir}
	var said bytes.Buffer
	s.process = exec.Command(args[0], args[1:]...)
	s.process.Stdout, s.process.Stderr = &said, &said
	if err := s.process.Start(); err != nil {
		return nil, errors.Join(fmt.Errorf("start redis-server: %w", err), os.RemoveAll(dir))
	}
	s.client = redis.NewClient(&redis.Options{Addr: s.addr})
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	for s.client.Ping(ctx).Err() != nil {
		select {
		case <-ctx.Done():
			err := s.stop()
			return nil, errors.Join(fmt.Errorf("redis-server does not answer after %s; it printed:\n%s", startTimeout, said.String()), err)
		case <-time.After(10 * time.Millisecond):
		}
	}
	return s, nil
}

// stop ends the server, and removes what it wrote.
func (s *server) stop() error {
	err := s.client.Close()
	if killErr := s.process.Process.Kill(); killErr != nil && !errors.Is(killErr, os.ErrProcessDone) {
		err = errors.Join(err, killErr)
	}
	s.process.Wait() //nolint:errcheck // it ends by a signal
	return errors.Join(err, os.RemoveAll(s.dir))
}

// cpu is how long Redis has used a core so far.
func (s *server) cpu() (time.Duration, error) {
	data, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(s.process.Process.Pid), "stat"))
	if err != nil {
		return 0, err
	}
	// The name may have spaces in it.
	_, rest, _ := strings.Cut(string(data), ") ")
	fields := strings.Fields(rest)
	if len(fields) < 13 {
		return 0, fmt.Errorf("the stat file of redis-server has %d fields, not the 13 and more of one", len(fields))
	}
	var ticks int64
	for _, field := range fields[11:13] {
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return 0, err
		}
		ticks += n
	}
	return time.Duration(ticks) * time.Second / ticksPerSecond, nil
}

// idle is how long each core has had nothing to do so far.
func idle() (map[string]time.Duration, error) {
	data, err := os.ReadFile("/proc/stat")
	if err != nil {
		return nil, err
	}
	cores := map[string]time.Duration{}
	for _, line := range strings.Split(string(data), "\n") {
		fields := strings.Fields(line)
		if len(fields) < 6 || !strings.HasPrefix(fields[0], "cpu") || fields[0] == "cpu" {
			continue
		}
		for _, field := range fields[4:6] { // idle, and waiting for a disk
			n, err := strconv.ParseInt(field, 10, 64)
			if err != nil {
				return nil, err
			}
			cores[fields[0]] += time.Duration(n) * time.Second / ticksPerSecond
		}
	}
	return cores, nil
}

// cpuModel is the model of this machine's CPU, where the kernel tells it.
func cpuModel() string {
	f, err := os.Open("/proc/cpuinfo")
	if err != nil {
		return ""
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if key, value, ok := strings.Cut(lines.Text(), ":"); ok && strings.TrimSpace(key) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return ""
}
