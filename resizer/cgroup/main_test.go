package cgroup_test

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
)

// asLoad makes the test binary a load: it does what its standard input says.
const asLoad = "LIBRA_TEST_LOAD"

func TestMain(m *testing.M) {
	if os.Getenv(asLoad) != "" {
		serve()
		return
	}
	os.Exit(m.Run())
}

// serve obeys one line after the other: "ping", "burn" (for good, beside the rest),
// "hold <bytes>" (in all; locked where that is allowed).
func serve() {
	var held []byte
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		command, argument, _ := strings.Cut(in.Text(), " ")
		switch command {
		case "burn":
			go burn()
		case "hold":
			bytes, err := strconv.Atoi(argument)
			if err != nil {
				panic(err)
			}
			if held != nil {
				if err := syscall.Munmap(held); err != nil {
					panic(err)
				}
				held = nil
			}
			if bytes > 0 {
				held, err = syscall.Mmap(-1, 0, bytes, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
				if err != nil {
					panic(err)
				}
				syscall.Mlock(held) //nolint:errcheck // without it swap may take some, where there is any
				for i := 0; i < bytes; i += os.Getpagesize() {
					held[i] = 1
				}
			}
		}
		fmt.Println(in.Text())
	}
}

var turns atomic.Uint64

func burn() {
	for {
		turns.Add(1)
	}
}

// load is a process in a cgroup.
type load struct {
	t   *testing.T
	in  *os.File
	out *bufio.Scanner
	cmd *exec.Cmd
}

// tell sends a command, and does not wait until it is done.
func (l *load) tell(format string, args ...any) {
	l.t.Helper()
	if _, err := fmt.Fprintf(l.in, format+"\n", args...); err != nil {
		l.t.Fatal(err)
	}
}

// done waits for the end of a command.
func (l *load) done() {
	l.t.Helper()
	if !l.out.Scan() {
		l.t.Fatalf("the load in the cgroup ended: %v, %v", l.out.Err(), l.cmd.Wait())
	}
}

func (l *load) do(format string, args ...any) {
	l.t.Helper()
	l.tell(format, args...)
	l.done()
}
