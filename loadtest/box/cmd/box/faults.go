package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"libra.dev/libra/loadtest/box/cluster"
	"libra.dev/libra/loadtest/box/layout"
)

// newFault returns a command that does something to one worker.
func newFault(use, short, long, said string, do func(c cluster.Cluster, cmd *cobra.Command, node string) error) *cobra.Command {
	return &cobra.Command{
		Use:   use + " NODE",
		Short: short,
		Long:  long,
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return changing(func(l layout.Layout) error {
				log, done := progress(cmd)
				if err := do(cluster.Cluster{Layout: l, Log: log}, cmd, args[0]); err != nil {
					return err
				}
				done(said, args[0])
				return nil
			})
		},
	}
}

func newNodeStop() *cobra.Command {
	return newFault("node-stop", "Stop a worker and everything on it",
		"node-stop ends a worker at once, as when its machine loses power. Kubernetes is not told.",
		"%s is stopped", func(c cluster.Cluster, cmd *cobra.Command, node string) error { return c.StopNode(cmd.Context(), node) })
}

func newNodeStart() *cobra.Command {
	return newFault("node-start", "Start a worker that node-stop ended",
		"node-start starts a new, empty node with the same name and the same images, and waits until it is Ready.",
		"%s is Ready", func(c cluster.Cluster, cmd *cobra.Command, node string) error {
			return c.StartNode(cmd.Context(), node)
		})
}

func newLinkDown() *cobra.Command {
	return newFault("link-down", "Cut a worker's link to the other nodes",
		"link-down cuts a worker off: packets to it are silently lost, and none leave it.",
		"%s is cut off", func(c cluster.Cluster, _ *cobra.Command, node string) error { return c.SetLink(node, false) })
}

func newLinkUp() *cobra.Command {
	return newFault("link-up", "Restore a worker's link", "link-up undoes link-down.",
		"the link of %s is up again", func(c cluster.Cluster, _ *cobra.Command, node string) error { return c.SetLink(node, true) })
}

// newLinkDelay does not hold the box's lock: other commands can run beside it.
func newLinkDelay() *cobra.Command {
	return &cobra.Command{
		Use:   "link-delay NODE DURATION",
		Short: "Add delay to a worker's link, until interrupted",
		Long: `link-delay adds a round-trip delay, such as 80ms, between a worker and the other nodes, until it is
interrupted.`,
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			delay, err := time.ParseDuration(args[1])
			if err != nil || delay <= 0 || delay > 10*time.Second {
				return fmt.Errorf("the duration is %q, want one up to 10s, such as 80ms", args[1])
			}
			l, err := layout.Default()
			if err != nil {
				return err
			}
			log, done := progress(cmd)
			return cluster.Cluster{Layout: l, Log: log}.DelayLink(cmd.Context(), args[0], delay, func() {
				done("%s is %v away", args[0], delay)
			})
		},
	}
}
