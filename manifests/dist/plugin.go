package dist

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

const (
	pluginName    = "kubectl-libra"
	pluginPackage = "./pkg/kubectl/cmd/kubectl-libra"
	versionOfIt   = "libra.dev/libra/pkg/kubectl.Version"

	buildTimeout = 20 * time.Minute
)

// platform is an operating system and an architecture, in Go's words.
type platform struct{ os, arch string }

func (p platform) String() string { return p.os + "/" + p.arch }

var platforms = []platform{{"darwin", "amd64"}, {"darwin", "arm64"}, {"linux", "amd64"}, {"linux", "arm64"}}

func archiveName(version string, p platform) string {
	return fmt.Sprintf("%s_%s_%s_%s.tar.gz", pluginName, version, p.os, p.arch)
}

// pluginArchive returns an archive of the plugin for a platform, and the licence.
func pluginArchive(ctx context.Context, root string, p platform, version string) ([]byte, error) {
	program, err := buildPlugin(ctx, root, p, version)
	if err != nil {
		return nil, fmt.Errorf("building the plugin for %s: %w", p, err)
	}
	licence, err := os.ReadFile(filepath.Join(root, "LICENSE"))
	if err != nil {
		return nil, err
	}
	return archive([]entry{{pluginName, 0o755, program}, {"LICENSE", 0o644, licence}})
}

// buildPlugin returns the plugin's program, which does not depend on where and when it is built.
func buildPlugin(ctx context.Context, root string, p platform, version string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, buildTimeout)
	defer cancel()
	dir, err := os.MkdirTemp("", "libra-plugin-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, pluginName)
	build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-gcflags=all=-dwarf=false", "-buildvcs=false",
		"-ldflags", "-s -w -X "+versionOfIt+"="+version, "-o", path, pluginPackage)
	build.Dir = root
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS="+p.os, "GOARCH="+p.arch, "GOFLAGS=")
	if out, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("go build %s: %w\n%s", pluginPackage, err, out)
	}
	return os.ReadFile(path)
}
