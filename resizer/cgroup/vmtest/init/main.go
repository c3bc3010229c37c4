// Command init is the first process of the virtual machine that vmtest starts: it
// mounts what tests need, loads the module if there is one, runs each test binary in /tests, and powers off.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// results is the serial port that the kernel does not write to.
const results = "/dev/ttyS1"

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "init:", err)
	}
	syscall.Sync()
	if err := syscall.Reboot(syscall.LINUX_REBOOT_CMD_POWER_OFF); err != nil {
		fmt.Fprintln(os.Stderr, "init: powering off:", err)
	}
	select {} // the kernel panics when the first process ends
}

func run() error {
	for _, m := range []struct{ kind, at string }{
		{"proc", "/proc"}, {"sysfs", "/sys"}, {"devtmpfs", "/dev"}, {"tmpfs", "/tmp"}, {"cgroup2", "/sys/fs/cgroup"},
	} {
		if err := os.MkdirAll(m.at, 0o755); err != nil {
			return err
		}
		if err := syscall.Mount(m.kind, m.at, m.kind, 0, ""); err != nil {
			return fmt.Errorf("mounting %s: %w", m.at, err)
		}
	}
	if err := load(); err != nil {
		return err
	}
	out, err := os.OpenFile(results, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	arguments, err := os.ReadFile("/arguments")
	if err != nil {
		return err
	}
	tests, err := filepath.Glob("/tests/*")
	if err != nil {
		return err
	}
	for _, path := range tests {
		name := filepath.Base(path)
		fmt.Fprintf(out, "BEGIN %s\n", name)
		fmt.Fprintf(out, "END %s %s\n", name, result(test(path, strings.Fields(string(arguments)), out)))
	}
	fmt.Fprintln(out, "DONE")
	return out.Close()
}

// load loads the module, if there is one.
func load() error {
	module, err := os.Open("/module")
	if errors.Is(err, os.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	defer module.Close() //nolint:errcheck // read only
	parameters, err := os.ReadFile("/parameters")
	if err != nil {
		return err
	}
	if err := unix.FinitModule(int(module.Fd()), string(parameters), 0); err != nil {
		return fmt.Errorf("loading a module with %q: %w", parameters, err)
	}
	return nil
}

// test runs one binary. Output through a pipe is complete when Wait returns.
func test(path string, arguments []string, out io.Writer) error {
	cmd := exec.Command(path, arguments...)
	cmd.Dir = "/tmp"
	cmd.Stdout = struct{ io.Writer }{out}
	cmd.Stderr = cmd.Stdout
	return cmd.Run()
}

func result(err error) string {
	if err != nil {
		return err.Error()
	}
	return "ok"
}
