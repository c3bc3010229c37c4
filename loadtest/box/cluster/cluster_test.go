package cluster

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"libra.dev/libra/loadtest/box/layout"
)

func TestLock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	unlock, err := lock(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := lock(path); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("second lock() = %v, want an error that names the file", err)
	}
	unlock()
	unlock, err = lock(path)
	if err != nil {
		t.Fatalf("lock() after unlock: %v", err)
	}
	unlock()
}

func TestAReleaseWaitsForTheOneBefore(t *testing.T) {
	l := layout.Layout{Cache: t.TempDir()}
	said := make(chan string, 10)
	log := func(format string, args ...any) { said <- fmt.Sprintf(format, args...) }
	first, err := LockRelease(t.Context(), l, log)
	if err != nil {
		t.Fatal(err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := LockRelease(ended, l, log); !errors.Is(err, context.Canceled) || !strings.Contains(<-said, l.Cache) {
		t.Errorf("a second one, whose context has ended, has %v, want it to wait and to say for what", err)
	}
	locked := make(chan error)
	go func() {
		second, err := LockRelease(t.Context(), l, log)
		if err == nil {
			second()
		}
		locked <- err
	}()
	<-said // it waits
	first()
	if err := <-locked; err != nil {
		t.Errorf("the second one: %v", err)
	}
}
