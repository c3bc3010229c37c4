package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"libra.dev/libra/loadtest/box/cluster"
	"libra.dev/libra/loadtest/box/layout"
	"libra.dev/libra/loadtest/box/stack"
)

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "box",
		Short: "A real Kubernetes with Knative, Istio and KServe on this machine",
		Long: `box builds and runs a Kubernetes of one or several nodes, with Knative Serving, Istio,
KServe and Redis's image, on one Linux machine: no Docker, no systemd, no registry.

The box keeps everything that it builds in ` + layout.CacheEnv + ` (libra-box in the user's
cache folder), and everything of one run in ` + layout.StateEnv + ` (/var/lib/libra-box).
A run has its own namespaces, which "box down" ends. A run leaves nothing else except the
empty lock file of the box commands, in /run.`,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.CompletionOptions.DisableDefaultCmd = true
	root.AddCommand(newBuild(), newUp(), newDown(), newStatus(), newRestart(), newNodeStop(), newNodeStart(), newLinkDown(), newLinkUp(), newLinkDelay(), newLogs(), newKubectl(), newKubeconfig(), newPath(),
		newLoad(), newPush(), newRelease(), newMachine(), newInit(), newNode(), newProbe())
	return root
}

// progress returns two functions that print a line with the time since the
// call: log, and done for the last line of a command that changed something.
func progress(cmd *cobra.Command) (log, done func(format string, args ...any)) {
	start := time.Now()
	log = func(format string, args ...any) {
		fmt.Fprintf(cmd.ErrOrStderr(), "%7.1f s  %s\n", time.Since(start).Seconds(), fmt.Sprintf(format, args...))
	}
	done = func(format string, args ...any) {
		fmt.Fprintf(cmd.ErrOrStderr(), "done in %.1f s: %s\n", time.Since(start).Seconds(), fmt.Sprintf(format, args...))
	}
	return log, done
}

// repository finds the root of the repository that the working directory is in.
func repository() (string, error) {
	at, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for dir := at; ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "loadtest", "box", "go.mod")); err == nil {
			return dir, nil
		}
		if dir == "/" {
			return "", fmt.Errorf("%s is not in Libra's repository: run this from the folder that has loadtest/box in it, or below", at)
		}
	}
}

func newBuild() *cobra.Command {
	var images bool
	cmd := &cobra.Command{
		Use:   "build",
		Short: "Build or fetch everything that runs on the box",
		Long: `build compiles Kubernetes, containerd, Knative, Istio, Kourier, KServe and the tools from
their Go modules, makes their images, and installs the Debian packages that
they need to run. It builds nothing again that would be the same.

With --images it builds only what a load test on another cluster needs: k6, and
Libra's own images for "box push".`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return withRepository(func(l layout.Layout, root string) error {
				log, done := progress(cmd)
				if images {
					if err := cluster.PreflightImages(l); err != nil {
						return err
					}
					if err := stack.BuildImages(cmd.Context(), l, root, log); err != nil {
						return err
					}
					done("k6 and Libra's images are built, in %s", l.Cache)
					return nil
				}
				if err := cluster.PreflightBuild(l); err != nil {
					return err
				}
				if err := cluster.Build(cmd.Context(), l, root, log); err != nil {
					return err
				}
				if err := stack.Build(cmd.Context(), l, root, log); err != nil {
					return err
				}
				if err := cluster.PrepareImages(cmd.Context(), l, log); err != nil {
					return err
				}
				done("the box is built, in %s", l.Cache)
				return nil
			})
		},
	}
	cmd.Flags().BoolVar(&images, "images", false, "build only k6 and Libra's own images, for another cluster")
	return cmd
}

// changing runs a command that must run alone.
func changing(run func(layout.Layout) error) error {
	l, err := layout.Default()
	if err != nil {
		return err
	}
	unlock, err := cluster.Lock()
	if err != nil {
		return err
	}
	defer unlock()
	return run(l)
}

func newUp() *cobra.Command {
	var nodes int
	var choice stack.Choice
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Start the box and install Knative, Istio and KServe on it",
		Long: `up starts the nodes, imports the images and installs the stack. It leaves a running box
alone if the box has the requested nodes and parts, is healthy, and was started from what
"box build" last made; it removes any other box first. It starts nothing until it has
checked that all that it needs is there.

--without kserve leaves out KServe, and --ingress kourier makes Kourier Knative's
ingress, in place of Istio.

--nodes 3 adds the workers "w1" and "w2" to the node "box", each with its own kubelet,
containers, pod addresses and CPUs. Functions run on the workers; the platform, and all
of Libra but its agents, on "box".`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			parts, err := choice.Parts()
			if err != nil {
				return err
			}
			return changing(func(l layout.Layout) error {
				log, done := progress(cmd)
				c := cluster.Cluster{Layout: l, Nodes: nodes, Log: log}
				started, err := c.Up(cmd.Context(), func() (string, error) { return stale(l, parts) }, func(ctx context.Context) error {
					config, err := cluster.RESTConfig(l)
					if err != nil {
						return err
					}
					return stack.Install(ctx, l, config, parts, cluster.PlatformAnnotations(nodes), log)
				})
				if err != nil {
					return err
				}
				if !started {
					done("the box is up and healthy already; its kubeconfig is %s", l.Kubeconfig())
					return nil
				}
				if err := noteInstalled(l, parts); err != nil {
					return err
				}
				done("the box is up; its kubeconfig is %s", l.Kubeconfig())
				return nil
			})
		},
	}
	cmd.Flags().StringVar(&choice.Ingress, "ingress", stack.Ingresses()[0], "Knative's ingress, one of "+strings.Join(stack.Ingresses(), ", "))
	cmd.Flags().StringSliceVar(&choice.Without, "without", nil, "parts to leave out, any of "+strings.Join(stack.Dispensable(), ", "))
	cmd.Flags().IntVar(&nodes, "nodes", 1, fmt.Sprintf("nodes of the cluster, from 1 to %d: the control node, and workers with at least one CPU each", cluster.MostNodes))
	return cmd
}

func newDown() *cobra.Command {
	return &cobra.Command{
		Use:   "down",
		Short: "Stop the box and remove everything it made",
		Long: `down ends the box's processes, whatever their state, and removes its
namespaces, mounts, links, routes, firewall rules, cgroups and files. The logs
of the last run stay. Without a box it does nothing.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return changing(func(l layout.Layout) error {
				log, done := progress(cmd)
				if err := (cluster.Cluster{Layout: l, Log: log}).Down(cmd.Context()); err != nil {
					return err
				}
				done("the box is down; the logs of its last run are in %s", l.Logs())
				return nil
			})
		},
	}
}

func newStatus() *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "Show what runs, what is not ready, and where things are",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return looking(cmd, func(c cluster.Cluster) error {
				if err := c.Status(cmd.Context(), cmd.OutOrStdout()); err != nil {
					return err
				}
				return printParts(cmd.OutOrStdout(), c.Layout)
			})
		},
	}
}

func newRestart() *cobra.Command {
	var node string
	cmd := &cobra.Command{
		Use:   "restart COMPONENT",
		Short: "Kill one of a node's own components and start it again",
		Long: `restart kills one of

  ` + strings.Join(cluster.ComponentNames()[1:], ", ") + `

and has the node's init start it again, to test what that does to the rest. A worker
has containerd, kubelet and kube-proxy.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return changing(func(l layout.Layout) error {
				log, done := progress(cmd)
				if err := (cluster.Cluster{Layout: l, Log: log}).Restart(cmd.Context(), node, args[0]); err != nil {
					return err
				}
				done("restarted %s", args[0])
				return nil
			})
		},
	}
	cmd.Flags().StringVar(&node, "node", "", "node of the component (default: the control node)")
	return cmd
}

// looking runs a command that changes nothing.
func looking(cmd *cobra.Command, run func(cluster.Cluster) error) error {
	l, err := layout.Default()
	if err != nil {
		return err
	}
	log, _ := progress(cmd)
	return run(cluster.Cluster{Layout: l, Log: log})
}

func newLogs() *cobra.Command {
	var o cluster.LogOptions
	cmd := &cobra.Command{
		Use:   "logs COMPONENT",
		Short: "Show the log of a part",
		Long: `logs shows the log of one of the node's own components,

  ` + strings.Join(cluster.ComponentNames(), ", ") + `

or of a workload on it, by name ("deploy/activator", "libra-resizer",
"knative-serving/controller").`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return looking(cmd, func(c cluster.Cluster) error {
				show, err := c.Logs(cmd.Context(), args[0], o)
				if err != nil {
					return err
				}
				return foreground(show)
			})
		},
	}
	cmd.Flags().BoolVarP(&o.Follow, "follow", "f", false, "keep printing new lines")
	cmd.Flags().IntVar(&o.Lines, "tail", 200, "number of past lines to show")
	cmd.Flags().StringVar(&o.Node, "node", "", "node of the component (default: the control node)")
	return cmd
}

func newKubectl() *cobra.Command {
	return &cobra.Command{
		Use:                "kubectl -- ARG...",
		Short:              "Run kubectl on the box, whatever KUBECONFIG says",
		Example:            "  box kubectl -- get pods --all-namespaces",
		DisableFlagParsing: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 && args[0] == "--" {
				args = args[1:]
			}
			if len(args) == 0 || args[0] == "--help" || args[0] == "-h" {
				return cmd.Help()
			}
			return looking(cmd, func(c cluster.Cluster) error {
				if _, err := os.Stat(c.Layout.Kubeconfig()); errors.Is(err, fs.ErrNotExist) {
					return cluster.ErrNotRunning
				}
				return foreground(cluster.Kubectl(cmd.Context(), c.Layout, args...))
			})
		},
	}
}

// foreground runs a command in place of this one, and exits as it does.
func foreground(cmd *exec.Cmd) error {
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	err := cmd.Run()
	if exit := new(exec.ExitError); errors.As(err, &exit) && exit.Exited() {
		os.Exit(exit.ExitCode())
	}
	return err
}

func newKubeconfig() *cobra.Command {
	return &cobra.Command{
		Use:   "kubeconfig",
		Short: "Print the path of the box's kubeconfig",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return looking(cmd, func(c cluster.Cluster) error {
				path := c.Layout.Kubeconfig()
				if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
					return cluster.ErrNotRunning
				}
				fmt.Fprintln(cmd.OutOrStdout(), path)
				return nil
			})
		},
	}
}

func newPath() *cobra.Command {
	return &cobra.Command{
		Use:     "path BINARY",
		Short:   "Print where build puts a binary",
		Example: "  $(box path kubelite) kubectl version --client",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return looking(cmd, func(c cluster.Cluster) error {
				path := c.Layout.Bin(args[0])
				if info, err := os.Stat(path); err != nil || info.IsDir() {
					return fmt.Errorf("there is no %s: if it is one of the box's binaries, \"box build\" makes it", path)
				}
				fmt.Fprintln(cmd.OutOrStdout(), path)
				return nil
			})
		},
	}
}

func newLoad() *cobra.Command {
	var (
		with []string
		out  string
	)
	cmd := &cobra.Command{
		Use:   "load",
		Short: "Build Libra's own images from the repository and put them on the box",
		Long: `load builds Libra's own images and imports those that the box lacks.

` + withHelp,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return withRepository(func(l layout.Layout, root string) error {
				log, done := progress(cmd)
				if err := stack.Load(cmd.Context(), l, root, cluster.Cluster{Layout: l, Log: log}, with, out, log); err != nil {
					return err
				}
				done("the images are on the box, their references in %s", out)
				return nil
			})
		},
	}
	outFlags(cmd, &with, &out)
	return cmd
}

func newPush() *cobra.Command {
	var (
		archs, with []string
		to, out     string
	)
	cmd := &cobra.Command{
		Use:   "push",
		Short: "Build Libra's own images from the repository and push them to a registry",
		Long: `push is for a cluster that is not the box. It uses the credentials of the user's
own Docker configuration. An image for several architectures is one index, from
which each node pulls its own.

` + withHelp,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return withRepository(func(l layout.Layout, root string) error {
				log, done := progress(cmd)
				if err := stack.Push(cmd.Context(), l, root, to, archs, with, out, log); err != nil {
					return err
				}
				done("the images are in %s, their references in %s", to, out)
				return nil
			})
		},
	}
	cmd.Flags().StringSliceVar(&archs, "arch", []string{runtime.GOARCH}, "architectures of the cluster's nodes, any of "+strings.Join(stack.Architectures(), ", "))
	cmd.Flags().StringVar(&to, "to", "", "repository to push to, as registry/path; the name of each image follows it")
	outFlags(cmd, &with, &out)
	cobra.CheckErr(cmd.MarkFlagRequired("to"))
	return cmd
}

const withHelp = `With "--with vpa" it also builds what loadtest/vpa installs: the recommender and
the updater of Kubernetes' vertical pod autoscaler, and the metrics server. It
writes upstream's definitions and roles for them beside --out, as
` + stack.VPAObjects + `: apply that file before loadtest/vpa. With "--with scheduler" it
also builds Libra's scheduler, for manifests/scheduler. The scheduler contains Kubernetes,
so its first build takes minutes.`

func outFlags(cmd *cobra.Command, with *[]string, out *string) {
	cmd.Flags().StringSliceVar(with, "with", nil, "images to add to Libra's own, any of "+strings.Join(stack.Extras(), ", "))
	cmd.Flags().StringVar(out, "out", "", "JSON file to write, which maps image names to references")
	cobra.CheckErr(cmd.MarkFlagRequired("out"))
}

func withRepository(run func(l layout.Layout, root string) error) error {
	root, err := repository()
	if err != nil {
		return err
	}
	return changing(func(l layout.Layout) error { return run(l, root) })
}

func newInit() *cobra.Command {
	var l layout.Layout
	cmd := &cobra.Command{
		Use:    "init",
		Short:  "The node's first process: for box up only",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			return cluster.Init(l, os.Stdin)
		},
	}
	cmd.Flags().StringVar(&l.State, "state", "", "state folder")
	cmd.Flags().StringVar(&l.Cache, "cache", "", "cache folder")
	return cmd
}

func newNode() *cobra.Command {
	var l layout.Layout
	cmd := &cobra.Command{
		Use:    "node NAME",
		Short:  "A worker's first process: for box init only",
		Hidden: true,
		Args:   cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			return cluster.Node(l.Of(args[0]), os.Stdin)
		},
	}
	cmd.Flags().StringVar(&l.State, "state", "", "state folder")
	cmd.Flags().StringVar(&l.Cache, "cache", "", "cache folder")
	return cmd
}

func newProbe() *cobra.Command {
	return &cobra.Command{
		Use:    "probe",
		Short:  "Try what the node needs from the kernel: for box build and box up only",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return cluster.Probe(cmd.OutOrStdout())
		},
	}
}
