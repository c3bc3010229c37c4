package rig

import (
	"fmt"
	"runtime"
	"syscall"
	"time"
)

const highestPriority = -20

// Promptly calls f on a thread that runs before others: one who watches a cgroup and
// has to wait for a core himself would take his own delay for the agent's. f should
// sleep with Sleep, and must not keep the core.
func Promptly(f func() error) error {
	done := make(chan error, 1)
	go func() {
		// Never unlocked, so that the thread ends with its priority.
		runtime.LockOSThread()
		if err := syscall.Setpriority(syscall.PRIO_PROCESS, 0, highestPriority); err != nil {
			done <- fmt.Errorf("a bench watches at the highest priority, which takes root: %w", err)
			return
		}
		done <- f()
	}()
	return <-done
}

// Sleep sleeps on the thread, which a timer of Go's would not wake itself.
func Sleep(d time.Duration) {
	if d <= 0 {
		return
	}
	t := syscall.NsecToTimespec(d.Nanoseconds())
	// A signal ends it early, and then it was a shorter pause.
	_ = syscall.Nanosleep(&t, nil)
}
