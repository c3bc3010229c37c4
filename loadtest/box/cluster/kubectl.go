package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"libra.dev/libra/loadtest/box/layout"
)

// ErrNotRunning is the error of whatever needs a running node.
var ErrNotRunning = errors.New("the box does not run: start it with `box up`")

// Kubectl is a kubectl that talks to the box, and to nothing else whatever the
// caller's surroundings say.
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

// socket is containerd's socket as this namespace sees it.
func (c Cluster) socket(initPID int) string {
	return filepath.Join("/proc", fmt.Sprint(initPID), "root", containerdSocket)
}

// Import gives the node the images of a tar.
func (c Cluster) Import(ctx context.Context, tar string) error {
	start := time.Now()
	if _, err := c.ctr(ctx, "images", "import", tar); err != nil {
		return fmt.Errorf("import %s: %w", tar, err)
	}
	if took := time.Since(start); took > 2*time.Second {
		c.Log("imported %s in %.1f s", filepath.Base(tar), took.Seconds())
	}
	return nil
}

// Images are the names of the images on the node.
func (c Cluster) Images(ctx context.Context) ([]string, error) {
	out, err := c.ctr(ctx, "images", "list", "--quiet")
	return strings.Fields(out), err
}

// ctr runs containerd's own client. It reads files on this side of the
// namespaces, and sends them.
func (c Cluster) ctr(ctx context.Context, args ...string) (string, error) {
	p, found, err := findInit(c.Layout)
	if err != nil {
		return "", err
	}
	if !found {
		return "", ErrNotRunning
	}
	defer p.close()
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, c.Layout.Bin("ctr"), append([]string{"--address", c.socket(p.pid), "--namespace", "k8s.io"}, args...)...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("ctr %s: %w: %s", args[0], err, strings.TrimSpace(stderr.String()))
	}
	return string(out), nil
}
