package cluster

import (
	"fmt"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Packets arrive whole, in their order, and no sooner than they are to.
func TestCarry(t *testing.T) {
	var ends [4]*os.File // sent, read; written, received
	for i := 0; i < len(ends); i += 2 {
		fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			t.Fatal(err)
		}
		ends[i], ends[i+1] = os.NewFile(uintptr(fds[0]), "one"), os.NewFile(uintptr(fds[1]), "two")
		defer ends[i].Close()
		defer ends[i+1].Close()
	}
	const delay = 20 * time.Millisecond
	done := make(chan error)
	go func() { done <- carry(ends[2], ends[1], delay) }()
	sent := time.Now()
	for i := range 3 {
		fmt.Fprintf(ends[0], "packet %d", i)
	}
	buffer := make([]byte, 100)
	for i := range 3 {
		n, err := ends[3].Read(buffer)
		if got := string(buffer[:n]); err != nil || got != fmt.Sprintf("packet %d", i) {
			t.Errorf("got %q, %v, want packet %d", got, err, i)
		}
	}
	if took := time.Since(sent); took < delay {
		t.Errorf("it took %v, want at least %v", took, delay)
	}
	ends[1].Close()
	if err := <-done; err == nil {
		t.Error("it goes on without the device")
	}
}
