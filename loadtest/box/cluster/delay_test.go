package cluster

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Packets arrive whole, in order, and no sooner than they are due.
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

// Two nodes reach each other through the devices, with the delay.
func TestAWireJoinsTwoNetworks(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root makes networks")
	}
	network := func(ip string) (pid int) {
		cmd := exec.Command("sleep", "infinity")
		cmd.SysProcAttr = &unix.SysProcAttr{Cloneflags: unix.CLONE_NEWNET}
		if err := cmd.Start(); err != nil {
			t.Skip("no network of its own: ", err)
		}
		t.Cleanup(func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		})
		if err := inNetworkOf(cmd.Process.Pid, func() error {
			_, err := setUp("lo", ip, ip+"/32")
			return err
		}); err != nil {
			t.Fatal(err)
		}
		return cmd.Process.Pid
	}
	w := member{number: 2, of: 3}
	far, near := network(nodeIP), network(w.ip())
	const delay = 20 * time.Millisecond
	begun := make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- delayLink(ctx, near, far, w, delay, func() { close(begun) }) }()
	select {
	case <-begun:
	case err := <-done:
		t.Fatal(err)
	}
	var listener net.Listener
	if err := inNetworkOf(near, func() (err error) {
		listener, err = net.Listen("tcp", w.ip()+":0")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	began := time.Now()
	if err := inNetworkOf(far, func() error {
		conn, err := net.Dial("tcp", listener.Addr().String())
		if err == nil {
			err = conn.Close()
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took < delay {
		t.Errorf("a connection took %v, want at least %v", took, delay)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
