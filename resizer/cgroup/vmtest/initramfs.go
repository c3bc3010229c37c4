package main

import (
	"fmt"
	"io"
	"io/fs"
)

// archive writes an initramfs: a cpio archive of the "newc" format, in which each
// entry is a header of hexadecimal numbers, the name and the content, padded to four
// bytes (Documentation/driver-api/early-userspace/buffer-format.rst of Linux).
type archive struct {
	w       io.Writer
	entries int
}

func (a *archive) directory(name string) error { return a.entry(name, 0o040755, nil) }

func (a *archive) file(name string, mode fs.FileMode, content []byte) error {
	return a.entry(name, 0o100000|uint32(mode.Perm()), content)
}

// console is the device without which the first process has no standard output.
func (a *archive) console() error {
	return a.write(header{name: "dev/console", mode: 0o020600, major: 5, minor: 1}, nil)
}

func (a *archive) close() error { return a.entry("TRAILER!!!", 0, nil) }

func (a *archive) entry(name string, mode uint32, content []byte) error {
	return a.write(header{name: name, mode: mode}, content)
}

type header struct {
	name         string
	mode         uint32
	major, minor int // of a device
}

func (a *archive) write(h header, content []byte) error {
	a.entries++
	head := "070701"
	for _, field := range []int{
		a.entries, int(h.mode), 0, 0, 1, 0, len(content), // inode, mode, user, group, links, time, size
		0, 0, h.major, h.minor, len(h.name) + 1, 0, // device, device it is, length of the name, checksum
	} {
		head += fmt.Sprintf("%08x", field)
	}
	head += h.name + "\x00"
	for _, part := range [][]byte{[]byte(head), content} {
		if _, err := a.w.Write(append(part, make([]byte, -len(part)&3)...)); err != nil {
			return err
		}
	}
	return nil
}
