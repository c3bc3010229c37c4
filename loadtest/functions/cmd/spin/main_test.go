package main

import (
	"errors"
	"runtime"
	"strings"
	"testing"
	"time"

	"libra.dev/libra/loadtest/functions/server"
)

func TestWorkUsesTheCPUThatTheBodyNames(t *testing.T) {
	runtime.LockOSThread() // work locks it again, and so runs on this thread
	defer runtime.UnlockOSThread()
	for body, want := range map[string]time.Duration{"": 0, "0s": 0, "20ms": 20 * time.Millisecond} {
		before, err := used()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := work(t.Context(), []byte(body)); err != nil {
			t.Fatalf("%q: %v", body, err)
		}
		after, err := used()
		if err != nil {
			t.Fatal(err)
		}
		if got := after - before; got < want {
			t.Errorf("%q: used %v", body, got)
		}
	}
}

func TestWorkRefusesWhatIsNoDuration(t *testing.T) {
	for _, body := range []string{"50", "-1ms", "1h", "much"} {
		if _, err := work(t.Context(), []byte(body)); !errors.As(err, &server.BadRequestError{}) {
			t.Errorf("%q: %v, want a bad request", body, err)
		}
	}
}

func TestThreads(t *testing.T) {
	for said, want := range map[string]int{"": 0, "0": 0, "2": 2} {
		if got, err := threads(said); err != nil || got != want {
			t.Errorf("%q: got %d, %v", said, got, err)
		}
	}
	for _, said := range []string{"-1", "many", "65"} {
		if _, err := threads(said); err == nil || !strings.Contains(err.Error(), threadsEnv) {
			t.Errorf("%q: got %v, want an error that says what is accepted", said, err)
		}
	}
}
