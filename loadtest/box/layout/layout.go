// Package layout says where the box keeps things on the machine.
package layout

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
)

const (
	// CacheEnv and StateEnv override the two folders of a Layout.
	CacheEnv = "LIBRA_BOX_CACHE"
	StateEnv = "LIBRA_BOX_STATE"

	defaultState = "/var/lib/libra-box"
)

// Layout names the two folders that the box writes to. Everything in Cache can be built again.
// Everything in State belongs to one run of the box.
type Layout struct {
	Cache string
	State string
	// Node is the worker that Logs and Run are for; empty is the control node.
	Node string
}

// Of returns the layout of a worker of the same box. All nodes share one folder for
// certificates.
func (l Layout) Of(worker string) Layout {
	l.Node = worker
	return l
}

// Default returns the layout that the environment asks for.
func Default() (Layout, error) {
	l := Layout{Cache: os.Getenv(CacheEnv), State: os.Getenv(StateEnv)}
	if l.Cache == "" {
		dir, err := os.UserCacheDir()
		if err != nil {
			return Layout{}, fmt.Errorf("there is no place for the box's binaries: %w; set %s to a folder", err, CacheEnv)
		}
		l.Cache = filepath.Join(dir, "libra-box")
	}
	if l.State == "" {
		l.State = defaultState
	}
	// Clean the paths, because the path of its state folder identifies a running box.
	l = Layout{Cache: filepath.Clean(l.Cache), State: filepath.Clean(l.State)}
	for env, dir := range map[string]string{CacheEnv: l.Cache, StateEnv: l.State} {
		// The node's processes do not share the caller's working directory.
		if !filepath.IsAbs(dir) || dir == "/" {
			return Layout{}, fmt.Errorf("%s is %q; it must be an absolute path to a folder of the box's own", env, dir)
		}
	}
	return l, nil
}

// For returns the layout of builds for an architecture. Builds for this machine are in Cache
// itself.
func (l Layout) For(arch string) Layout {
	if arch != runtime.GOARCH {
		l.Cache = filepath.Join(l.Cache, arch)
	}
	return l
}

// marker is the file that marks a state folder as the box's.
const marker = ".libra-box"

// CheckState returns an error if State is somebody else's folder, from which the box must remove
// nothing.
func (l Layout) CheckState() error {
	entries, err := os.ReadDir(l.State)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read the box's state folder: %w", err)
	}
	if _, err := os.Stat(filepath.Join(l.State, marker)); err == nil {
		return nil
	}
	if len(entries) > 0 {
		return fmt.Errorf("the box did not make %s, which contains %s; set %s to an empty or a new folder", l.State, entries[0].Name(), StateEnv)
	}
	return nil
}

// ClaimState makes the state folder, and marks it as the box's.
func (l Layout) ClaimState() error {
	if err := l.CheckState(); err != nil {
		return err
	}
	if err := os.MkdirAll(l.State, 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(l.State, marker), nil, 0o644)
}

// Bin is the path of a built binary, or of the folder of all binaries if name is empty.
func (l Layout) Bin(name string) string { return filepath.Join(l.Cache, "bin", name) }

// Manifests is the folder of the manifests that are applied to a new cluster.
func (l Layout) Manifests() string { return filepath.Join(l.Cache, "manifests") }

// Images is the folder of the image tars that a new node imports.
func (l Layout) Images() string { return filepath.Join(l.Cache, "images") }

// Prepared is the folder of the data that a new node's containerd starts with.
func (l Layout) Prepared() string { return filepath.Join(l.Cache, "containerd") }

// Logs is the folder of the components' logs, one <component>.log each. Workers' logs are in
// subfolders of the control node's folder.
func (l Layout) Logs() string { return filepath.Join(l.State, "logs", l.Node) }

// PKI is the folder of the certificates, keys and kubeconfigs.
func (l Layout) PKI() string { return filepath.Join(l.State, "pki") }

// Kubeconfig is the administrator's kubeconfig, with its certificates inside.
func (l Layout) Kubeconfig() string { return filepath.Join(l.PKI(), "admin.kubeconfig") }

// Run is the folder that one run of the node writes to: all state of etcd, containerd and the
// kubelet, but not sockets. Workers' folders are in the control node's.
func (l Layout) Run() string { return filepath.Join(l.State, "run", l.Node) }
