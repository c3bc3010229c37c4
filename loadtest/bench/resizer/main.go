// Command resizer measures the cost of the resizer's two parts, the controller of a cluster of a
// thousand nodes and the agent of a full node, and how long a controller that is gone stays
// without a successor.
//
// The API server, etcd, Redis, the controller and the agent are real processes. The nodes and pods
// are KWOK's (https://kwok.sigs.k8s.io): real objects in the API server, without a kubelet behind
// them. KWOK also plays the kubelets' part of a resize (stages.yaml). Only the agent's node is on
// this machine: its containers are real cgroups with real processes in them.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	logf "sigs.k8s.io/controller-runtime/pkg/log"

	"libra.dev/libra/loadtest/bench/machine"
	"libra.dev/libra/loadtest/demo/report"
)

func main() {
	logf.SetLogger(logr.Discard()) // the libraries complain if they have no logger
	machine.Main(newRoot())
}

// The parts that can be measured.
const (
	ofController = "controller"
	ofAgent      = "agent"
)

// options are the user's choices.
type options struct {
	out, commit string
	seed        uint64
	quick       bool
	only        []string

	kubelite, kwok, controller, agent string // binaries

	nodes, pods, optedIn int
	loans                float64 // a second
	length               time.Duration
	takeovers            int

	agentPods, inFlight int
	agentLength         time.Duration
}

func newRoot() *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use:   "bench-resizer",
		Short: "Measure the controller of a large cluster and the agent of a full node",
		Long: `bench-resizer starts an API server, etcd and Redis, fills them with the nodes and pods of a
large cluster (KWOK's), and measures two replicas of Libra's controller during loans of CPU:
memory, CPU and requests to the API server. Half of the namespaces are under the source
"owners", where the loans are, and half under "node", where pods have ceilings.

Then it repeatedly kills the replica that leads, has a pod need memory, and waits for
the other replica's patch.

Last it runs Libra's node agent on real cgroups of this machine, first with pods at rest and then
with requests in flight in some of them. That needs root.

It leaves nothing behind outside the folder for the results: processes, cgroups and
temporary files go when it ends, also by Ctrl-C.`,
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return bench(cmd.Context(), o, cmd.OutOrStdout())
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.out, "out", "out/bench-resizer", "folder for the results and the logs of the processes")
	f.StringVar(&o.commit, "commit", "unknown", "commit to name in the results")
	f.Uint64Var(&o.seed, "seed", 1, "random seed")
	f.BoolVar(&o.quick, "quick", false, "a smoke test: all steps on 50 nodes in three minutes, with figures that mean little")
	f.StringSliceVar(&o.only, "only", []string{ofController, ofAgent}, "what to measure")
	f.StringVar(&o.kubelite, "kubelite", "", "Kubernetes in one binary, as \"box build\" makes it (\"box path kubelite\" prints where)")
	f.StringVar(&o.kwok, "kwok", "", "KWOK's binary")
	f.StringVar(&o.controller, "controller", "bin/libra-resizer", "Libra's controller")
	f.StringVar(&o.agent, "agent", "bin/libra-agent", "Libra's node agent")
	f.IntVar(&o.nodes, "nodes", 1000, "nodes of the cluster")
	f.IntVar(&o.pods, "pods", 50_000, "pods of the cluster, the same number on each node, one of them its agent")
	f.IntVar(&o.optedIn, "opted-in", 40, "percentage of the pods that opted in")
	f.Float64Var(&o.loans, "loans", 1000, "loans of CPU per second")
	f.DurationVar(&o.length, "length", time.Minute, "how long to measure the controller")
	f.IntVar(&o.takeovers, "takeovers", 10, "how many leaders to kill")
	f.IntVar(&o.agentPods, "agent-pods", 110, "opted-in pods on the agent's node")
	f.IntVar(&o.inFlight, "in-flight", 40, "requests in flight on the agent's node, each in its own pod")
	f.DurationVar(&o.agentLength, "agent-length", time.Minute, "how long to measure the agent, at rest and again when busy")
	cmd.AddCommand(newFunction())
	return cmd
}

func (o options) measures(part string) bool { return slices.Contains(o.only, part) }

func (o options) check() error {
	var errs []error
	for _, part := range o.only {
		if part != ofController && part != ofAgent {
			errs = append(errs, fmt.Errorf("--only has %q; want %s or %s", part, ofController, ofAgent))
		}
	}
	number := func(flag string, n, least, most int) {
		if n < least || n > most {
			errs = append(errs, fmt.Errorf("--%s is %d; it must be %d to %d", flag, n, least, most))
		}
	}
	number("nodes", o.nodes, 1, 10_000)
	number("opted-in", o.optedIn, 1, 90)
	number("takeovers", o.takeovers, 1, 1000)
	number("agent-pods", o.agentPods, 1, 500)
	number("in-flight", o.inFlight, 1, o.agentPods)
	if o.nodes > 0 {
		switch each, opted := o.pods/o.nodes, o.optedInEach(); {
		case o.pods%o.nodes != 0 || each > 500:
			errs = append(errs, fmt.Errorf("--pods is %d; it must be a multiple of the %d nodes, with at most 500 pods on each", o.pods, o.nodes))
		case opted < 2*namespaces || opted >= each:
			errs = append(errs, fmt.Errorf("--opted-in is %d %%, which is %d of a node's %d pods; at least %d must opt in, two in each namespace, and there must be room for the node's agent",
				o.optedIn, opted, each, 2*namespaces))
		}
	}
	if o.loans < 1 || o.loans > 10_000 {
		errs = append(errs, fmt.Errorf("--loans is %v; it must be 1 to 10000 a second", o.loans))
	}
	length := func(flag string, d time.Duration) {
		if d < 2*block || d > time.Hour {
			errs = append(errs, fmt.Errorf("--%s is %v; it must be %v to 1h", flag, d, 2*block))
		}
	}
	length("length", o.length)
	length("agent-length", o.agentLength)

	binary := func(flag, path, how string) {
		if info, err := os.Stat(path); path == "" || err != nil || info.IsDir() {
			errs = append(errs, fmt.Errorf("--%s is %q, which is not a program: %s", flag, path, how))
		}
	}
	binary("kubelite", o.kubelite, "`bin/box build` makes it, and `bin/box path kubelite` prints where it is")
	binary("controller", o.controller, "`make bin/libra-resizer` builds it")
	if o.measures(ofController) {
		binary("kwok", o.kwok, "`make bench-resizer` installs it")
	}
	if o.measures(ofAgent) {
		binary("agent", o.agent, "`make bin/libra-agent` builds it")
		if err := cgroupsWritable(); err != nil {
			errs = append(errs, fmt.Errorf("the agent's part makes cgroups (--only %s leaves it out): %w", ofController, err))
		}
	}
	if _, err := os.Stat(baseManifests); err != nil {
		errs = append(errs, fmt.Errorf("run this from the root of the repository, where %s is: %w", baseManifests, err))
	}
	return errors.Join(errs...)
}

// quickly makes the run a smoke test.
func (o *options) quickly() {
	o.nodes, o.pods, o.loans = 50, 2500, 100
	o.length, o.takeovers = 2*block, 2
	o.agentPods, o.inFlight, o.agentLength = 20, 8, 2*block
}

// optedInEach is the number of a node's pods that opted in: the same for each namespace.
func (o options) optedInEach() int {
	each := o.pods / o.nodes * o.optedIn / 100
	return each - each%namespaces
}

func bench(ctx context.Context, o options, out io.Writer) (err error) {
	if o.quick {
		o.quickly()
	}
	if err := o.check(); err != nil {
		return err
	}
	s, err := newSite(o, out)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	if err := s.startCluster(ctx); err != nil {
		return err
	}

	var measured []figure
	metrics := map[string]float64{}
	for _, part := range []struct {
		name    string
		measure func(context.Context, map[string]float64) ([]figure, error)
	}{{ofController, s.measureController}, {ofAgent, s.measureAgent}} {
		if !o.measures(part.name) {
			continue
		}
		before := len(s.closers)
		figures, err := part.measure(ctx, metrics)
		if err != nil {
			return fmt.Errorf("measure the %s: %w", part.name, err)
		}
		// This part must not run beside the next.
		if err := s.closeTo(before); err != nil {
			return fmt.Errorf("clean up after the %s: %w", part.name, err)
		}
		measured = append(measured, figures...)
	}

	maps.Copy(metrics, metricsOf(measured))
	metrics["seconds_total"] = time.Since(s.start).Seconds()
	results := report.Results{Machine: machine.About(), Commit: o.commit, Seed: o.seed, Metrics: metrics}
	if err := results.Write(o.out); err != nil {
		return err
	}
	s.say("results: %s", filepath.Join(o.out, report.ResultsFile))
	fmt.Fprintf(out, "\n%s.\n\n", results.Machine)
	writeTable(out, measured)
	return nil
}
