package cgrouptest

import (
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
)

// NeedEnv names the environment variable with the version of cgroups, 1 or 2, that
// must be there: a test that would be skipped for want of it fails.
const NeedEnv = "LIBRA_TEST_CGROUP"

// Kernel is where this machine's own cgroups are mounted, and their version; the test
// is skipped where they may not be written.
func Kernel(t testing.TB) (root string, version int) {
	t.Helper()
	root, version = "/sys/fs/cgroup", 1
	writable := filepath.Join(root, "memory")
	if _, err := os.Stat(filepath.Join(root, "cgroup.controllers")); err == nil {
		version = 2
		writable = root
	}
	need := os.Getenv(NeedEnv)
	if need != "" && need != strconv.Itoa(version) {
		t.Fatalf("%s is %s, but the cgroups in %s are of version %d", NeedEnv, need, root, version)
	}
	const mayWrite = 2
	if err := syscall.Access(writable, mayWrite); err != nil {
		skip := t.Skipf
		if need != "" {
			skip = t.Fatalf
		}
		skip("cgroups can be made here neither as root nor otherwise: %s: %v", writable, err)
	}
	return root, version
}
