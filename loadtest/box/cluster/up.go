package cluster

import (
	"bytes"
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

// Up starts the nodes. It calls install as soon as the API server answers, and returns when the nodes
// are Ready and install is done. It leaves running nodes alone if there are as many as wanted and
// they are whole: started is then false. It first removes what broken nodes left. stale says what is
// wrong with the rest of the box, if anything.
func (c Cluster) Up(ctx context.Context, stale func() (problem string, err error), install func(context.Context) error) (started bool, err error) {
	if os.Geteuid() != 0 { // reported with all other problems, not as the first failure
		return false, c.preflight(ctx)
	}
	problem, exists := c.examine(ctx)
	if exists && problem == "" {
		if problem, err = stale(); err != nil || problem == "" {
			return false, err
		}
	}
	if exists {
		c.Log("a box exists, but %s: taking it down and starting a new one", problem)
		if err := c.Down(ctx); err != nil {
			return false, err
		}
	}
	if err := c.preflight(ctx); err != nil {
		return false, err
	}
	if err := PrepareImages(ctx, c.Layout, c.Log); err != nil {
		return false, err
	}
	installing, giveUp := context.WithCancel(ctx)
	defer giveUp()
	installed := make(chan error, 1)
	if err := c.start(ctx, func() { installed <- install(installing) }); err != nil {
		giveUp()
		// The logs stay.
		return false, errors.Join(err, c.Down(context.WithoutCancel(ctx)))
	}
	return true, <-installed
}

// examine reports whether anything of a node exists, and what is wrong with it.
func (c Cluster) examine(ctx context.Context) (problem string, exists bool) {
	p, found, err := findInit(c.Layout)
	if err != nil {
		return err.Error(), true
	}
	if !found {
		_, err := os.Stat(c.Layout.Run())
		return "it is not running", err == nil
	}
	defer p.close()
	return c.broken(ctx), true
}

// broken says what is wrong with a node that runs. It gives a busy node time, because somebody may be
// using it.
func (c Cluster) broken(ctx context.Context) string {
	members, err := c.members()
	if err != nil {
		return err.Error()
	}
	if len(members) != c.Nodes {
		return fmt.Sprintf("it has %d nodes, not %d", len(members), c.Nodes)
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	api, err := newAPI(c.Layout)
	if err != nil {
		return err.Error()
	}
	err = poll(ctx, time.Second, func() (bool, string, error) {
		if log, how := c.ended(); log != "" {
			return false, "", fmt.Errorf("%s has ended (%s)", strings.TrimSuffix(filepath.Base(log), ".log"), how)
		}
		unready, err := api.unready(ctx, members)
		if err != nil {
			return false, fmt.Sprintf("its API server does not answer (%v)", err), nil
		}
		return unready == "", unready, nil
	})
	if err != nil {
		return err.Error()
	}
	return ""
}

// ended returns the log of a component that ended, and how it ended; log is empty if none has.
func (c Cluster) ended() (log, how string) {
	members, err := c.members()
	if err != nil {
		return logPath(c.Layout, initName), err.Error()
	}
	for _, m := range members {
		states, err := readStates(m.layout)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return logPath(m.layout, initName), err.Error()
		}
		for _, s := range states {
			if s.Exit != "" {
				return logPath(m.layout, s.Name), s.Exit
			}
		}
	}
	return "", ""
}

// start starts the nodes and waits until they are Ready. As soon as the API server answers, it calls
// answers in a goroutine.
func (c Cluster) start(ctx context.Context, answers func()) error {
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
	members := membersOf(c.Layout, c.Nodes)
	for _, m := range members {
		for _, dir := range []string{m.layout.Run(), podLogs(m.layout)} {
			if err := os.MkdirAll(dir, 0o755); err != nil {
				return err
			}
		}
		if err := writeConfigs(m, runc); err != nil {
			return err
		}
	}
	if err := writePKI(c.Layout.PKI(), time.Now(), members...); err != nil {
		return err
	}
	if err := writeNodes(c.Layout, c.Nodes); err != nil {
		return err
	}
	if err := c.giveImages(ctx, members...); err != nil {
		return err
	}
	pid, err := c.startInit(members)
	if err != nil {
		return err
	}
	c.Log("node started, as process %d", pid)

	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	g, starting := errgroup.WithContext(ctx)
	for _, m := range members {
		g.Go(func() error {
			if err := c.waitContainerd(starting, pid, m); err != nil {
				return err
			}
			return c.importLacking(starting, m)
		})
	}
	g.Go(func() error {
		api, err := readyAPI(starting, c.Layout, func() error { return c.stillStarting(pid) })
		if err != nil {
			return err
		}
		go answers()
		return c.waitReady(starting, api, pid, members)
	})
	return g.Wait()
}

// startInit starts the node's init in its namespaces, connects it and lets it go on. Until then, init
// ends when this process does.
func (c Cluster) startInit(members []member) (pid int, err error) {
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
	// Reap init if it ends while this process lives.
	go func() { _ = cmd.Wait() }()
	if control := members[0]; control.alone() {
		err = groups.create(pid)
	} else {
		var cpus []int
		if cpus, err = machineCPUs(); err == nil {
			err = groups.createAmong(control, cpus, pid)
		}
	}
	if err != nil {
		return 0, err
	}
	if err := connectMachine(pid, members); err != nil {
		return 0, err
	}
	options, err := json.Marshal(Options{Nodes: len(members), InMemory: memoryTotal() >= inMemoryAtBytes})
	if err != nil {
		return 0, err
	}
	if _, err := send.Write(options); err != nil {
		return pid, err
	}
	return pid, c.awaitRunAgain(pid, members[0])
}

// awaitRunAgain waits until the init of several nodes has executed itself again. For a moment it has
// no command line, and cannot be recognized by it.
func (c Cluster) awaitRunAgain(pid int, m member) error {
	if m.alone() {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), leaveTimeout)
	defer cancel()
	return poll(ctx, 10*time.Millisecond, func() (bool, string, error) {
		environ, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
		if err != nil && errors.Is(unix.Kill(pid, 0), unix.ESRCH) {
			return false, "", fmt.Errorf("the node's init ended: %w; its log is %s", err, logPath(c.Layout, initName))
		}
		// The file may be unreadable although init runs: if a thread other than the first executes
		// the program, it replaces the first, which is gone for a moment.
		return err == nil && bytes.Contains(environ, []byte(toldEnv)) && isInit(pid, c.Layout.State), "the node's init has not executed itself again", nil
	})
}

func (c Cluster) waitContainerd(ctx context.Context, pid int, m member) error {
	return poll(ctx, 50*time.Millisecond, func() (bool, string, error) {
		if err := c.stillStarting(pid); err != nil {
			return false, "", err
		}
		// Before, the socket may be another node's: a worker starts with the control node's mounts.
		begun, err := c.stateOf(m.layout, "containerd")
		if err != nil || begun.Exit != "" {
			return false, fmt.Sprintf("containerd of node %s has not been started yet", m.name()), nil
		}
		first, err := c.firstProcess(pid, m)
		if err == nil {
			_, err = os.Stat(socket(first))
		}
		return err == nil, fmt.Sprintf("containerd of node %s does not listen yet", m.name()), nil
	})
}

func (c Cluster) waitReady(ctx context.Context, api api, pid int, members []member) error {
	said := time.Now()
	err := poll(ctx, 100*time.Millisecond, func() (bool, string, error) {
		if err := c.stillStarting(pid); err != nil {
			return false, "", err
		}
		lacks := api.usable(ctx, members)
		if lacks != "" && time.Since(said) > 5*time.Second {
			said = time.Now()
			c.Log("waiting: %s", lacks)
		}
		return lacks == "", lacks, nil
	})
	switch {
	case err != nil:
	case len(members) == 1:
		c.Log("node Ready")
	default:
		c.Log("%d nodes Ready", len(members))
	}
	return err
}

// stillStarting returns an error once the node can no longer become Ready.
func (c Cluster) stillStarting(pid int) error {
	log, how := c.ended()
	if log == "" && !isInit(pid, c.Layout.State) {
		log, how = logPath(c.Layout, initName), "the node's first process"
	}
	if log == "" {
		return nil
	}
	return fmt.Errorf("%s ended (%s); the end of its log %s:\n%s", strings.TrimSuffix(filepath.Base(log), ".log"), how, log, lastLines(log, 10))
}

// importLacking imports the image tars of the cache that a node may run and lacks.
func (c Cluster) importLacking(ctx context.Context, m member) error {
	all, err := preparedOf(c.Layout)
	if err != nil {
		return err
	}
	there, err := c.imagesOn(ctx, m)
	if err != nil {
		return err
	}
	lacks := m.without(there)
	imported := 0
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(2) // two keep the disk busy
	for _, ref := range all.Images {
		if lacks(ref.Name) {
			imported++
			g.Go(func() error { return c.importTo(ctx, m, all.tars[ref]) })
		}
	}
	if err := g.Wait(); err != nil || imported == 0 {
		return err
	}
	c.Log("images imported%s: %d", m.told(), imported)
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
