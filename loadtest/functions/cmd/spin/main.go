// Command spin uses as much CPU as the body says ("50ms"), and none for an empty body.
// The benches need it to measure what is around a function. SPIN_THREADS (0) is the
// number of threads that always compute beside that, like somebody's batch work.
package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"runtime"
	"strconv"
	"syscall"
	"time"

	"libra.dev/libra/loadtest/functions/server"
)

const (
	longest = 10 * time.Second

	threadsEnv  = "SPIN_THREADS"
	mostThreads = 64
)

func work(ctx context.Context, body []byte) (any, error) {
	if len(body) == 0 {
		return nil, nil
	}
	want, err := time.ParseDuration(string(body))
	if err != nil || want < 0 || want > longest {
		return nil, server.BadRequestError{Err: fmt.Errorf("the body is %.20q; it must be a duration of CPU such as 50ms, at most %v", body, longest)}
	}
	// CPU time is counted per thread, so the thread must be the request's own.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	start, err := used()
	if err != nil {
		return nil, err
	}
	for at := start; at-start < want; {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if at, err = used(); err != nil {
			return nil, err
		}
	}
	return map[string]string{"cpu": want.String()}, nil
}

// used returns the CPU time that this thread has used.
func used() (time.Duration, error) {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_THREAD, &usage); err != nil {
		return 0, fmt.Errorf("read the CPU time of a thread: %w", err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano()), nil
}

// threads parses the number of threads that always compute.
func threads(said string) (int, error) {
	if said == "" {
		return 0, nil
	}
	n, err := strconv.Atoi(said)
	if err != nil || n < 0 || n > mostThreads {
		return 0, fmt.Errorf("%s is %q; it must be a number from 0 to %d", threadsEnv, said, mostThreads)
	}
	return n, nil
}

func main() {
	n, err := threads(os.Getenv(threadsEnv))
	if err != nil {
		fmt.Fprintln(os.Stderr, "spin:", err)
		os.Exit(1)
	}
	for range n {
		go func() {
			for i := 0; ; i++ {
			}
		}()
	}
	server.Main(server.Handler(work), net.ListenConfig{})
}
