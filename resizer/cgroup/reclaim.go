package cgroup

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
)

// Cache is what a container's cgroup says at one moment of what could be taken of its memory.
type Cache struct {
	Used     int64 // bytes, with all caches
	Inactive int64 // bytes of files that were not used lately
	Unclean  int64 // bytes of files that are yet to be written to them
	// Refaults are bytes of files, so far, that were read again after they had been taken.
	Refaults int64
	Waited   time.Duration // so far, that some thread or another did for memory
}

// Reclaimer takes memory from a container. Not for concurrent use, but it does not mind what its
// Container is used for meanwhile.
type Reclaimer interface {
	Read() (Cache, error)

	// Reclaim has the kernel take so many bytes, of files and of its own caches for the container,
	// and waits for it. Anonymous memory stays: a kernel that cannot be told so, and could swap,
	// is not asked, and the error is errors.ErrUnsupported. It is syscall.EAGAIN when less was
	// taken.
	Reclaim(bytes int64) error

	io.Closer
}

type reclaimer struct {
	files
	dir, swaps string
}

const (
	reclaimUsed = iota
	reclaimStat
	reclaimPressure
	reclaimReclaim
)

// filesOnly has the kernel leave anonymous memory alone, since Linux 6.10.
const filesOnly = " swappiness=0"

// Reclaimer implements Container.
func (*v1) Reclaimer() (Reclaimer, error) { return nil, errors.ErrUnsupported }

// Reclaimer implements Container.
func (c *v2) Reclaimer() (Reclaimer, error) { return openReclaimer(c.dir, "/proc/swaps") }

func openReclaimer(dir, swaps string) (Reclaimer, error) {
	r := &reclaimer{dir: dir, swaps: swaps}
	if err := r.add(false, filepath.Join(dir, "memory.current"), filepath.Join(dir, "memory.stat")); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	err := r.add(false, filepath.Join(dir, "memory.pressure"))
	if err == nil {
		// It can only be written.
		reclaim := File{Path: filepath.Join(dir, "memory.reclaim")}
		if reclaim.fd, err = openRetrying(reclaim.Path, syscall.O_WRONLY); err == nil {
			r.open = append(r.open, reclaim)
			return r, nil
		}
		err = &os.PathError{Op: "open", Path: reclaim.Path, Err: err}
	}
	if errors.Is(err, os.ErrNotExist) {
		err = fmt.Errorf("%w: %w", errors.ErrUnsupported, err)
	}
	return nil, errors.Join(err, r.Close())
}

// Read implements Reclaimer.
func (r *reclaimer) Read() (Cache, error) {
	var c Cache
	var err error
	if c.Used, err = r.int(reclaimUsed); err != nil {
		return c, err
	}
	room := long.Get().(*[longSize]byte)
	defer long.Put(room)
	stat, err := r.textIn(reclaimStat, room[:])
	if err != nil {
		return c, err
	}
	var dirty, written, refaults int64
	for _, k := range [...]struct {
		key  string
		into *int64
	}{
		{"inactive_file", &c.Inactive}, {"file_dirty", &dirty}, {"file_writeback", &written}, {"workingset_refault_file", &refaults},
	} {
		if *k.into, err = r.keyed(reclaimStat, stat, k.key); err != nil {
			return c, err
		}
	}
	c.Unclean, c.Refaults = dirty+written, refaults*int64(os.Getpagesize())
	some, err := r.line(reclaimPressure)
	if err != nil {
		return c, err
	}
	_, total, _ := bytes.Cut(some, []byte(" total="))
	micros, err := r.parse(reclaimPressure, total)
	c.Waited = time.Duration(micros) * time.Microsecond
	return c, err
}

// Reclaim implements Reclaimer.
func (r *reclaimer) Reclaim(bytes int64) error {
	err := r.ask(bytes, filesOnly)
	if !errors.Is(err, syscall.EINVAL) {
		return err
	}
	if r.swappable() {
		return fmt.Errorf("%w: the kernel could swap out anonymous memory, and takes no%s in memory.reclaim", errors.ErrUnsupported, filesOnly)
	}
	return r.ask(bytes, "")
}

// ask writes once: each write takes as much again, so one that a signal has interrupted is as good
// as one that took less.
func (r *reclaimer) ask(bytes int64, how string) error {
	if r.closed {
		return os.ErrClosed
	}
	text := append(strconv.AppendInt(r.output[:0], bytes, 10), how...)
	f := r.open[reclaimReclaim]
	_, err := syscall.Pwrite(f.fd, text, 0)
	if err == syscall.EINTR {
		err = syscall.EAGAIN
	}
	if err != nil {
		return fmt.Errorf("writing %q: %w", text, &os.PathError{Op: "write", Path: f.Path, Err: err})
	}
	return nil
}

// swappable says that anonymous memory of the container may be swapped out, as far as is known.
func (r *reclaimer) swappable() bool {
	most, err := os.ReadFile(filepath.Join(r.dir, "memory.swap.max"))
	if err == nil && string(bytes.TrimSpace(most)) == "0" {
		return false
	}
	swaps, err := os.ReadFile(r.swaps)
	if errors.Is(err, os.ErrNotExist) {
		return false // the kernel cannot swap at all
	}
	// The first line is the table's head.
	return err != nil || bytes.Count(bytes.TrimSpace(swaps), newline) > 0
}
