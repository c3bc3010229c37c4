// Package layout says where the box keeps things on the machine.
package layout

import (
	"fmt"
	"os"
	"path/filepath"
)

const (
	// CacheEnv and StateEnv override the two folders of a Layout.
	CacheEnv = "LIBRA_BOX_CACHE"
	StateEnv = "LIBRA_BOX_STATE"

	defaultState = "/var/lib/libra-box"
)

// Layout names the two folders that the box writes to. Everything in Cache can
// be built again; everything in State belongs to one run of the box.
type Layout struct {
	Cache string
	State string
}

// Default returns the layout that the environment asks for.
func Default() (Layout, error) {
	l := Layout{Cache: os.Getenv(CacheEnv), State: os.Getenv(StateEnv)}
	if l.Cache == "" {
		dir, err := os.UserCacheDir()
		if err != nil {
			return Layout{}, fmt.Errorf("no place for the box's binaries: %w; set %s to a folder", err, CacheEnv)
		}
		l.Cache = filepath.Join(dir, "libra-box")
	}
	if l.State == "" {
		l.State = defaultState
	}
	for env, dir := range map[string]string{CacheEnv: l.Cache, StateEnv: l.State} {
		// The node's processes do not share the caller's working directory.
		if !filepath.IsAbs(dir) || filepath.Clean(dir) == "/" {
			return Layout{}, fmt.Errorf("%s is %q; it must be an absolute path to a folder of the box's own", env, dir)
		}
	}
	return l, nil
}

// Bin is the path of a built binary, or of the folder of all where name is empty.
func (l Layout) Bin(name string) string { return filepath.Join(l.Cache, "bin", name) }

// Images is the folder of the image tars that a new node imports.
func (l Layout) Images() string { return filepath.Join(l.Cache, "images") }

// Logs is the folder of the components' logs, one <component>.log each.
func (l Layout) Logs() string { return filepath.Join(l.State, "logs") }

// PKI is the folder of the certificates, keys and kubeconfigs.
func (l Layout) PKI() string { return filepath.Join(l.State, "pki") }

// Kubeconfig is the administrator's kubeconfig, with its certificates inside.
func (l Layout) Kubeconfig() string { return filepath.Join(l.PKI(), "admin.kubeconfig") }

// Run is the folder of what one run of the node writes: sockets aside, all of
// etcd's, containerd's and the kubelet's state.
func (l Layout) Run() string { return filepath.Join(l.State, "run") }
