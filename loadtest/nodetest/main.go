// Command node-test tests that Libra keeps its word on nodes like those of users: emulated
// machines with systemd, cgroup v2, containerd 2 and a kubelet of each of two releases. On each,
// it puts loans in force under load that uses them, and then does to the node what its owner,
// its other managers and bad luck do.
package main

import (
	"github.com/spf13/cobra"

	"libra.dev/libra/loadtest/bench/machine"
)

func main() {
	root := &cobra.Command{
		Use:           "node-test",
		Short:         "Test Libra on emulated nodes with systemd, cgroup v2 and kubelets of two releases",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.CompletionOptions.DisableDefaultCmd = true
	root.AddCommand(newRun(), newGuest())
	machine.Main(root)
}
