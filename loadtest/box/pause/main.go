// Command pause is the first process of every pod on the box: it holds the
// pod's namespaces until it is told to stop.
package main

import (
	"os"
	"os/signal"

	"golang.org/x/sys/unix"
)

func main() {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, unix.SIGINT, unix.SIGTERM, unix.SIGCHLD)
	for s := range signals {
		if s != unix.SIGCHLD {
			return
		}
		// In a pod whose containers share one pid namespace, this process is
		// pid 1 and must reap orphans.
		for {
			pid, err := unix.Wait4(-1, nil, unix.WNOHANG, nil)
			if pid <= 0 || err != nil {
				break
			}
		}
	}
}
