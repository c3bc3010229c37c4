package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"libra.dev/libra/loadtest/bench/rig"
	"libra.dev/libra/loadtest/demo/evaluation"
	"libra.dev/libra/loadtest/demo/report"
	"libra.dev/libra/loadtest/functions/inputs"
	"libra.dev/libra/loadtest/prometheus"
	"libra.dev/libra/loadtest/trace"
)

const cleanUpTimeout = 10 * time.Minute

// demoNamespaces returns the demo's namespaces: those of each arm's functions, and that of
// a service that did not opt in.
func demoNamespaces() []string {
	var namespaces []string
	for _, place := range append(demoPlan(demoTime)[0].places(), bystanderPlace) {
		namespaces = append(namespaces, namespaceOf(phaseDemo, place))
	}
	return namespaces
}

func newRun() *cobra.Command {
	var o options
	var limit time.Duration
	var again bool
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Install Libra, send stock and Libra the same requests, write a table and a report",
		Long: `run is a small evaluation: ten functions get the same requests with Libra, with
stock Knative, and without CPU limits, on a node that is partly and then nearly
busy, beside somebody else's service. It works on the box, and leaves Libra and its
functions running there. With --context it works on another cluster that has Knative,
KServe and a gateway: it asks first and, however it ends, puts the stock activator back
and removes what it installed.

Run it from the root of the repository. You can run it again at any time.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			d := newDemo(o, cmd.OutOrStdout())
			if again {
				return reportAgain(d, writeDemo)
			}
			return startDemo(cmd.Context(), d, limit, os.Stdin)
		},
	}
	o.flags(cmd)
	f := cmd.Flags()
	f.StringVar(&o.outDir, "out", "out/demo", "folder for the results")
	f.DurationVar(&limit, "limit", demoTime, "time limit for the run, except for the first block of each kind")
	f.BoolVar(&again, "report-only", false, "measure nothing; rewrite the report of an earlier demo from its results in --out")
	return cmd
}

// startDemo checks the flags and the cluster, asks where it must, and runs the demo.
func startDemo(ctx context.Context, d *demo, limit time.Duration, in *os.File) error {
	e := newEvaluation(d, namespaceOf(phaseDemo, evaluation.Libra))
	e.pace, e.limit, e.plan = demoPace, limit, demoPlan(limit)
	if err := errors.Join(checkDemoLimit(limit), d.resolve()); err != nil {
		return err
	}
	if err := d.mayChange(ctx, in, "about ten minutes", demoNamespaces()...); err != nil {
		return err
	}
	if !d.boxed() {
		if err := d.checkOther(ctx, demoNamespaces()...); err != nil {
			return err
		}
	}
	return e.demonstrate(ctx)
}

func checkDemoLimit(limit time.Duration) error {
	if limit < demoLeast || limit > demoLonger {
		return fmt.Errorf("--limit is %v; it must be %v to %v", limit, demoLeast, demoLonger)
	}
	return nil
}

// demonstrate runs the whole demo. Every step can be repeated on a cluster that an earlier
// demo left at any point.
func (e *evaluate) demonstrate(ctx context.Context) (err error) {
	// Pushing images and waiting for permission do not count.
	e.start = time.Now()
	if err := os.MkdirAll(e.outDir, 0o755); err != nil {
		return err
	}
	e.corpus = inputs.Corpus()
	if err := e.makePools(); err != nil {
		return err
	}
	var server *prometheus.Server
	if e.boxed() {
		if server, err = e.watch(ctx); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, server.Stop()) }()
	}
	// Clean up even after a failure or an interrupt.
	defer func() { err = errors.Join(err, e.leave(context.WithoutCancel(ctx))) }()
	err = e.measureDemo(ctx)
	if server != nil {
		alerts, failed := e.alerts(context.WithoutCancel(ctx), server)
		e.data.Alerts, err = alerts, errors.Join(err, failed)
	}
	if len(e.data.Blocks) == 0 {
		return err
	}
	e.data.Elapsed = time.Since(e.start)
	return errors.Join(err, e.data.WriteFile(e.path(evaluation.DataFile)), writeDemo(e.demo, e.data), e.lastWords())
}

// measureDemo installs everything on the cluster, and measures.
func (e *evaluate) measureDemo(ctx context.Context) error {
	e.data = evaluation.Data{Commit: e.commit, Seed: e.seed}
	if e.boxed() {
		e.say("removing what an evaluation left")
		if err := errors.Join(e.removeFour(ctx), e.clear(ctx, demoNamespaces()...)); err != nil {
			return err
		}
	}
	e.say("installing Libra: applying %s, and its activator", libraManifests)
	for _, step := range []func(context.Context) error{e.installLibra, e.installActivator, e.forget, e.describeMachine} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	s, err := e.setUpDemo(ctx, e.plan[0])
	if err != nil {
		return err
	}
	before, err := e.restarts(ctx)
	if err != nil {
		return err
	}
	e.planned = e.plan.blocks()
	if err := e.measure(ctx, s, nil); err != nil {
		return err
	}
	after, err := e.restarts(ctx)
	e.data.Restarts = restartsSince(before, after)
	return err
}

// setUpDemo installs the functions of all arms, measures the node's capacity, and teaches
// Libra its functions.
func (e *evaluate) setUpDemo(ctx context.Context, ph phase) (*scene, error) {
	s := &scene{phase: ph, places: map[string]*demo{}, functions: trace.Mixed, sets: 1, pool: e.pool, plain: plainPool(e.seed, e.corpus)}
	e.say("installing the functions %s, each under %s", strings.Join(s.functions, ", "), strings.Join(ph.places(), ", "))
	lessons, _, err := e.bringAll(ctx, s, e.learned)
	if err != nil {
		return nil, err
	}
	for _, step := range []func() error{
		func() error { return e.describeFunctions(ctx, s) },
		func() error { return e.warmUp(ctx, s, 0) },
		func() error { return e.demoCapacity(ctx, s.places[evaluation.NoLimits]) },
		func() error { return e.learn(ctx, lessons) },
		// Wait until the latest lessons are in a model.
		func() error { return rig.Pause(ctx, settleTime) },
	} {
		if err := step(); err != nil {
			return nil, err
		}
	}
	e.say("warming up")
	s.capacity = e.capacity
	return s, e.warmUp(ctx, s, e.pace.warm)
}

// demoCapacity sets the capacity of which the loads are parts. The cgroups of another
// cluster are not read: there it assumes that requests cost what they cost on the box.
func (e *evaluate) demoCapacity(ctx context.Context, own *demo) (err error) {
	if !e.boxed() {
		e.data.Unmeasured = append(e.data.Unmeasured, fmt.Sprintf(
			"how much CPU was in use, because the cgroups of another cluster's nodes are not read. The loads are for %d cores, as if requests took as much CPU as on the box.", demoCores))
		e.capacity = capacity{cores: demoCores, function: typicalFunction, path: typicalPath}
		e.data.Alone, err = e.measureAlone(ctx, own, e.pool, trace.Mixed)
		return err
	}
	if cores := e.capacity.cores; cores > demoCores {
		e.data.Unmeasured = append(e.data.Unmeasured, fmt.Sprintf(
			"a busy node of %d cores: ten functions with one pod each can keep only %d busy, and the loads are for these.", cores, demoCores))
		e.capacity.cores = demoCores
	}
	return e.measureCapacity(ctx, own)
}

func writeDemo(d *demo, data evaluation.Data) error {
	return evaluation.WriteDemo(d.outDir, d.out, "Stock Knative, Libra and no limits", data)
}

// lastWords prints how to go on, and returns an error if any request failed.
func (e *evaluate) lastWords() error {
	look, takeDown := "make box-status, or "+e.box+" kubectl -- get pods -n "+e.namespace, "make box-down"
	if !e.boxed() {
		look = "kubectl --context " + e.context + " get pods -A"
		takeDown = "nothing to do: this command now puts the stock activator back and removes what it installed"
	} else {
		fmt.Fprintf(e.out, "Go on:     the functions with Libra are in the namespace %s; docs/loadtest.md says how to send them load with k6\n", e.namespace)
	}
	fmt.Fprintf(e.out, "Numbers:   %s\nLook:      %s\nTake down: %s\n", e.path(report.ResultsFile), look, takeDown)
	failed := 0
	for _, b := range e.data.Blocks {
		failed += failures(b.Requests)
		if b.Bystander != nil {
			failed += failures(b.Bystander.Requests)
		}
	}
	if failed > 0 {
		return fmt.Errorf("failed requests: %d", failed)
	}
	return nil
}

// leave leaves the box with Libra and its functions, and another cluster as it was.
func (e *evaluate) leave(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, cleanUpTimeout)
	defer cancel()
	if !e.boxed() {
		return e.cleanUp(ctx)
	}
	var errs []error
	for _, namespace := range slices.Sorted(maps.Keys(e.places)) {
		if namespace != e.namespace {
			_, err := e.kubectl.run(ctx, "delete", "--ignore-not-found", "--wait=false", "namespace/"+namespace)
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// cleanUp puts the stock activator back and removes what was installed.
func (e *evaluate) cleanUp(ctx context.Context) error {
	e.say("putting the stock activator back and removing what was installed")
	remove := func(args ...string) error {
		_, err := e.kubectl.do(ctx, call{timeout: removeTimeout, args: append([]string{"delete", "--ignore-not-found"}, args...)})
		return err
	}
	err := e.restoreActivator(ctx)
	if err == nil {
		err = remove("-k", activatorManifests)
	}
	// A namespace may be stuck, and must not keep Libra's parts from being removed.
	gone := []string{"wait", "--for=delete"}
	for _, namespace := range demoNamespaces() {
		err = errors.Join(err, remove("--wait=false", "namespace/"+namespace))
		gone = append(gone, "namespace/"+namespace)
	}
	return errors.Join(err, remove("-k", libraManifests), e.kubectl.wait(ctx, removeTimeout, gone...))
}
