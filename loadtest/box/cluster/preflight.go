package cluster

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"libra.dev/libra/loadtest/box/apt"
	"libra.dev/libra/loadtest/box/layout"
)

const (
	gib = 1 << 30

	// Measured needs of a build and a run, with room to spare.
	buildFreeBytes  = 15 * gib
	imagesFreeBytes = 4 * gib
	upFreeBytes     = 6 * gib
	memoryBytes     = 7 * gib
	inMemoryAtBytes = 15 * gib // machines sold as 16 GiB show less
)

// Problems lists everything that is in the way, one sentence each.
type Problems []string

func (p Problems) Error() string {
	return "the machine is not ready for the box:\n  - " + strings.Join(p, "\n  - ")
}

func (p Problems) orNil() error {
	if len(p) == 0 {
		return nil
	}
	return p
}

// tools are the programs that the node needs and the box does not build.
var tools = []apt.Tool{
	{Program: "runc", Package: "runc"},
	{Program: "nft", Package: "nftables"},
	{Program: "mount", Package: "mount"},
	{Program: filepath.Join(cniPlugins, "bridge"), Package: "containernetworking-plugins"},
	{Program: filepath.Join(cniPlugins, "host-local"), Package: "containernetworking-plugins"},
	{Program: filepath.Join(cniPlugins, "loopback"), Package: "containernetworking-plugins"},
}

// PreflightBuild says what prevents building the box.
func PreflightBuild(l layout.Layout) error {
	return preflightBuild(l, "kubelite", buildFreeBytes, "building the box")
}

// PreflightImages says what prevents building Libra's images, without a box.
func PreflightImages(l layout.Layout) error {
	return preflightBuild(l, "k6", imagesFreeBytes, "building the images")
}

// PreflightRelease says what prevents making a release's images. It does not need root.
func PreflightRelease(l layout.Layout) error {
	if _, err := os.Stat(l.Bin("libra-agent")); err == nil {
		return nil
	}
	return tooLittleDisk(l.Cache, imagesFreeBytes, "making the images").orNil()
}

// preflightBuild asks for free space only if the build's first binary is missing: a
// later build replaces the results of an earlier one.
func preflightBuild(l layout.Layout, first string, needBytes uint64, what string) error {
	p := notRoot()
	if _, err := os.Stat(l.Bin(first)); err != nil {
		p = append(p, tooLittleDisk(l.Cache, needBytes, what)...)
	}
	return p.orNil()
}

// preflight says what prevents starting the node. It changes nothing.
func (c Cluster) preflight(ctx context.Context) error {
	p := notRoot()
	p = append(p, missingTools()...)
	p = append(p, c.notBuilt()...)
	p = append(p, tooLittleDisk(c.Layout.State, upFreeBytes, "the box")...)
	if err := c.Layout.CheckState(); err != nil {
		p = append(p, err.Error())
	}
	if c.Nodes < 1 || c.Nodes > MostNodes {
		return append(p, fmt.Sprintf("the box cannot have %d nodes; it must have 1 to %d", c.Nodes, MostNodes))
	}
	cpus, err := machineCPUs()
	if err != nil {
		return err
	}
	if workers := c.Nodes - 1; workers > len(cpus) {
		p = append(p, fmt.Sprintf("the machine has %d CPUs, and each of %d workers needs one of its own: ask for at most %d nodes", len(cpus), workers, len(cpus)+1))
	}
	unfit, err := unfitMachine(ctx, c.Layout, c.Nodes)
	if err != nil {
		return err
	}
	return append(p, unfit...).orNil()
}

// unfitMachine says what on the machine prevents a box. No box of the layout may run.
func unfitMachine(ctx context.Context, l layout.Layout, nodes int) (Problems, error) {
	groups, err := readCgroups()
	if err != nil {
		return nil, err
	}
	other, err := otherBox(l, groups)
	if err != nil {
		return nil, err
	}
	if other != "" {
		return Problems{other}, nil // its routes are in the way too, but say less
	}
	var p Problems
	if total := memoryTotal(); total < memoryBytes {
		p = append(p, fmt.Sprintf("the machine has %.1f GiB of memory; the box needs 8", float64(total)/gib))
	}
	p = append(p, missingControllers(groups)...)
	routes, err := machineRoutes()
	if err != nil {
		return nil, err
	}
	p = append(p, routesInTheWay(routes, append(boxCIDRs(membersOf(l, nodes)), linkCIDR))...)
	if os.Geteuid() == 0 { // other users cannot try anything
		missing, err := tryKernel(ctx)
		if err != nil {
			return nil, err
		}
		p = append(p, missing...)
	}
	return p, nil
}

// otherBox describes a box other than the layout's own on this machine; it is empty if
// there is none. All boxes have the same cgroups and addresses.
func otherBox(l layout.Layout, groups cgroupSystem) (string, error) {
	inits, err := runningInits()
	if err != nil {
		return "", err
	}
	for _, state := range inits {
		if state != l.State {
			return fmt.Sprintf("a box with its state in %[2]s runs on this machine, and there can be only one: end it with `%[1]s=%[2]s box down`", layout.StateEnv, state), nil
		}
	}
	// A box in another container is not visible as a process.
	for _, dir := range groups.ours() {
		if pids := processesIn(dir); len(pids) > 0 {
			return fmt.Sprintf("the cgroup %s is in use by process %s, which does not belong to this box: end that process, or the box that it belongs to", dir, pids[0]), nil
		}
	}
	return "", nil
}

func notRoot() Problems {
	if os.Geteuid() == 0 {
		return nil
	}
	return Problems{fmt.Sprintf("the box must be run by root, not by user %d: it makes namespaces, mounts and cgroups", os.Geteuid())}
}

func missingTools() Problems {
	var p Problems
	for _, t := range apt.Missing(tools) {
		p = append(p, fmt.Sprintf("%s is missing: install the Debian package %s, or run `box build`", t.Program, t.Package))
	}
	return p
}

func (c Cluster) notBuilt() Problems {
	var missing []string
	for _, name := range Binaries {
		if _, err := os.Stat(c.Layout.Bin(name)); err != nil {
			missing = append(missing, name)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	return Problems{fmt.Sprintf("%s has no %s: run `box build`", c.Layout.Bin(""), strings.Join(missing, ", "))}
}

// tooLittleDisk checks the file system that dir is, or will be, on.
func tooLittleDisk(dir string, needBytes uint64, what string) Problems {
	var stat unix.Statfs_t
	at := dir
	for {
		err := unix.Statfs(at, &stat)
		if err == nil {
			break
		}
		if !errors.Is(err, fs.ErrNotExist) || at == "/" {
			return Problems{fmt.Sprintf("cannot find out the free space at %s: %v", dir, err)}
		}
		at = filepath.Dir(at)
	}
	free := stat.Bavail * uint64(stat.Bsize)
	if free >= needBytes {
		return nil
	}
	return Problems{fmt.Sprintf("%s has %.1f GiB of free space; %s needs %d GiB there (set %s and %s to use other places)",
		at, float64(free)/gib, what, needBytes/gib, layout.CacheEnv, layout.StateEnv)}
}

func memoryTotal() uint64 {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return 0
	}
	return info.Totalram * uint64(info.Unit)
}

func missingControllers(groups cgroupSystem) Problems {
	// The file exists only where v2 is mounted on its own.
	v2, _ := os.ReadFile("/sys/fs/cgroup/cgroup.controllers")
	missing := groups.missing(string(v2))
	if len(missing) == 0 {
		return nil
	}
	return Problems{fmt.Sprintf("the kernel does not offer the cgroup controllers %s: mount the cgroup file systems, or boot with these controllers enabled", strings.Join(missing, ", "))}
}

// routesInTheWay finds the routes that overlap the box's addresses. It is called while
// the box is down, so that none of them is the box's own.
func routesInTheWay(routes []route, cidrs []string) Problems {
	var p Problems
	for _, cidr := range cidrs {
		ours := netip.MustParsePrefix(cidr)
		var overlapping []string
		for _, r := range routes {
			if ours.Overlaps(r.dst) {
				overlapping = append(overlapping, fmt.Sprintf("%s (%s)", r.dst, r.device))
			}
		}
		slices.Sort(overlapping)
		if overlapping = slices.Compact(overlapping); len(overlapping) > 0 {
			p = append(p, fmt.Sprintf("the address range %s is in use: the machine has a route to %s", cidr, strings.Join(overlapping, ", ")))
		}
	}
	return p
}

// tryKernel tries the kernel's features in namespaces that vanish with the process that
// tries them.
func tryKernel(ctx context.Context) (Problems, error) {
	// Unlike the others, not loaded on demand. If that fails, the probe says so.
	if _, err := os.Stat(bridgeSysctl); err != nil {
		_ = exec.CommandContext(ctx, "modprobe", "br_netfilter").Run()
	}
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, "/proc/self/exe", probeName)
	cmd.SysProcAttr = &unix.SysProcAttr{Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWNET | unix.CLONE_NEWPID}
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EINVAL) {
		return Problems{fmt.Sprintf("the kernel does not let root make mount, network and pid namespaces (%v): run on the machine itself, or in a privileged container", err)}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("try the kernel's features: %w\n%s", err, stderr.String())
	}
	var p Problems
	for line := range strings.Lines(string(out)) {
		p = append(p, strings.TrimSpace(line))
	}
	return p, nil
}
