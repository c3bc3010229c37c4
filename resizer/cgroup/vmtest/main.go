// Command vmtest runs Go tests on cgroup v2, whichever version the machine has. They run in a
// virtual machine that QEMU emulates in software, with Debian's cloud kernel, tests as static
// binaries, and nothing else. It fails when a test failed or was skipped, or when a package ran
// none.
package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"libra.dev/libra/resizer/cgroup/cgrouptest"
)

func main() {
	kernel := flag.String("kernel", "", "kernel to boot, a bzImage")
	module := flag.String("module", "", "module to load into the kernel, with its parameters after spaces")
	run := flag.String("run", "^TestKernel", "tests to run, as in go test")
	timeout := flag.Duration("timeout", 15*time.Minute, "time after which the virtual machine is stopped")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "usage: vmtest -kernel FILE [flags] PACKAGE...")
		flag.PrintDefaults()
	}
	flag.Parse()
	if *kernel == "" || flag.NArg() == 0 {
		flag.Usage()
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := test(ctx, *kernel, *module, *run, *timeout, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "vmtest:", err)
		os.Exit(1)
	}
}

func test(ctx context.Context, kernel, module, run string, timeout time.Duration, packages []string) error {
	dir, err := os.MkdirTemp("", "libra-vmtest-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir) //nolint:errcheck // a leftover is in the way of nothing

	arguments := []string{"-test.v", "-test.run=" + run, fmt.Sprint("-test.timeout=", timeout)}
	image := filepath.Join(dir, "initramfs")
	if err := build(ctx, dir, image, module, arguments, packages); err != nil {
		return err
	}

	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	console := filepath.Join(dir, "console")
	output, err := boot(ctx, kernel, image, console)
	if err == nil {
		err = judge(os.Stdout, output, len(packages))
	}
	if err != nil {
		if text, readErr := os.ReadFile(console); readErr == nil {
			err = fmt.Errorf("%w\nthe console of the virtual machine:\n%s", err, bytes.TrimSpace(text))
		}
	}
	return err
}

// build makes the initramfs.
func build(ctx context.Context, dir, image, module string, arguments, packages []string) error {
	out, err := os.Create(image)
	if err != nil {
		return err
	}
	defer out.Close() //nolint:errcheck // closed below when all went well
	buffered := bufio.NewWriter(out)
	a := &archive{w: buffered}
	add := func(name string, command ...string) error {
		path := filepath.Join(dir, "binary")
		cmd := exec.CommandContext(ctx, "go", append(command[:len(command)-1:len(command)-1], "-trimpath", "-ldflags=-s -w", "-o", path, command[len(command)-1])...)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if text, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("building %s: %w\n%s", command[len(command)-1], err, bytes.TrimSpace(text))
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return fmt.Errorf("building %s: %w (does it have tests?)", command[len(command)-1], err)
		}
		if err := os.Remove(path); err != nil {
			return err
		}
		return a.file(name, 0o755, content)
	}

	errs := []error{a.directory("dev"), a.console(), a.directory("tests"), a.file("arguments", 0o644, []byte(strings.Join(arguments, "\n")))}
	errs = append(errs, add("init", "build", "libra.dev/libra/resizer/cgroup/vmtest/init"))
	if path, parameters, _ := strings.Cut(module, " "); path != "" {
		content, err := os.ReadFile(path)
		errs = append(errs, err, a.file("module", 0o644, content), a.file("parameters", 0o644, []byte(parameters)))
	}
	for i, p := range packages {
		errs = append(errs, add(fmt.Sprintf("tests/%d-%s", i, filepath.Base(p)), "test", "-c", "-vet=off", p))
	}
	errs = append(errs, a.close(), buffered.Flush(), out.Close())
	return errors.Join(errs...)
}

// boot returns what was written to the second serial port. The kernel's messages are in the file
// console.
func boot(ctx context.Context, kernel, image, console string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, "qemu-system-x86_64",
		"-accel", "tcg", "-cpu", "max", "-m", "1024", "-nodefaults", "-no-reboot", "-display", "none",
		"-kernel", kernel, "-initrd", image, "-append", "console=ttyS0 panic=-1 quiet "+cgrouptest.NeedEnv+"=2",
		"-serial", "file:"+console, "-serial", "stdio")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	output, err := cmd.Output()
	if ctx.Err() != nil {
		return nil, fmt.Errorf("the virtual machine was stopped before it had powered off: %w\n%s", ctx.Err(), output)
	}
	if err != nil {
		return nil, fmt.Errorf("running %s: %w\n%s", cmd.Path, err, bytes.TrimSpace(stderr.Bytes()))
	}
	return output, nil
}
