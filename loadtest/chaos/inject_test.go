package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"
)

// state is a process's, as the kernel tells it.
func state(t *testing.T, pid int) byte {
	t.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	return stat[bytes.LastIndexByte(stat, ')')+2]
}

func TestWhatIsPausedGoesOnWhenChaosIsInterrupted(t *testing.T) {
	sleeper := exec.CommandContext(t.Context(), "sleep", "600")
	if err := sleeper.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = sleeper.Process.Kill()
		_ = sleeper.Wait()
	})
	ctx, interrupt := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	hit := target{fault: fault{kind: kind{kubelet, pause, true, true}, length: time.Hour}, processes: []*os.Process{sleeper.Process}}
	go func() {
		_, err := (&cluster{}).strike(ctx, hit, nil)
		ended <- err
	}()
	for state(t, sleeper.Process.Pid) != 'T' {
		select {
		case err := <-ended:
			t.Fatalf("it was over before it began: %v", err)
		case <-t.Context().Done():
			t.Fatal("it was never paused")
		default:
		}
	}
	interrupt()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if s := state(t, sleeper.Process.Pid); s == 'T' {
		t.Errorf("it is in state %c", s)
	}
}

func TestWhatHasEndedNeedsNotGoOn(t *testing.T) {
	gone := exec.CommandContext(t.Context(), "true")
	if err := gone.Start(); err != nil {
		t.Fatal(err)
	}
	held, err := os.FindProcess(gone.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	if err := gone.Wait(); err != nil {
		t.Fatal(err)
	}
	if err := resume(held); err != nil {
		t.Error(err)
	}
}

func TestAnUnknownFaultIsNamed(t *testing.T) {
	hit := target{fault: fault{kind: kind{redisPart, "explode", false, false}}}
	if _, err := (&cluster{}).strike(t.Context(), hit, nil); err == nil {
		t.Error("no error")
	}
}
