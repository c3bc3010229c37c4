package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"libra.dev/libra/loadtest/demo/evaluation"
	"libra.dev/libra/loadtest/demo/report"
	"libra.dev/libra/loadtest/demo/schedule"
	"libra.dev/libra/loadtest/prometheus"
	"libra.dev/libra/pkg/api"
)

const (
	// demoLoad is what the demo's workload is called.
	demoLoad = "demo"

	cleanUpTimeout = 10 * time.Minute
	// A function's pod takes its time to drain.
	removeTimeout = 4 * time.Minute

	warmUpLength = 15 * time.Second
	// settleTime is the predictor's interval of refits and the age at which the
	// activator fetches a table again.
	settleTime = 6 * time.Second
)

// demo is one run of the command.
type demo struct {
	options
	services services
	kubectl  kubectl
	images   images
	targets  targets
	corpus   []byte
	http     *http.Client
	out      io.Writer
	start    time.Time

	// hadNamespace is whether the functions' namespace was there before.
	hadNamespace bool
}

// boxed says whether the cluster is the box, which is ours alone.
func (d *demo) boxed() bool { return d.context == "" }

// say writes a line of progress.
func (d *demo) say(format string, args ...any) {
	fmt.Fprintf(d.out, "[%4.0f s] %s\n", time.Since(d.start).Seconds(), fmt.Sprintf(format, args...))
}

// path is the path of a file in the folder of the results.
func (d *demo) path(names ...string) string {
	return filepath.Join(append([]string{d.outDir}, names...)...)
}

// runID starts the IDs of a run's requests. Two demos on one cluster must not
// have the same, and the activator makes IDs with a dot out of one without.
func (d *demo) runID(name string) string {
	return name + "-" + strconv.FormatInt(d.start.Unix(), 36)
}

// run does the whole demo. Every step may be done again, on a cluster that an
// earlier demo left at any point.
func (d *demo) run(ctx context.Context) (err error) {
	if err := d.prepare(ctx); err != nil {
		return err
	}
	var server *prometheus.Server
	if d.boxed() {
		if server, err = d.watch(ctx); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, server.Stop()) }()
	} else {
		// Also after a failure, or when the user has had enough.
		defer func() {
			err = errors.Join(err, d.cleanUp(context.WithoutCancel(ctx)))
		}()
	}
	if err := d.install(ctx); err != nil {
		return err
	}
	data, runs, err := d.measure(ctx)
	if err != nil {
		return err
	}
	if server != nil {
		if runs.Alerts, err = d.alerts(ctx, server); err != nil {
			return err
		}
	}
	return d.report(data, runs)
}

// prepare makes what needs no cluster, and looks at what is on it.
func (d *demo) prepare(ctx context.Context) error {
	if err := os.MkdirAll(d.outDir, 0o755); err != nil {
		return err
	}
	d.corpus = schedule.Corpus()
	var err error
	d.hadNamespace, err = d.kubectl.exists(ctx, "namespace", d.namespace)
	return err
}

// install brings everything on the cluster, with the stock activator.
func (d *demo) install(ctx context.Context) error {
	d.say("stock activator: making sure that it is there")
	if err := d.restoreActivator(ctx); err != nil {
		return err
	}
	d.say("Libra's parts: applying %s", libraManifests)
	if err := d.installLibra(ctx); err != nil {
		return err
	}
	if !d.hadNamespace {
		if _, err := d.kubectl.run(ctx, "create", "namespace", d.namespace); err != nil {
			return err
		}
	}
	// What is compared here is the paper's way, in which limits move while requests run.
	if err := d.setSource(ctx, api.SourceOwners, d.namespace); err != nil {
		return err
	}
	d.say("functions: %s", strings.Join(d.services.all, ", "))
	if err := d.installFunctions(ctx); err != nil {
		return err
	}
	var err error
	if d.targets, err = d.findTargets(ctx); err != nil {
		return err
	}
	if err := d.forget(ctx); err != nil {
		return err
	}
	d.say("gateway: %s", d.targets.gateway)
	return nil
}

// measure replays the schedules: stock to warm up, stock, stock again, Libra
// learning, Libra. It returns what the table is of, and the runs of the four
// functions as an evaluation has them.
func (d *demo) measure(ctx context.Context) (data report.Data, runs evaluation.Data, err error) {
	data = report.Data{Commit: d.commit, Seed: d.seed}
	if data.Machine, err = d.machine(ctx); err != nil {
		return data, runs, err
	}
	requests := schedule.Generate(d.seed, d.runLength, d.corpus)
	measured, err := d.loadOf(demoLoad, requests)
	if err != nil {
		return data, runs, err
	}
	// Libra must not learn from the requests that it is measured with.
	others := schedule.Generate(d.seed+1<<32, d.learnLength, d.corpus)
	learned, err := d.loadOf("learn", others)
	if err != nil {
		return data, runs, err
	}
	warmUp, err := d.loadOf("warm-up", firstOf(others, warmUpLength))
	if err != nil {
		return data, runs, err
	}
	compared, err := named([]string{evaluation.Again, evaluation.Libra})
	if err != nil {
		return data, runs, err
	}
	runs = evaluation.Data{
		Machine: data.Machine, Commit: d.commit, Seed: d.seed, Learned: len(others),
		Trace: "the demo's schedule, in which each function is called again some moments after it should have answered",
	}
	if runs.Functions, err = d.describeFunctions(ctx); err != nil {
		return data, runs, err
	}
	measure := func(p policy, what string) (report.Run, error) {
		d.say("%s: %d requests in %.0f s: %s", p.Title, len(requests), measured.length().Seconds(), what)
		run, err := d.measureRun(ctx, p, measured, 1)
		runs.Policies = append(runs.Policies, p.Policy)
		runs.Runs = append(runs.Runs, d.ofOptedIn(run, requests))
		if p.libra {
			data.Outcomes, data.Writes = run.Outcomes, run.Writes
		}
		return report.Run{Name: p.Name, Schedule: requests, Results: run.Results}, err
	}
	stock, again, libra := compared[0], compared[1], compared[2]

	if err := d.ready(ctx, stock, learned); err != nil {
		return data, runs, err
	}
	before, err := d.restarts(ctx)
	if err != nil {
		return data, runs, err
	}
	if data.StockLimits, err = d.watchingLimits(ctx, func() error {
		// The first run would be the coldest.
		if _, err := d.replaySaying(ctx, warmUp, "stock activator; results are discarded"); err != nil {
			return err
		}
		if data.Stock, err = measure(stock, "stock activator, fixed limits"); err != nil {
			return err
		}
		data.Again, err = measure(again, "the same once more, for the noise")
		return err
	}); err != nil {
		return data, runs, err
	}

	d.say("activator: putting Libra's in the stock one's place")
	if err := d.installActivator(ctx); err != nil {
		return data, runs, err
	}
	if err := d.warm(ctx, others); err != nil {
		return data, runs, err
	}
	data.Learn = report.Run{Name: learned.workload, Schedule: others}
	if data.Learn.Results, err = d.replaySaying(ctx, learned, "Libra learns the functions from other requests"); err != nil {
		return data, runs, err
	}
	if err := d.awaitModels(ctx); err != nil {
		return data, runs, err
	}
	if err := d.ready(ctx, libra, learned); err != nil {
		return data, runs, err
	}
	if data.Limits, err = d.watchingLimits(ctx, func() error {
		data.Libra, err = measure(libra, "Libra, with the requests that stock had")
		return err
	}); err != nil {
		return data, runs, err
	}
	after, err := d.restarts(ctx)
	if err != nil {
		return data, runs, err
	}
	data.Restarts = restartsSince(before, after)
	data.Elapsed = time.Since(d.start)
	runs.Elapsed = data.Elapsed
	return data, runs, nil
}

// ofOptedIn is a run without what was sent to the service that has nothing to do with
// Libra.
func (d *demo) ofOptedIn(run evaluation.Run, requests []schedule.Request) evaluation.Run {
	run.Results = slices.DeleteFunc(slices.Clone(run.Results), func(r evaluation.Result) bool {
		return !slices.Contains(d.services.optedIn, r.Function)
	})
	run.Planned = 0
	for _, r := range requests {
		if slices.Contains(d.services.optedIn, r.Function) {
			run.Planned++
		}
	}
	return run
}

func (d *demo) replaySaying(ctx context.Context, l *load, what string) ([]report.Result, error) {
	d.say("%s: %d requests in %.0f s: %s", l.workload, len(l.entries), l.length().Seconds(), what)
	return d.replayLoad(ctx, l.workload, l)
}

// awaitModels waits until the predictor has learned every function. A function
// that it has not is run with its own limits, so the demo goes on without.
func (d *demo) awaitModels(ctx context.Context) error {
	var missing []string
	// Not the attempt's context: what one finds out when time is up counts.
	_ = eventually(ctx, d.modelsTimeout, func(context.Context) error {
		if missing = d.modelsMissing(ctx); len(missing) > 0 {
			return fmt.Errorf("no model of %s", strings.Join(missing, ", "))
		}
		return nil
	})
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case len(missing) == len(d.services.optedIn):
		return fmt.Errorf("the predictor has learned nothing within %v of the last request: see the logs of inferenceservice/libra and daemonset/libra-agent in %s", d.modelsTimeout, libraNamespace)
	case len(missing) > 0:
		d.say("no model yet of %s: Libra leaves it alone", strings.Join(missing, ", "))
	default:
		d.say("the predictor has a model of each function")
	}
	return nil
}

// settle lets the last of what was learned reach the activator. It fetches a
// table again when a request finds the one it has too old.
func (d *demo) settle(ctx context.Context, requests []schedule.Request) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(settleTime):
	}
	if err := d.warm(ctx, requests); err != nil {
		return err
	}
	return d.awaitOwnLimits(ctx)
}

// report writes the results and the evaluation's report, and prints the table.
func (d *demo) report(data report.Data, runs evaluation.Data) error {
	c, compared := report.Compare(data), evaluation.Compare(runs)
	results, metrics := report.ResultsOf(data, c), evaluation.ResultsOf(runs, compared).Metrics
	maps.Copy(metrics, results.Metrics)
	results.Metrics = metrics
	var table bytes.Buffer
	if err := report.WriteTable(&table, data, c); err != nil {
		return err
	}
	heading := evaluation.Heading{Title: "Stock Knative against Libra", Table: table.String()}
	if err := errors.Join(
		results.Write(d.outDir),
		evaluation.WritePage(d.outDir, heading, runs, compared),
		evaluation.WriteMarkdown(d.outDir, heading, runs, compared)); err != nil {
		return err
	}
	fmt.Fprintf(d.out, "\n%s", table.String())
	look, takeDown := "make box-status, or "+d.box+" kubectl -- get pods -A", "make box-down"
	if !d.boxed() {
		look = "kubectl --context " + d.context + " get pods -A"
		takeDown = "nothing to do: the stock activator comes back now, and what was installed is removed"
	}
	fmt.Fprintf(d.out, "\nResults:   %s and %s\n", d.path(report.ResultsFile), d.path(evaluation.PageFile))
	fmt.Fprintf(d.out, "Look:      %s\n", look)
	fmt.Fprintf(d.out, "Take down: %s\n", takeDown)
	var wrong []error
	if len(c.Failures) > 0 {
		wrong = append(wrong, fmt.Errorf("%d requests failed", len(c.Failures)))
	}
	if c.StockResizes > 0 {
		wrong = append(wrong, fmt.Errorf("limits changed %d times in the runs of stock, so that nothing was compared with stock", c.StockResizes))
	}
	return errors.Join(wrong...)
}

// cleanUp puts the stock activator back and removes what was installed.
func (d *demo) cleanUp(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, cleanUpTimeout)
	defer cancel()
	d.say("putting the stock activator back and removing what was installed")
	remove := func(args ...string) error {
		_, err := d.kubectl.do(ctx, call{timeout: removeTimeout, args: append([]string{"delete", "--ignore-not-found"}, args...)})
		return err
	}
	err := d.restoreActivator(ctx)
	if err == nil {
		err = remove("-k", activatorManifests)
	}
	if !d.hadNamespace {
		err = errors.Join(err, remove("namespace/"+d.namespace))
	} else {
		err = errors.Join(err, remove("-n", d.namespace, "-k", d.services.manifests), d.unsetSource(ctx, d.namespace))
	}
	return errors.Join(err, remove("-k", libraManifests))
}
