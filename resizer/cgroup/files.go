package cgroup

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"os"
	"strconv"
	"sync"
	"syscall"
)

const (
	// unlimitedBytes is above any real memory limit; v1 writes one near the largest
	// number of pages for "none".
	unlimitedBytes = int64(1) << 60

	// leastQuotaMicros is the least quota that the kernel takes and the kubelet writes.
	leastQuotaMicros = 1000

	// usualPeriodMicros is the default of the kernel and of the kubelet.
	usualPeriodMicros = 100_000

	// statEvery is how many readings share one read of memory.stat, the only file that is long and that
	// changes slowly. It is statNearEvery while more than two thirds of the limit are charged: near the
	// limit, use grows unseen in place of cache.
	statEvery     = 10
	statNearEvery = 3
	// fileSize is more than any other file has, and longSize is more than memory.stat has.
	fileSize = 1 << 10
	longSize = 16 << 10
)

// long has buffers for long files, which readers share: each of a hundred containers is open twice.
var long = sync.Pool{New: func() any { return new([longSize]byte) }}

// File is an open file of the kernel. It is a bare descriptor because os.File takes two system calls to
// read a file of unknown size, and registers it with the runtime's poller, which every memory event would
// then wake.
type File struct {
	Path     string
	fd       int
	readOnly error // why it cannot be written, when it was to be
}

// OpenFile opens a file for reading and, if writable, for writing too. A file that can only be read opens
// all the same.
func OpenFile(path string, writable bool) (File, error) {
	flags := syscall.O_RDONLY
	if writable {
		flags = syscall.O_RDWR
	}
	fd, err := openRetrying(path, flags)
	var readOnly error
	if writable && (errors.Is(err, syscall.EROFS) || errors.Is(err, syscall.EACCES) || errors.Is(err, syscall.EPERM)) {
		readOnly = err
		fd, err = openRetrying(path, syscall.O_RDONLY)
	}
	if err != nil {
		return File{}, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return File{Path: path, fd: fd, readOnly: readOnly}, nil
}

func openRetrying(path string, flags int) (fd int, err error) {
	for {
		if fd, err = syscall.Open(path, flags|syscall.O_CLOEXEC, 0); err != syscall.EINTR {
			return fd, err
		}
	}
}

// Read takes one system call: the kernel returns the whole file when there is room for it, and otherwise
// its beginning.
func (f *File) Read(into []byte) ([]byte, error) {
	for {
		n, err := syscall.Pread(f.fd, into, 0)
		if err == syscall.EINTR {
			continue
		}
		if err != nil {
			return nil, &os.PathError{Op: "read", Path: f.Path, Err: err}
		}
		return bytes.TrimSpace(into[:n]), nil
	}
}

// Close closes the file.
func (f *File) Close() error { return syscall.Close(f.fd) }

func (f *File) write(text []byte) error {
	if f.readOnly != nil {
		return fmt.Errorf("writing %q to %s, which could only be opened for reading (are cgroups mounted read-only?): %w", text, f.Path, f.readOnly)
	}
	for {
		_, err := syscall.Pwrite(f.fd, text, 0)
		if err == syscall.EINTR {
			continue
		}
		if err != nil {
			return fmt.Errorf("writing %q: %w", text, &os.PathError{Op: "write", Path: f.Path, Err: err})
		}
		return nil
	}
}

// files are the open files of one container.
type files struct {
	open   []File
	closed bool
	input  [fileSize]byte
	output [48]byte
}

// add opens files. When it fails, the caller closes those that were opened.
func (f *files) add(writable bool, paths ...string) error {
	for _, path := range paths {
		file, err := OpenFile(path, writable)
		if err != nil {
			return err
		}
		f.open = append(f.open, file)
	}
	return nil
}

// Close implements Container.
func (f *files) Close() error {
	if f.closed {
		return os.ErrClosed
	}
	f.closed = true
	var errs []error
	for _, file := range f.open {
		errs = append(errs, file.Close())
	}
	return errors.Join(errs...)
}

// text returns the content of a file, which is valid until the next call.
func (f *files) text(i int) ([]byte, error) { return f.textIn(i, f.input[:]) }

func (f *files) textIn(i int, room []byte) ([]byte, error) {
	if f.closed {
		return nil, os.ErrClosed
	}
	return f.open[i].Read(room)
}

// longKeyed returns the number after key in a long file.
func (f *files) longKeyed(i int, key string) (int64, error) {
	room := long.Get().(*[longSize]byte)
	defer long.Put(room)
	text, err := f.textIn(i, room[:])
	if err != nil {
		return 0, err
	}
	return f.keyed(i, text, key)
}

// writeLine writes text, which is in output or appended to it, and a newline.
func (f *files) writeLine(i int, text []byte) error {
	if f.closed {
		return os.ErrClosed
	}
	return f.open[i].write(append(text, '\n'))
}

// line returns the first line of a file.
func (f *files) line(i int) ([]byte, error) {
	text, err := f.text(i)
	line, _, _ := bytes.Cut(text, newline)
	return line, err
}

func (f *files) int(i int) (int64, error) {
	line, err := f.line(i)
	if err != nil {
		return 0, err
	}
	return f.parse(i, line)
}

func (f *files) writeInt(i int, n int64) error {
	return f.writeLine(i, strconv.AppendInt(f.output[:0], n, 10))
}

// keyed returns the number after key in a file of lines "key number"; 0 when there is no such line, as
// without the controller that writes it.
func (f *files) keyed(i int, text []byte, key string) (int64, error) {
	for len(text) > 0 {
		line, rest, _ := bytes.Cut(text, newline)
		if len(line) > len(key) && line[len(key)] == ' ' && string(line[:len(key)]) == key {
			return f.parse(i, line[len(key)+1:])
		}
		text = rest
	}
	return 0, nil
}

var (
	newline = []byte("\n")
	space   = []byte(" ")
	none    = []byte("max")
)

func (f *files) parse(i int, text []byte) (int64, error) {
	n, err := strconv.ParseInt(string(text), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%s: %q is not a number", f.open[i].Path, text)
	}
	return n, nil
}

// quotaMicros computes a quota as the kubelet does.
func quotaMicros(milli, periodMicros int64) (int64, error) {
	if periodMicros <= 0 {
		return 0, fmt.Errorf("the CPU period is %d us, want more than 0", periodMicros)
	}
	if milli < 0 || milli > math.MaxInt64/periodMicros {
		return 0, fmt.Errorf("the CPU limit is %dm, want 0 (none) to %dm", milli, math.MaxInt64/periodMicros)
	}
	return max(leastQuotaMicros, milli*periodMicros/1000), nil
}

// cpuMilli rounds up, which gives back what quotaMicros was asked for, whatever the period is.
func cpuMilli(quotaMicros, periodMicros int64) int64 {
	if quotaMicros <= 0 || periodMicros <= 0 {
		return 0
	}
	return (quotaMicros*1000 + periodMicros - 1) / periodMicros
}

// attainable returns what is read after a CPU limit was set with this period.
func attainable(milli, periodMicros int64) int64 {
	if quota, err := quotaMicros(milli, periodMicros); err == nil && milli > 0 {
		return cpuMilli(quota, periodMicros)
	}
	return milli
}
