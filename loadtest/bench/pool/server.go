package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sys/unix"
	appsv1 "k8s.io/api/apps/v1"
	"sigs.k8s.io/yaml"

	"libra.dev/libra/loadtest/bench/machine"
)

const (
	// redisCore is the core that Redis has to itself if there are several.
	redisCore = 0

	startTimeout = 10 * time.Second
	// The kernel counts a core's time in hundredths of a second.
	ticksPerSecond = 100
)

// leaveCore takes this process off Redis' core, and reports whether there is another.
// It cannot keep others off; the results say how much of each core was left.
func leaveCore() (bool, error) {
	var all unix.CPUSet
	if err := unix.SchedGetaffinity(0, &all); err != nil {
		return false, fmt.Errorf("read the cores that may be used: %w", err)
	}
	if all.Count() < 2 || !all.IsSet(redisCore) {
		return false, nil
	}
	all.Clear(redisCore)
	// Twice: a thread may just be inheriting the old set from its starter.
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
				return false, fmt.Errorf("leave core %d to Redis: %w", redisCore, err)
			}
		}
	}
	return true, nil
}

// shipped is Redis as the manifests configure it.
type shipped struct {
	args        []string
	memoryBytes int64 // the container's limit
}

func readShipped(path string) (s shipped, err error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return shipped{}, fmt.Errorf("--redis: %w", err)
	}
	var deployment appsv1.Deployment
	if err := yaml.UnmarshalStrict(data, &deployment); err != nil {
		return shipped{}, fmt.Errorf("--redis: %s is not a Deployment: %w", path, err)
	}
	containers := deployment.Spec.Template.Spec.Containers
	if len(containers) != 1 || len(containers[0].Args) == 0 || containers[0].Resources.Limits.Memory().IsZero() {
		return shipped{}, fmt.Errorf("--redis: %s must have one container, with arguments and a memory limit", path)
	}
	return shipped{containers[0].Args, containers[0].Resources.Limits.Memory().Value()}, nil
}

// server is a redis-server that this process started.
type server struct {
	addr    string
	process *exec.Cmd
	dir     string
	client  *redis.Client
}

// redisServer returns the path of the Redis on this machine, which may be another than the manifests', and its version.
func redisServer(ctx context.Context) (path, version string, err error) {
	if path, err = exec.LookPath("redis-server"); err != nil {
		return "", "", fmt.Errorf("redis-server 7 or later is not on the PATH: apt-get install redis-server: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	said, err := exec.CommandContext(ctx, path, "--version").Output()
	if err != nil {
		return "", "", fmt.Errorf("ask %s for its version: %w", path, err)
	}
	for _, word := range strings.Fields(string(said)) {
		if version, ok := strings.CutPrefix(word, "v="); ok {
			return path, version, nil
		}
	}
	return "", "", fmt.Errorf("%s --version printed no v=: %.200s", path, said)
}

func startServer(ctx context.Context, as shipped, pinned bool) (*server, error) {
	path, _, err := redisServer(ctx)
	if err != nil {
		return nil, err
	}
	addr, err := machine.FreeAddress()
	if err != nil {
		return nil, err
	}
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "bench-pool")
	if err != nil {
		return nil, err
	}
	args := slices.Concat([]string{path}, as.args, []string{"--bind", "127.0.0.1", "--port", port, "--dir", dir})
	if pinned {
		args = append([]string{"taskset", "-c", strconv.Itoa(redisCore)}, args...)
	}
	s := &server{addr: addr, dir: dir}
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

// memory is what Redis takes up, in bytes.
type memory struct {
	most        int64 // the peak of the whole process
	data        int64 // what maxmemory bounds
	functions   int64 // their state, and their text
	connections int64
	clients     int64 // number of connections
}

func (s *server) memory(ctx context.Context) (m memory, err error) {
	process, err := machine.MemoryOf(s.process.Process.Pid)
	if err != nil {
		return memory{}, err
	}
	info, err := s.client.InfoMap(ctx, "memory", "clients").Result()
	if err != nil {
		return memory{}, err
	}
	m.most = process.Peak
	for _, f := range []struct {
		into          *int64
		section, name string
	}{
		{&m.data, "Memory", "used_memory"}, {&m.functions, "Memory", "used_memory_vm_total"},
		{&m.connections, "Memory", "mem_clients_normal"}, {&m.clients, "Clients", "connected_clients"},
	} {
		if *f.into, err = strconv.ParseInt(info[f.section][f.name], 10, 64); err != nil {
			return memory{}, fmt.Errorf("read %s of Redis: %w", f.name, err)
		}
	}
	return m, nil
}

const mib = 1 << 20

func (m memory) String() string {
	return fmt.Sprintf("%.1f MiB at most; %.1f of data, %.1f of functions, %.1f of %d connections",
		float64(m.most)/mib, float64(m.data)/mib, float64(m.functions)/mib, float64(m.connections)/mib, m.clients)
}

// idle returns how long each core has been idle so far.
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
