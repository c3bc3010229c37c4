package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"libra.dev/libra/loadtest/box/layout"
)

// Options are the settings of one run of a node.
type Options struct {
	// Nodes is the number of nodes in the cluster, and Number is this one's.
	Nodes  int `json:"nodes"`
	Number int `json:"number"`
	// InMemory keeps the files of etcd, of the kubelet and of containerd's database in memory, to
	// keep fsync out of the path of a resize.
	InMemory bool `json:"inMemory"`
}

// componentState is what init reports about one component.
type componentState struct {
	Name    string    `json:"name"`
	PID     int       `json:"pid"` // inside the box
	Started time.Time `json:"started"`
	// Exit is empty while the component runs.
	Exit string `json:"exit,omitempty"`
}

func statesPath(l layout.Layout) string { return filepath.Join(l.Run(), "components.json") }

// Init is pid 1 of the box's namespaces, and the control node's first process. It waits until its
// starter has connected it to the machine and sent the Options. If the starter goes away before
// that, Init ends. Otherwise it starts the components and the workers, and stays.
func Init(l layout.Layout, start io.Reader) error {
	n, err := begin(l, initName, start)
	if err != nil {
		return err
	}
	etcdDir := filepath.Join(l.Run(), "etcd")
	if n.options.InMemory {
		etcdDir = "/var/lib/etcd" // on the tmpfs, as /var/lib/kubelet is
	}
	c := components(n.member, etcdDir)
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	if err := n.start(slices.Concat(c.stores, n.workers())...); err != nil {
		return err
	}
	if err := waitListening(ctx, "tcp", etcdAddress); err != nil {
		return err
	}
	if err := n.start(c.apiServer); err != nil {
		return err
	}
	api, err := readyAPI(ctx, l, func() error { return nil })
	if err != nil {
		return err
	}
	log.Print("API server ready")
	if err := api.grantDNS(ctx); err != nil {
		return err
	}
	return n.finish(ctx, c.clients)
}

// Node is the first process of a worker. It ends when the control node's first process does.
func Node(l layout.Layout, start io.Reader) error {
	n, err := begin(l, nodeName, start)
	if err != nil {
		return err
	}
	c := workerComponents(n.member)
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	if err := n.start(c.stores...); err != nil {
		return err
	}
	if _, err := readyAPI(ctx, l, func() error { return nil }); err != nil {
		return err
	}
	return n.finish(ctx, c.clients)
}

// begin prepares the namespaces of a node. This process is the node's first.
func begin(l layout.Layout, name string, start io.Reader) (*node, error) {
	log.SetFlags(log.LstdFlags | log.Lmicroseconds)
	if os.Getpid() != 1 {
		return nil, fmt.Errorf("`box %s` is only for `box up`, which runs it as pid 1 of a node; here it is pid %d", name, os.Getpid())
	}
	o, err := told(start)
	if err != nil {
		return nil, err
	}
	if err := raiseFileLimit(); err != nil {
		return nil, err
	}
	n := newNode(member{layout: l, number: o.Number, of: o.Nodes})
	n.options = o
	if err := n.mount(); err != nil {
		return nil, fmt.Errorf("set up the mounts: %w", err)
	}
	if err := setUpNetwork(n.member); err != nil {
		return nil, fmt.Errorf("set up the network: %w", err)
	}
	go n.reap()
	return n, nil
}

// finish starts the components that wait for all else, and then ended ones on request.
func (n *node) finish(ctx context.Context, clients []component) error {
	if err := waitListening(ctx, "unix", containerdSocket); err != nil {
		return err
	}
	if err := n.start(clients...); err != nil {
		return err
	}
	n.startAgain()
	return nil
}

// toldEnv is the variable that passes the options on when a first process executes itself again.
const toldEnv = "LIBRA_BOX_TOLD"

// told returns the starter's options. If there are several nodes, it also makes a cgroup
// namespace, in the cgroup that the starter put this process in.
func told(start io.Reader) (o Options, err error) {
	if said := os.Getenv(toldEnv); said != "" {
		err := json.Unmarshal([]byte(said), &o)
		return o, err
	}
	if err := json.NewDecoder(start).Decode(&o); err != nil {
		return o, fmt.Errorf("read options from the starter: %w", err)
	}
	if o.Nodes == 1 {
		return o, nil
	}
	said, err := json.Marshal(o)
	if err != nil {
		return o, err
	}
	// Only this thread has the new namespace. When it executes a program, all threads of that
	// program have it.
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWCGROUP); err != nil {
		return o, fmt.Errorf("make a cgroup namespace: %w", err)
	}
	return o, unix.Exec("/proc/self/exe", os.Args, append(os.Environ(), toldEnv+"="+string(said)))
}

// raiseFileLimit raises the number of files that a process may open, for everything that init
// starts: a proxy needs one for each connection.
func raiseFileLimit() error {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return fmt.Errorf("limit of open files: %w", err)
	}
	limit.Cur = limit.Max
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return fmt.Errorf("raise the limit of open files to %d: %w", limit.Max, err)
	}
	return nil
}

func waitListening(ctx context.Context, network, address string) error {
	var d net.Dialer
	return poll(ctx, 10*time.Millisecond, func() (bool, string, error) {
		conn, err := d.DialContext(ctx, network, address)
		if err != nil {
			return false, fmt.Sprintf("nothing listens on %s", address), nil
		}
		return true, "", conn.Close()
	})
}

// node is the state of a node's first process.
type node struct {
	member
	options Options
	// machine has the cgroups above the node's own, if there are workers to be put there.
	machine cgroupSystem

	mu      sync.Mutex
	order   []*componentState
	states  map[int]*componentState // by pid
	started map[string]component    // by name
}

func newNode(m member) *node {
	return &node{member: m, states: map[int]*componentState{}, started: map[string]component{}}
}

// start starts components. If one ends, that is recorded, and it is not started again until
// somebody asks for it, so that nobody misses it.
func (n *node) start(list ...component) error {
	n.mu.Lock() // the end of a component must not be recorded before its start
	defer n.mu.Unlock()
	for _, c := range list {
		out, err := openLog(n.layout, c.name)
		if err != nil {
			return err
		}
		cmd := exec.Cmd{
			Path:   c.path,
			Args:   append([]string{c.name}, c.args...),
			Env:    environment(n.layout),
			Dir:    "/",
			Stdout: out,
			Stderr: out,
		}
		if c.worker == nil {
			err = cmd.Start()
		} else {
			err = n.startWorker(&cmd, *c.worker)
		}
		out.Close()
		if err != nil {
			return fmt.Errorf("start %s: %w", c.name, err)
		}
		s := &componentState{Name: c.name, PID: cmd.Process.Pid, Started: time.Now()}
		n.started[c.name] = c
		n.order, n.states[s.PID] = append(n.order, s), s
		log.Printf("started %s as pid %d", c.name, s.PID)
	}
	return n.save()
}

// again asks a first process to start the components that have ended, and againWorkers to start
// the workers. A stopped worker must stay away until somebody wants it back.
const (
	again        = unix.SIGUSR1
	againWorkers = unix.SIGUSR2
)

// startAgain starts what has ended, whenever a signal asks for it.
func (n *node) startAgain() {
	asked := make(chan os.Signal, 1)
	signal.Notify(asked, again, againWorkers)
	for signal := range asked {
		if err := n.start(n.takeEnded(signal == againWorkers)...); err != nil {
			log.Printf("start the ended processes again: %v", err)
		}
	}
}

// takeEnded forgets the workers, or else the components, that have ended, and returns them.
func (n *node) takeEnded(workers bool) (ended []component) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.order = slices.DeleteFunc(n.order, func(s *componentState) bool {
		if s.Exit == "" || (n.started[s.Name].worker != nil) != workers {
			return false
		}
		ended = append(ended, n.started[s.Name])
		return true
	})
	return ended
}

// reap waits for every process that ends here: components, and orphans, which pid 1 inherits.
func (n *node) reap() {
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, unix.SIGCHLD)
	for range ended {
		for {
			var status unix.WaitStatus
			pid, err := unix.Wait4(-1, &status, unix.WNOHANG, nil)
			if errors.Is(err, unix.EINTR) {
				continue
			}
			if pid <= 0 || err != nil {
				break
			}
			n.exited(pid, status)
		}
	}
}

func (n *node) exited(pid int, status unix.WaitStatus) {
	n.mu.Lock()
	defer n.mu.Unlock()
	s, ok := n.states[pid]
	if !ok {
		return
	}
	delete(n.states, pid)
	s.Exit = fmt.Sprintf("exit status %d", status.ExitStatus())
	if status.Signaled() {
		s.Exit = "killed by " + unix.SignalName(status.Signal())
	}
	s.Exit += " at " + time.Now().Format(time.TimeOnly)
	log.Printf("%s ended: %s", s.Name, s.Exit)
	if err := n.save(); err != nil {
		log.Printf("record the end of %s: %v", s.Name, err)
	}
}

func (n *node) save() error {
	data, err := json.MarshalIndent(n.order, "", "  ")
	if err != nil {
		return err
	}
	path := statesPath(n.layout)
	if err := os.WriteFile(path+".new", data, 0o644); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

func readStates(l layout.Layout) ([]componentState, error) {
	data, err := os.ReadFile(statesPath(l))
	if err != nil {
		return nil, err
	}
	var states []componentState
	if err := json.Unmarshal(data, &states); err != nil {
		return nil, fmt.Errorf("%s: %w", statesPath(l), err)
	}
	return states, nil
}

// masked are the machine's folders that the box covers with its own, so that nothing its
// components write there lasts or mixes with the machine's.
var masked = []string{"/run", "/var/lib", "/var/log"}

// mount prepares the mount namespace.
func (n *node) mount() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make / private: %w", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	if !n.alone() {
		if err := n.mountCgroups(); err != nil {
			return err
		}
	}
	// Mounts in pods may have to reach the node, and mounts on the node the pods.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, ""); err != nil {
		return fmt.Errorf("make / shared: %w", err)
	}
	if err := mask(masked, n.layout.State, n.layout.Cache); err != nil {
		return err
	}
	if n.isWorker() {
		if err := n.mountWorker(); err != nil {
			return err
		}
	}
	if n.options.InMemory {
		// Images stay on the disk. containerd's records of containers need not.
		if err := toMemory(filepath.Join(containerdRoot(n.layout), metadataDB)); err != nil {
			return err
		}
	} else if err := bind(filepath.Join(n.layout.Run(), "kubelet"), "/var/lib/kubelet"); err != nil {
		return err
	}
	return showSysctls()
}

// mask mounts an empty tmpfs over each of dirs; folders in keep that lie below one stay visible.
func mask(dirs []string, keep ...string) error {
	open := map[string]int{}
	for _, path := range keep {
		fd, err := unix.Open(path, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("open %s: %w", path, err)
		}
		defer unix.Close(fd)
		open[path] = fd
	}
	for _, dir := range dirs {
		if err := mountTmpfs(dir); err != nil {
			return err
		}
		for path, fd := range open {
			if !strings.HasPrefix(path, dir+"/") {
				continue
			}
			if err := bind(fmt.Sprintf("/proc/self/fd/%d", fd), path); err != nil {
				return err
			}
		}
	}
	return nil
}

func mountTmpfs(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0755"); err != nil {
		return fmt.Errorf("mount a tmpfs on %s: %w", dir, err)
	}
	return nil
}

// toMemory mounts a tmpfs on the folder of a file, and keeps the file if there is one.
func toMemory(file string) error {
	data, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := mountTmpfs(filepath.Dir(file)); err != nil || data == nil {
		return err
	}
	return os.WriteFile(file, data, 0o644)
}

// bind shows the folder from at the path to.
func bind(from, to string) error {
	for _, dir := range []string{from, to} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	if err := unix.Mount(from, to, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("bind %s to %s: %w", from, to, err)
	}
	return nil
}

// showSysctls puts files over those of the machine's sysctls on whose values the kubelet insists:
// the kubelet finds its values, and the machine keeps its own.
func showSysctls() error {
	dir := "/run/libra-box/sysctl"
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for name, value := range map[string]string{
		"kernel/keys/root_maxbytes": "25000000",
		"kernel/keys/root_maxkeys":  "1000000",
		"kernel/panic":              "10",
		"kernel/panic_on_oops":      "1",
		"vm/overcommit_memory":      "1",
		"vm/panic_on_oom":           "0",
	} {
		file := filepath.Join(dir, filepath.Base(name))
		if err := os.WriteFile(file, []byte(value+"\n"), 0o644); err != nil {
			return err
		}
		target := filepath.Join("/proc/sys", name)
		if err := unix.Mount(file, target, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("cover %s: %w", target, err)
		}
	}
	return nil
}
