package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// Up starts the node and returns when it is Ready. A node that already runs
// and is whole is left alone: started is false then. What a broken one left is
// removed first. stale says what is wrong with the rest of the box, if anything.
func (c Cluster) Up(ctx context.Context, stale func() (problem string, err error)) (started bool, err error) {
	if os.Geteuid() != 0 { // told with all else, rather than as what fails first
		return false, c.preflight(ctx)
	}
	problem, exists := c.examine(ctx)
	if exists && problem == "" {
		if problem, err = stale(); err != nil || problem == "" {
			return false, err
		}
	}
	if exists {
		c.Log("a box is there, but %s: taking it down and starting anew", problem)
		if err := c.Down(ctx); err != nil {
			return false, err
		}
	}
	if err := c.preflight(ctx); err != nil {
		return false, err
	}
	if err := c.start(ctx); err != nil {
		// The logs stay.
		return false, errors.Join(err, c.Down(context.WithoutCancel(ctx)))
	}
	return true, nil
}

// examine says whether anything of a node exists, and what is wrong with it.
func (c Cluster) examine(ctx context.Context) (problem string, exists bool) {
	p, found, err := findInit(c.Layout)
	if err != nil {
		return err.Error(), true
	}
	if !found {
		_, err := os.Stat(c.Layout.Run())
		return "it does not run", err == nil
	}
	defer p.close()
	return c.broken(ctx), true
}

// broken says what is wrong with a node that runs. One that is merely busy gets
// its time: somebody may be using it.
func (c Cluster) broken(ctx context.Context) string {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	api, err := newAPI(c.Layout)
	if err != nil {
		return err.Error()
	}
	err = poll(ctx, time.Second, func() (bool, string, error) {
		if name, how := c.ended(); name != "" {
			return false, "", fmt.Errorf("%s has ended (%s)", name, how)
		}
		ready, reason, err := api.nodeReady(ctx)
		if err != nil {
			return false, fmt.Sprintf("its API server does not answer (%v)", err), nil
		}
		return ready, fmt.Sprintf("its node is not Ready (%s)", reason), nil
	})
	if err != nil {
		return err.Error()
	}
	return ""
}

// ended names a component that ended, and how.
func (c Cluster) ended() (name, how string) {
	states, err := readStates(c.Layout)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return initName, err.Error()
	}
	for _, s := range states {
		if s.Exit != "" {
			return s.Name, s.Exit
		}
	}
	return "", ""
}

func (c Cluster) start(ctx context.Context) error {
	runc, err := exec.LookPath("runc")
	if err != nil {
		return err
	}
	if err := c.Layout.ClaimState(); err != nil {
		return err
	}
	if err := os.RemoveAll(c.Layout.Logs()); err != nil { // of an earlier run
		return err
	}
	for _, dir := range []string{c.Layout.Run(), podLogs(c.Layout)} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	if err := writePKI(c.Layout.PKI(), time.Now()); err != nil {
		return err
	}
	if err := writeConfigs(c.Layout, runc); err != nil {
		return err
	}
	pid, err := c.startInit()
	if err != nil {
		return err
	}
	c.Log("node started, as process %d", pid)

	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if err := c.waitContainerd(ctx, pid); err != nil {
		return err
	}
	if err := c.importAll(ctx); err != nil {
		return err
	}
	return c.waitReady(ctx, pid)
}

// startInit starts the node's init in its namespaces, connects it and lets it go.
// Until it is told to go, it ends when this process does.
func (c Cluster) startInit() (pid int, err error) {
	groups, err := readCgroups()
	if err != nil {
		return 0, err
	}
	out, err := openLog(c.Layout, initName)
	if err != nil {
		return 0, err
	}
	defer out.Close()
	receive, send, err := os.Pipe()
	if err != nil {
		return 0, err
	}
	defer receive.Close()
	defer send.Close()
	self, err := os.Executable()
	if err != nil {
		return 0, err
	}
	cmd := exec.Command(self, initArgs(c.Layout)...)
	cmd.Env = environment(c.Layout)
	cmd.Dir = "/"
	cmd.Stdin, cmd.Stdout, cmd.Stderr = receive, out, out
	cmd.SysProcAttr = &unix.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWNET,
		Setsid:     true,
	}
	if err := cmd.Start(); err != nil {
		return 0, fmt.Errorf("start the node's init: %w", err)
	}
	pid = cmd.Process.Pid
	// Reaps it if it ends while this process lives.
	go func() { _ = cmd.Wait() }()
	if err := groups.create(pid); err != nil {
		return 0, err
	}
	if err := connectMachine(pid); err != nil {
		return 0, err
	}
	options, err := json.Marshal(Options{InMemory: memoryTotal() >= inMemoryAtBytes})
	if err != nil {
		return 0, err
	}
	_, err = send.Write(options)
	return pid, err
}

func (c Cluster) waitContainerd(ctx context.Context, pid int) error {
	return poll(ctx, 50*time.Millisecond, func() (bool, string, error) {
		if err := c.stillStarting(pid); err != nil {
			return false, "", err
		}
		_, err := os.Stat(c.socket(pid))
		return err == nil, "containerd does not listen", nil
	})
}

func (c Cluster) waitReady(ctx context.Context, pid int) error {
	api, err := newAPI(c.Layout)
	if err != nil {
		return err
	}
	said := time.Now()
	err = poll(ctx, 100*time.Millisecond, func() (bool, string, error) {
		if err := c.stillStarting(pid); err != nil {
			return false, "", err
		}
		lacks := api.usable(ctx)
		if lacks != "" && time.Since(said) > 5*time.Second {
			said = time.Now()
			c.Log("waiting: %s", lacks)
		}
		return lacks == "", lacks, nil
	})
	if err == nil {
		c.Log("node Ready")
	}
	return err
}

// stillStarting fails when the node cannot become Ready any more.
func (c Cluster) stillStarting(pid int) error {
	name, how := c.ended()
	if name == "" && !isInit(pid, c.Layout.State) {
		name, how = initName, "the node's first process"
	}
	if name == "" {
		return nil
	}
	return fmt.Errorf("%s ended (%s); the end of its log %s:\n%s", name, how, logPath(c.Layout, name), lastLines(logPath(c.Layout, name), 10))
}

// importAll imports every image tar of the cache.
func (c Cluster) importAll(ctx context.Context) error {
	tars, err := filepath.Glob(filepath.Join(c.Layout.Images(), "*.tar"))
	if err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(2) // the disk is busy with that already
	for _, tar := range tars {
		g.Go(func() error { return c.Import(ctx, tar) })
	}
	if err := g.Wait(); err != nil {
		return err
	}
	c.Log("imported %d images", len(tars))
	return nil
}

func lastLines(path string, n int) string {
	data, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimRight(string(data), "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
