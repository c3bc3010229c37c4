// Package machine makes and boots a node like the ones that users have, which the machine that runs
// this may not be: an emulated computer with Debian's kernel, systemd, cgroup v2, containerd 2 and a
// kubelet of a chosen release, and the rest of Kubernetes beside it.
package machine

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/mod/modfile"

	"libra.dev/libra/loadtest/box/apt"
	"libra.dev/libra/loadtest/box/build"
	"libra.dev/libra/loadtest/box/cluster"
	"libra.dev/libra/loadtest/box/layout"
	"libra.dev/libra/loadtest/box/stack"
	"libra.dev/libra/loadtest/box/versions"
)

const (
	diskBytes  = "6G" // sparse
	memoryMiB  = "4096"
	processors = "3"

	// optDir is where the machine keeps Libra's things and the program that it runs.
	optDir      = "/opt/libra"
	imagesDir   = optDir + "/images"
	objectsPath = optDir + "/objects.yaml"
	program     = optDir + "/program"
	// serial is the port that gets the program's output.
	serial = "/dev/ttyS1"
)

// on is where the machine keeps the content of the box's cache and state folders.
var on = layout.Layout{Cache: "/opt/libra-box", State: "/var/lib/libra-box"}

// packages are all of the machine's software except what is built.
var packages = []string{
	"systemd", "systemd-sysv", "dbus", "linux-image-cloud-amd64", "initramfs-tools", "kmod",
	"runc", "crun", "containernetworking-plugins", "iproute2", "nftables", "procps", "util-linux", "mount", "curl",
}

// runtimes maps the OCI runtimes that a machine may have to the Debian suite that it is made of. The
// crun of an earlier suite supports no version of the runtime specification that containerd 2 writes.
var runtimes = map[string]string{"runc": versions.DebianSuite, "crun": versions.LaterDebianSuite}

// Kubelets maps the minor versions of the kubelets that a machine may have to their releases.
var Kubelets = map[string]string{"1.36": versions.Kubernetes, "1.35": versions.EarlierKubernetes}

// Options are the settings of one machine.
type Options struct {
	Kubelet string // a key of Kubelets
	Runtime string // runc or crun
	// Program is a static binary. The machine runs it with Args when it has booted. By then the
	// cluster has Libra's objects, and containerd has their images: their references are in
	// images.json beside the program.
	Program string
	Args    []string
}

// Machine is a machine that Build made.
type Machine struct{ kernel, initrd, disk string }

// Build makes a machine in dir.
func Build(ctx context.Context, l layout.Layout, repository, dir string, o Options, log stack.Logf) (Machine, error) {
	if _, ok := Kubelets[o.Kubelet]; !ok {
		return Machine{}, fmt.Errorf("there is no kubelet %q; it must be 1.35 or 1.36", o.Kubelet)
	}
	suite, ok := runtimes[o.Runtime]
	if !ok {
		return Machine{}, fmt.Errorf("the runtime is %q; it must be runc or crun", o.Runtime)
	}
	if err := apt.Ensure(ctx, log,
		apt.Tool{Program: "qemu-system-x86_64", Package: "qemu-system-x86"}, apt.Tool{Program: "mke2fs", Package: "e2fsprogs"}); err != nil {
		return Machine{}, err
	}
	kubelet, err := buildKubelet(ctx, l, o.Kubelet, log)
	if err != nil {
		return Machine{}, err
	}
	system := filepath.Join(l.Cache, "rootfs", "machine-"+suite)
	if err := build.Once(system, packages, func() error {
		log("installing the machine's Debian %s: %d packages and their dependencies", suite, len(packages))
		return stack.System(ctx, system, suite, log, packages...)
	}); err != nil {
		return Machine{}, fmt.Errorf("install the machine's Debian: %w", err)
	}
	root := filepath.Join(dir, "root")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return Machine{}, err
	}
	if err := run(ctx, "cp", "-a", "--reflink=auto", system, root); err != nil {
		return Machine{}, err
	}
	defer os.RemoveAll(root) //nolint:errcheck // it is on the disk by then
	libra, err := loadLibra(ctx, l, repository, dir, log)
	if err != nil {
		return Machine{}, err
	}
	if err := fill(ctx, l, root, kubelet, libra, o); err != nil {
		return Machine{}, err
	}
	m := Machine{disk: filepath.Join(dir, "disk")}
	for name, to := range map[string]*string{"vmlinuz": &m.kernel, "initrd.img": &m.initrd} {
		found, err := filepath.Glob(filepath.Join(system, "boot", name+"-*"))
		if err != nil || len(found) != 1 {
			return Machine{}, fmt.Errorf("the machine's Debian has %d files boot/%s-*, want one (%v)", len(found), name, err)
		}
		*to = found[0]
	}
	return m, run(ctx, "mke2fs", "-q", "-t", "ext4", "-L", "root", "-d", root, m.disk, diskBytes)
}

// buildKubelet returns the path of a kubelet, or of a binary that is one when called so.
func buildKubelet(ctx context.Context, l layout.Layout, minor string, log stack.Logf) (string, error) {
	if Kubelets[minor] == versions.Kubernetes {
		return l.Bin("kubelite"), nil
	}
	kubernetes, err := released(ctx, Kubelets[minor])
	if err != nil {
		return "", err
	}
	b := build.Builder{Bin: l.Bin(""), Log: log}
	name := "kubelet-" + minor
	log("building %s, which takes some minutes the first time", name)
	return l.Bin(name), b.Module(ctx, kubernetes, build.Binary{Name: name, Package: "cmd/kubelet"})
}

// released returns a release of Kubernetes as a module. Its own go.mod takes the separately published
// libraries from folders beside it.
func released(ctx context.Context, version string) (build.Module, error) {
	m := build.Module{
		Path: "k8s.io/kubernetes", Version: "v" + version,
		Options: build.Options{LDFlags: []string{"-X k8s.io/component-base/version.gitVersion=v" + version}},
	}
	source, err := build.Download(ctx, m.Path, m.Version)
	if err != nil {
		return m, err
	}
	data, err := os.ReadFile(source.GoMod)
	if err != nil {
		return m, err
	}
	m.Replace, err = published(data, version)
	return m, err
}

// published returns replaces for the libraries that a release of Kubernetes has in folders beside its
// go.mod: the versions that are published with it.
func published(gomod []byte, version string) (replaces []string, err error) {
	f, err := modfile.Parse("go.mod", gomod, nil)
	if err != nil {
		return nil, err
	}
	_, of, _ := strings.Cut(version, ".")
	for _, r := range f.Replace {
		replaces = append(replaces, fmt.Sprintf("%s => %s v0.%s", r.Old.Path, r.Old.Path, of))
	}
	return replaces, nil
}

// fill copies everything that makes the machine a node to its file system.
func fill(ctx context.Context, l layout.Layout, root, kubelet string, libra libra, o Options) error {
	copies := map[string]string{"/usr/local/bin/kubelet": kubelet, program: o.Program}
	for _, name := range []string{"kubelite", "dns", "containerd", "containerd-shim-runc-v2", "ctr"} {
		copies[on.Bin(name)] = l.Bin(name)
	}
	for _, tar := range libra.images {
		copies[filepath.Join(imagesDir, filepath.Base(tar))] = tar
	}
	for to, from := range copies {
		to = filepath.Join(root, to)
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			return err
		}
		if err := run(ctx, "cp", "--reflink=auto", from, to); err != nil {
			return err
		}
	}
	if err := os.Symlink("kubelite", filepath.Join(root, on.Bin("kubectl"))); err != nil {
		return err
	}
	m := cluster.Machine{Root: root, Layout: on, Kubelet: "/usr/local/bin/kubelet", Runtime: "/usr/bin/" + o.Runtime}
	if err := m.Write(time.Now()); err != nil {
		return err
	}
	prepare := filepath.Join(optDir, "prepare.sh")
	command := program
	for _, a := range o.Args {
		command += fmt.Sprintf(" %q", a)
	}
	for path, data := range map[string][]byte{
		objectsPath:                          libra.objects,
		prepare:                              m.Prepare(imagesDir, objectsPath),
		filepath.Join(optDir, "images.json"): libra.references,
		"/etc/fstab":                         []byte("LABEL=root / ext4 defaults 0 1\n"),
		"/etc/hostname":                      []byte(cluster.NodeName + "\n"),
		"/etc/hosts":                         []byte("127.0.0.1 localhost " + cluster.NodeName + "\n"),
		"/etc/resolv.conf":                   nil,
		"/etc/systemd/system/program.service": fmt.Appendf(nil, `[Unit]
Description=What the machine is for
[Service]
ExecStart=%s
StandardOutput=file:%s
StandardError=file:%s
Environment=PATH=%s:/usr/sbin:/usr/bin:/sbin:/bin KUBECONFIG=%s HOME=/root
OOMScoreAdjust=-999
`, command, serial, serial, on.Bin(""), on.Kubeconfig()),
		"/etc/systemd/system/multi-user.target.d/program.conf": []byte("[Unit]\nWants=program.service\n"),
	} {
		path = filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, data, 0o644); err != nil {
			return err
		}
	}
	// All mounts and processes of this command go with its namespaces.
	if err := run(ctx, "unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "/bin/sh", "-ec",
		`mount -t proc proc "$0/proc"; mount --bind /dev "$0/dev"; mount -t tmpfs tmpfs "$0/run"; exec chroot "$0" /bin/bash -e "$1"`,
		root, prepare); err != nil {
		return fmt.Errorf("prepare the machine: %w", err)
	}
	return os.RemoveAll(filepath.Join(root, imagesDir))
}

// Boot runs the machine until it powers itself off. The program's output goes to out, and the kernel's
// and systemd's to the file console.
func (m Machine) Boot(ctx context.Context, out io.Writer, console string) error {
	cmd := exec.CommandContext(ctx, "qemu-system-x86_64",
		"-accel", "tcg,thread=multi", "-cpu", "max", "-smp", processors, "-m", memoryMiB, "-nodefaults", "-display", "none",
		"-kernel", m.kernel, "-initrd", m.initrd,
		"-append", "root=LABEL=root rw console=ttyS0 panic=-1 quiet net.ifnames=0 mitigations=off",
		"-drive", "file="+m.disk+",format=raw,if=virtio,cache=unsafe",
		"-device", "virtio-rng-pci",
		"-serial", "file:"+console, "-serial", "stdio")
	cmd.Stdout, cmd.Stderr = out, os.Stderr
	cmd.WaitDelay = 10 * time.Second
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return fmt.Errorf("run the emulated machine: %w", err)
	}
	return nil
}

func run(ctx context.Context, name string, args ...string) error {
	if out, err := exec.CommandContext(ctx, name, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", name, err, out)
	}
	return nil
}
