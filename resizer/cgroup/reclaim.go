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

// Cache is what a container's cgroup says at one moment about the memory that could be reclaimed.
type Cache struct {
	Used     int64 // bytes, including all caches
	Inactive int64 // bytes of files that were not used lately
	Unclean  int64 // bytes of files that are yet to be written back
	// Refaults are bytes of files, so far, that were read again after they had been reclaimed.
	Refaults int64
	Waited   time.Duration // so far, in which some thread or another waited for memory
}

// Reclaimer reclaims memory of a container. It is not safe for concurrent use, but its Container
// may be used meanwhile.
type Reclaimer interface {
	Read() (Cache, error)

	// Reclaim has the kernel take so many bytes, from files and from its own caches for the
	// container, and waits for that. Anonymous memory stays: if the kernel could swap it and cannot
	// be told to leave it alone, Reclaim does not ask, and the error is errors.ErrUnsupported. The
	// error is syscall.EAGAIN when the kernel took less.
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

// filesOnly makes the kernel leave anonymous memory alone, since Linux 6.10.
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
		// memory.reclaim can only be written.
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
		return fmt.Errorf("%w: the kernel could swap out anonymous memory, and does not accept%s in memory.reclaim", errors.ErrUnsupported, filesOnly)
	}
	return r.ask(bytes, "")
}

// ask writes only once, because each write takes as much again. A write that a signal has
// interrupted counts as one that took less.
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

// swappable reports whether anonymous memory of the container may be swapped out, as far as is
// known.
func (r *reclaimer) swappable() bool {
	most, err := os.ReadFile(filepath.Join(r.dir, "memory.swap.max"))
	if err == nil && string(bytes.TrimSpace(most)) == "0" {
		return false
	}
	swaps, err := os.ReadFile(r.swaps)
	if errors.Is(err, os.ErrNotExist) {
		return false // the kernel cannot swap at all
	}
	// The first line is the table's header.
	return err != nil || bytes.Count(bytes.TrimSpace(swaps), newline) > 0
}
