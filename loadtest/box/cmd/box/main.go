// Command box builds and runs a real Kubernetes, with Knative Serving, Istio
// and KServe on it, on one plain Linux machine.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

func main() {
	if err := os.Setenv("PATH", withSystemPrograms(os.Getenv("PATH"))); err != nil {
		fmt.Fprintln(os.Stderr, "box:", err)
		os.Exit(1)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends the clean-up after the first
	if err := newRoot().ExecuteContext(ctx); err != nil {
		if ctx.Err() != nil {
			err = fmt.Errorf("interrupted: %w", err)
		}
		fmt.Fprintln(os.Stderr, "box:", err)
		os.Exit(1)
	}
}

// withSystemPrograms adds the folders of root's programs to a PATH: after a
// plain `su`, root still has the user's PATH.
func withSystemPrograms(path string) string {
	dirs := filepath.SplitList(path)
	for _, dir := range []string{"/usr/sbin", "/sbin"} {
		if !slices.Contains(dirs, dir) {
			dirs = append(dirs, dir)
		}
	}
	return strings.Join(dirs, string(filepath.ListSeparator))
}
