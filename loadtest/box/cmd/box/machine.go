package main

import (
	"context"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"libra.dev/libra/loadtest/box/cluster"
	"libra.dev/libra/loadtest/box/layout"
	"libra.dev/libra/loadtest/box/machine"
)

func newMachine() *cobra.Command {
	var o machine.Options
	var console string
	var limit time.Duration
	cmd := &cobra.Command{
		Use:   "machine --program FILE [flags] [-- ARG...]",
		Short: "Boot an emulated node like those of users, and run a program on it",
		Long: `machine makes and boots a computer that QEMU emulates in software: Debian with
systemd, cgroup v2 and containerd 2, and on it a Kubernetes of one node with a kubelet
of the chosen release and Libra's manifests. It runs a static binary there, and prints
its output until it powers the machine off. It needs no box, and can run beside one.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			o.Args = args
			log, done := progress(cmd)
			dir, err := os.MkdirTemp("", "libra-machine-")
			if err != nil {
				return err
			}
			defer os.RemoveAll(dir) //nolint:errcheck // a leftover is in the way of nothing
			var m machine.Machine
			if err := withRepository(func(l layout.Layout, root string) (err error) {
				if err := cluster.PreflightBuild(l); err != nil {
					return err
				}
				m, err = machine.Build(cmd.Context(), l, root, dir, o, log)
				return err
			}); err != nil {
				return err
			}
			if err := os.MkdirAll(filepath.Dir(console), 0o755); err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), limit)
			defer cancel()
			log("booting with kubelet %s and %s; the output of the kernel and systemd is in %s", machine.Kubelets[o.Kubelet], o.Runtime, console)
			if err := m.Boot(ctx, cmd.OutOrStdout(), console); err != nil {
				return err
			}
			done("the machine is off")
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.Kubelet, "kubelet", "1.36", "minor version of the kubelet: 1.36 or 1.35")
	f.StringVar(&o.Runtime, "runtime", "runc", "container runtime under containerd: runc or crun")
	f.StringVar(&o.Program, "program", "", "static binary that the machine runs")
	f.StringVar(&console, "console", "out/machine/console.log", "file for the output of the kernel and systemd")
	f.DurationVar(&limit, "limit", 20*time.Minute, "time after which the machine is stopped")
	_ = cmd.MarkFlagRequired("program")
	return cmd
}
