package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"libra.dev/libra/loadtest/box/layout"
)

// ErrNotRunning means that a running node is needed.
var ErrNotRunning = errors.New("the box is not running: start it with `box up`")

// Kubectl returns a kubectl that talks only to the box, whatever the caller's
// environment says.
func Kubectl(ctx context.Context, l layout.Layout, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, l.Bin("kubelite"))
	cmd.Args = append([]string{"kubectl"}, args...)
	for _, v := range os.Environ() {
		name, _, _ := strings.Cut(v, "=")
		switch strings.ToUpper(name) {
		case "KUBECONFIG", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY":
		default:
			cmd.Env = append(cmd.Env, v)
		}
	}
	cmd.Env = append(cmd.Env, "KUBECONFIG="+l.Kubeconfig())
	return cmd
}

// socket is the socket of a node's containerd as this namespace sees it.
func socket(firstPID int) string {
	return filepath.Join("/proc", fmt.Sprint(firstPID), "root", containerdSocket)
}

// firstProcess returns the pid of a node's first process, in this namespace.
func (c Cluster) firstProcess(initPID int, m member) (int, error) {
	if !m.isWorker() {
		return initPID, nil
	}
	state, err := c.stateOf(c.Layout, m.name())
	if err != nil {
		return 0, err
	}
	running, err := children(initPID)
	if err != nil {
		return 0, err
	}
	if pid, ok := running[state.PID]; ok && state.Exit == "" {
		return pid, nil
	}
	return 0, fmt.Errorf("node %s is not running (%s)", m.name(), state.Exit)
}

// Import imports the images of a tar on the nodes that may run them.
func (c Cluster) Import(ctx context.Context, tar string) error {
	members, err := c.members()
	if err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	for _, m := range members {
		if m.runs(strings.TrimSuffix(filepath.Base(tar), ".tar")) {
			g.Go(func() error { return c.importTo(ctx, m, tar) })
		}
	}
	return g.Wait()
}

func (c Cluster) importTo(ctx context.Context, m member, tar string) error {
	start := time.Now()
	if _, err := c.ctr(ctx, m, "images", "import", tar); err != nil {
		return fmt.Errorf("import %s%s: %w", tar, m.told(), err)
	}
	if took := time.Since(start); took > 2*time.Second {
		c.Log("imported %s%s in %.1f s", filepath.Base(tar), m.told(), took.Seconds())
	}
	return nil
}

// Images returns the names of the images that are on all nodes that may run them.
func (c Cluster) Images(ctx context.Context) ([]string, error) {
	members, err := c.members()
	if err != nil {
		return nil, err
	}
	everywhere, err := c.imagesOn(ctx, members[0])
	if err != nil {
		return nil, err
	}
	for _, w := range members[1:] {
		there, err := c.imagesOn(ctx, w)
		if err != nil {
			return nil, err
		}
		everywhere = slices.DeleteFunc(everywhere, w.without(there))
	}
	return everywhere, nil
}

// without reports whether the node may run an image that is not among those there.
func (m member) without(there []string) func(image string) bool {
	return func(image string) bool {
		return m.runs(imageName(image)) && !slices.Contains(there, image)
	}
}

// imageName returns the name of an image without its registry and tag.
func imageName(image string) string {
	name, _, _ := strings.Cut(path.Base(image), ":")
	return name
}

// imagesOn returns the names of the images on a node.
func (c Cluster) imagesOn(ctx context.Context, m member) ([]string, error) {
	out, err := c.ctr(ctx, m, "images", "list", "--quiet")
	return slices.DeleteFunc(strings.Fields(out), func(image string) bool { return strings.HasPrefix(image, "sha256:") }), err
}

// ctr runs the client of a node's containerd. The client reads files outside the
// node's namespaces and sends them.
func (c Cluster) ctr(ctx context.Context, m member, args ...string) (string, error) {
	p, found, err := findInit(c.Layout)
	if err != nil {
		return "", err
	}
	if !found {
		return "", ErrNotRunning
	}
	defer p.close()
	first, err := c.firstProcess(p.pid, m)
	if err != nil {
		return "", err
	}
	return runCtr(ctx, c.Layout, socket(first), args...)
}

func runCtr(ctx context.Context, l layout.Layout, socket string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, l.Bin("ctr"), append([]string{"--address", socket, "--namespace", "k8s.io"}, args...)...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("ctr %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(stderr.String()))
	}
	return string(out), nil
}
