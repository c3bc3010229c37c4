package cgrouptest

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// asLoad makes a test binary a load, which does what its standard input says.
const asLoad = "LIBRA_TEST_LOAD"

// A test binary may have a TestMain of its own, so init decides.
func init() {
	if os.Getenv(asLoad) != "" {
		serve()
		os.Exit(0)
	}
}

// serve obeys one line after the other: "ping"; "burn", in the background until "rest"; "doze", which
// wakes now and then in the background; "hold <bytes>", in all, locked where that is allowed; "read
// <file>".
func serve() {
	var held []byte
	var read *os.File
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		command, argument, _ := strings.Cut(in.Text(), " ")
		switch command {
		case "burn":
			burning.Store(true)
			go burn()
		case "rest":
			burning.Store(false)
		case "doze":
			go doze()
		case "read":
			if read == nil { // the kernel drops its cache of a disk that nobody has open
				var err error
				if read, err = os.Open(argument); err != nil {
					panic(err)
				}
			}
			if _, err := read.Seek(0, io.SeekStart); err != nil {
				panic(err)
			}
			if _, err := io.Copy(io.Discard, read); err != nil {
				panic(err)
			}
		case "hold":
			bytes, err := strconv.Atoi(argument)
			if err != nil {
				panic(err)
			}
			if held, err = hold(held, bytes); err != nil {
				panic(err)
			}
		}
		fmt.Println(in.Text())
	}
}

// hold makes the held memory grow or shrink to a number of bytes. Memory that is already held stays in use
// meanwhile.
func hold(held []byte, bytes int) (grown []byte, err error) {
	before := len(held)
	switch {
	case bytes == 0 && before == 0:
		return nil, nil
	case bytes == 0:
		return nil, unix.Munmap(held)
	case before == 0:
		grown, err = unix.Mmap(-1, 0, bytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	default:
		// Locked memory grows within the kernel, by a huge page at a time, where the kernel slows nobody
		// down.
		unix.Munlock(held) //nolint:errcheck // it may not have been locked
		grown, err = unix.Mremap(held, bytes, unix.MREMAP_MAYMOVE)
	}
	if err != nil {
		return nil, err
	}
	for i := before; i < bytes; i += os.Getpagesize() {
		grown[i] = 1
	}
	unix.Mlock(grown) //nolint:errcheck // without it swap may take some, where there is any
	return grown, nil
}

var turns atomic.Uint64

var burning atomic.Bool

func burn() {
	for burning.Load() {
		turns.Add(1)
	}
}

func doze() {
	for {
		time.Sleep(50 * time.Millisecond)
		turns.Add(1)
	}
}

// Load is a process in a cgroup.
type Load struct {
	t   testing.TB
	in  *os.File
	out *bufio.Scanner
	cmd *exec.Cmd
}

// Start runs a load in the container until the test ends.
func (c *Container) Start(t testing.TB) *Load {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	in, stdin, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), asLoad+"=1")
	cmd.Stdin, cmd.Stderr = in, os.Stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		stdin.Close()
		cmd.Process.Kill() //nolint:errcheck // it may have ended
		cmd.Wait()         //nolint:errcheck // it was killed
	})
	in.Close() //nolint:errcheck // the load has its own
	l := &Load{t: t, in: stdin, out: bufio.NewScanner(stdout), cmd: cmd}
	l.Do("ping")
	c.Add(cmd.Process.Pid)
	return l
}

// Add puts a process into the container.
func (c *Container) Add(process int) {
	c.t.Helper()
	for _, dir := range c.dirs {
		c.Write(fmt.Sprint(process), filepath.Join(dir, "cgroup.procs"))
	}
}

// Tell sends a command without waiting until it is done.
func (l *Load) Tell(format string, args ...any) {
	l.t.Helper()
	if _, err := fmt.Fprintf(l.in, format+"\n", args...); err != nil {
		l.t.Fatal(err)
	}
}

// Done waits for the end of a command.
func (l *Load) Done() {
	l.t.Helper()
	if !l.out.Scan() {
		l.t.Fatalf("the load in the cgroup ended: %v, %v", l.out.Err(), l.cmd.Wait())
	}
}

// Do sends a command and waits for its end: "ping", "burn", which goes on until "rest", "doze", which goes
// on for good, "hold <bytes>" or "read <file>", which is always the same file.
func (l *Load) Do(format string, args ...any) {
	l.t.Helper()
	l.Tell(format, args...)
	l.Done()
}

// disk is in vmtest's machine, which has no other files that the kernel can drop from its cache.
const disk = "/dev/ram0"

// Cold returns a file of 128 MiB that the kernel does not have in memory, and that it keeps there once it
// is read.
func Cold(t testing.TB) string {
	t.Helper()
	if _, err := os.Stat(disk); err == nil {
		return disk
	}
	const bytes = 128 << 20
	f, err := os.Create(filepath.Join(t.TempDir(), "cold"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close() //nolint:errcheck // it is synced
	var system unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &system); err != nil {
		t.Fatal(err)
	}
	if system.Type == unix.TMPFS_MAGIC {
		t.Skipf("%s is in memory, so the kernel cannot drop what is read there", f.Name())
	}
	chunk := make([]byte, 1<<20)
	for range bytes / len(chunk) {
		if _, err := f.Write(chunk); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
	if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
		t.Fatal(err)
	}
	return f.Name()
}
