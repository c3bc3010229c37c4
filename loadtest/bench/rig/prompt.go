package rig

import (
	"fmt"
	"runtime"
	"syscall"
	"time"
)

const highestPriority = -20

// Promptly calls f on a thread with the highest priority: an observer of a cgroup
// that has to wait for a core itself would take its own delay for the agent's. f
// should sleep with Sleep, and must not keep the core.
func Promptly(f func() error) error {
	done := make(chan error, 1)
	go func() {
		// Never unlocked, so that the thread ends, and its priority with it.
		runtime.LockOSThread()
		if err := syscall.Setpriority(syscall.PRIO_PROCESS, 0, highestPriority); err != nil {
			done <- fmt.Errorf("watch at the highest priority, which needs root: %w", err)
			return
		}
		done <- f()
	}()
	return <-done
}

// Sleep makes the thread itself sleep: a Go timer would not wake it directly.
func Sleep(d time.Duration) {
	if d <= 0 {
		return
	}
	t := syscall.NsecToTimespec(d.Nanoseconds())
	// A signal ends the sleep early, which only makes it shorter.
	_ = syscall.Nanosleep(&t, nil)
}
