// Command kubectl-libra is kubectl's plugin for Libra: kubectl finds it on the PATH as `kubectl libra`.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"k8s.io/cli-runtime/pkg/genericiooptions"

	"libra.dev/libra/pkg/kubectl"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // so that a second signal ends a command that takes long to stop
	streams := genericiooptions.IOStreams{In: os.Stdin, Out: os.Stdout, ErrOut: os.Stderr}
	if err := kubectl.NewRoot(streams).ExecuteContext(ctx); err != nil {
		os.Exit(kubectl.ExitCode(err))
	}
}
