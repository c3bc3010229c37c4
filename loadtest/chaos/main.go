// Command chaos kills and pauses the parts of Libra and of Kubernetes on the box under
// load, one by one and in pairs, and counts the effects on requests and pods.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"libra.dev/libra/loadtest/bench/machine"
	"libra.dev/libra/loadtest/bench/rig"
)

const (
	// swapLimit is longer than it takes to replace the activator.
	swapLimit = 8 * time.Minute

	mostPairs = 100
)

// options are the command's flags.
type options struct {
	rig.Options
	box, demo string
	source    string
	only      []string
	pairs     int
	minutes   int
	nodes     int
	list      bool
}

func main() { machine.Main(newRoot()) }

func newRoot() *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use:   "chaos",
		Short: "Break the parts of Libra and of Kubernetes on the box under load",
		Long: `chaos works only on the box, after "demo install --activator --functions", which installs Libra,
deploys functions and has Libra learn them. Run it from the root of the repository. You can run it again
at any time: it first resumes what an interrupted run left stopped.

It injects the faults under each source of loans. It sets the source for the whole cluster, and
for the namespace ` + rig.Namespace + `, while it runs.

It fails if requests failed that no fault excuses (more than with stock, where stock
has the fault too), if there was an OOM kill or a violation of an invariant, or if a
pod was not whole within ` + wholeWithin.String() + ` of the end of a fault: under owners at what it is owed,
or what a lease covers; under node at its ceiling, unless it is held for others, and
with the kubelet's weight, unless an agent weighs its requests in flight. Everything
must be at rest within ` + wholeWithin.String() + ` of the last answer.

` + noClocks,
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return run(cmd.Context(), o, cmd.OutOrStdout())
		},
	}
	cmd.CompletionOptions.DisableDefaultCmd = true
	f := cmd.Flags()
	f.StringVar(&o.Kubeconfig, "kubeconfig", "", "kubeconfig of the box, as \"box kubeconfig\" prints it")
	f.StringVar(&o.Images, "images", "out/images.json", "JSON file that maps image names to references, as \"box load\" writes it")
	f.StringVar(&o.box, "box", "bin/box", "the box command")
	f.StringVar(&o.demo, "demo", "bin/demo", "the demo command, which replaces Libra's activator with the stock one, and puts it back")
	f.StringVar(&o.Out, "out", "out/chaos", "folder for the results")
	f.StringVar(&o.Commit, "commit", "unknown", "commit to name in the results")
	f.StringVar(&o.source, "source", "both", "source of loans: node, owners, or both in turn")
	f.StringSliceVar(&o.only, "only", nil, "faults to inject, by the names that --list shows (default: all)")
	f.IntVar(&o.pairs, "pairs", 10, "random pairs of faults, the same under each source")
	f.Uint64Var(&o.Seed, "seed", 1, "random seed for the pairs, the moments and the requests")
	f.IntVar(&o.nodes, "nodes", 1, "nodes of the box; with several, chaos also takes away a worker without functions")
	f.IntVar(&o.minutes, "minutes", 45, "minutes after which no further fault begins; a fault that is left out is an error")
	f.BoolVar(&o.list, "list", false, "list the faults and exit")
	return cmd
}

func run(ctx context.Context, o options, out io.Writer) error {
	libra, stock, err := o.plan()
	if err != nil {
		return err
	}
	if o.list {
		for _, t := range libra {
			fmt.Fprintf(out, "%-7s %-20s %s\n", t.source, t.name, t.what())
		}
		return nil
	}
	if os.Geteuid() != 0 {
		return errors.New("only root may stop and kill the box's processes")
	}
	start := time.Now()
	o.Workers = o.nodes > 1
	c, err := newCluster(ctx, o.Options, o.box, out)
	if err != nil {
		return err
	}
	defer c.close()
	s, err := c.newSender(ctx)
	if err != nil {
		return err
	}
	c.Say("faults with Libra: %d, with stock for comparison: %d; seed %d", len(libra), len(stock), o.Seed)
	r := runner{cluster: c, sender: s, swap: o.swap, deadline: start.Add(time.Duration(o.minutes) * time.Minute)}
	outcomes, err := r.all(ctx, libra, stock)
	v := judge(outcomes)
	if len(outcomes) > 0 {
		fmt.Fprintln(out)
		err = errors.Join(err, v.write(out))
	}
	if err != nil {
		return err // an incomplete measurement is no result
	}
	return errors.Join(c.Write(ctx, v.metrics()), v.broken())
}

// plan checks the flags that the plan depends on, and makes it.
func (o options) plan() (libra, stock []trial, err error) {
	if o.pairs < 0 || o.pairs > mostPairs {
		return nil, nil, fmt.Errorf("--pairs is %d; it must be 0 to %d", o.pairs, mostPairs)
	}
	if o.minutes < 1 || o.minutes > 600 {
		return nil, nil, fmt.Errorf("--minutes is %d; it must be 1 to 600", o.minutes)
	}
	sources, err := sourcesOf(o.source)
	if err != nil {
		return nil, nil, err
	}
	return makePlan(o.Seed, o.pairs, o.only, sources, o.nodes > 1)
}

// swap replaces the stock activator by Libra's or, if libra is false, Libra's by the
// stock one.
func (o options) swap(ctx context.Context, libra bool) error {
	ctx, cancel := context.WithTimeout(ctx, swapLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, o.demo, "install", fmt.Sprintf("--activator=%t", libra),
		"--kubeconfig", o.Kubeconfig, "--images", o.Images, "--out", filepath.Join(o.Out, "install"))
	// A Ctrl-C must not reach the demo, which chaos still needs to put things right.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if said, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(cmd.Args, " "), err, strings.TrimSpace(string(said)))
	}
	return nil
}
