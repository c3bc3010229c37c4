package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"testing"
	"time"
)

// state returns the state of a process as the kernel reports it.
func state(t *testing.T, pid int) byte {
	t.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	return stat[bytes.LastIndexByte(stat, ')')+2]
}

// startSleeper starts a process to strike, which ends with the test.
func startSleeper(t *testing.T) *os.Process {
	t.Helper()
	sleeper := exec.CommandContext(t.Context(), "sleep", "600")
	if err := sleeper.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = sleeper.Process.Kill()
		_ = sleeper.Wait()
	})
	return sleeper.Process
}

func TestWhatIsPausedGoesOnWhenChaosIsInterrupted(t *testing.T) {
	sleeper := startSleeper(t)
	ctx, interrupt := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	hit := target{fault: fault{kind: kind{part: kubelet, action: pause}, length: time.Hour}, processes: []*os.Process{sleeper}}
	go func() {
		_, err := (&cluster{}).strike(ctx, hit, nil)
		ended <- err
	}()
	for state(t, sleeper.Pid) != 'T' {
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
	if s := state(t, sleeper.Pid); s == 'T' {
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
	hit := target{fault: fault{kind: kind{part: redisPart, action: "explode"}}}
	if _, err := (&cluster{}).strike(t.Context(), hit, nil); err == nil {
		t.Error("no error")
	}
}

// Every kind has a known action and a part that can be found.
func TestEveryKindCanBeMade(t *testing.T) {
	known := []string{kill, killHolding, pause, pauseHolding, fill, flush, gone, evict, remove, restart, flip, cut}
	for _, k := range kinds {
		if !slices.Contains(known, k.action) {
			t.Errorf("nobody knows how to make %s", k.name())
		}
		if _, isPod := places[k.part]; !isPod && components[k.part] == "" && k.part != pod && k.part != sourcePart && k.part != workerNode {
			t.Errorf("nobody knows where %s is", k.part)
		}
		if k.action == gone && k.part != agent && k.part != workerNode && deployments[k.part].name == "" {
			t.Errorf("nobody knows how to take %s away", k.part)
		}
	}
}
