package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"libra.dev/libra/loadtest/bench/rig"
)

func testSite(t *testing.T) *site {
	t.Helper()
	s, err := newSite(options{out: t.TempDir()}, &bytes.Buffer{})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// hasEnded returns an error while a process runs. A zombie has ended: it stays until its parent,
// or the process that adopted it, waits for it.
func hasEnded(pid string) error {
	stat, err := os.ReadFile("/proc/" + pid + "/stat")
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
		return nil
	}
	if err != nil {
		return err
	}
	if after := stat[bytes.LastIndexByte(stat, ')')+1:]; !bytes.HasPrefix(after, []byte(" Z")) && !bytes.HasPrefix(after, []byte(" X")) {
		return fmt.Errorf("process %s runs: %s", pid, stat)
	}
	return nil
}

// Processes that the site launched end with it, and so do their children.
func TestProcessesEndWithTheSite(t *testing.T) {
	s := testSite(t)
	p, err := s.launch("shell", "/bin/sh", nil, "-c", "trap '' TERM; sleep 1000 & echo $!; wait; wait")
	if err != nil {
		t.Fatal(err)
	}
	var child string
	if err := rig.Eventually(t.Context(), time.Minute, func(context.Context) error {
		said, err := os.ReadFile(p.log)
		if child = strings.TrimSpace(string(said)); err == nil && child == "" {
			err = errors.New("the shell has not said which child it has")
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if err := p.ended(); err != nil {
		t.Fatal(err)
	}
	if cpu, err := p.cpu(); err != nil || cpu < 0 || cpu > time.Minute {
		t.Errorf("it used %v of CPU, %v", cpu, err)
	}
	p.signal(syscall.SIGKILL)
	if err := s.close(); err != nil {
		t.Fatal(err)
	}
	if err := rig.Eventually(t.Context(), time.Minute, func(context.Context) error { return hasEnded(child) }); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(s.dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s is there yet: %v", s.dir, err)
	}
}

// A caller that waits for a process that has ended learns so at once, and why.
func TestEndedEarly(t *testing.T) {
	s := testSite(t)
	defer s.close() //nolint:errcheck // the test ends
	p, err := s.launch("shell", "/bin/sh", nil, "-c", "echo no room; exit 3")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	err = p.awaitReady(ctx, "http://127.0.0.1:1/readyz")
	if err == nil || !strings.Contains(err.Error(), "no room") || !strings.Contains(err.Error(), "exit status 3") {
		t.Errorf("error %v, want one with what it said", err)
	}
}
