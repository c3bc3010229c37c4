// Command node-test tests that Libra keeps its word on nodes like those of users: emulated
// machines with systemd, cgroup v2, containerd 2 and a kubelet of each of two releases. On each,
// it puts loans in force under load that uses them, and then does to the node what its owner,
// its other managers and bad luck do.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	root := &cobra.Command{
		Use:           "node-test",
		Short:         "Test Libra on emulated nodes with systemd, cgroup v2 and kubelets of two releases",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.CompletionOptions.DisableDefaultCmd = true
	root.AddCommand(newRun(), newGuest())
	if err := root.ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "node-test:", err)
		os.Exit(1)
	}
}
