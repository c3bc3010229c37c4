package main

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// threadsDir lists the threads of this process.
const threadsDir = "/proc/self/task"

// runAhead lets this process run before all others until stop is called. On the box the
// sender shares the machine with the node, but it stands for clients that do not. On a full
// node it waited up to 2.5 s for a CPU (perf sched), which counted as the functions'
// response time, and most for the arm that used the most CPU.
func runAhead() (stop func() error, err error) {
	if err := setPolicy(unix.SchedAttr{Policy: unix.SCHED_RR, Priority: 1}); err != nil {
		return nil, errors.Join(fmt.Errorf("run ahead of all other processes, which needs root: %w", err), setPolicy(unix.SchedAttr{Policy: unix.SCHED_NORMAL}))
	}
	return func() error { return setPolicy(unix.SchedAttr{Policy: unix.SCHED_NORMAL}) }, nil
}

// setPolicy sets the scheduling policy of all threads of this process. A new thread inherits
// the policy of the one that starts it, so setPolicy looks until it finds no thread that it
// has not set.
func setPolicy(attr unix.SchedAttr) error {
	set := map[string]bool{}
	for found := true; found; {
		found = false
		threads, err := os.ReadDir(threadsDir)
		if err != nil {
			return err
		}
		for _, t := range threads {
			if set[t.Name()] {
				continue
			}
			id, err := strconv.Atoi(t.Name())
			if err != nil {
				return fmt.Errorf("%s has %q: %w", threadsDir, t.Name(), err)
			}
			if err := unix.SchedSetAttr(id, &attr, 0); err != nil && !errors.Is(err, unix.ESRCH) {
				return fmt.Errorf("thread %d: %w", id, err)
			}
			set[t.Name()], found = true, true
		}
	}
	return nil
}
