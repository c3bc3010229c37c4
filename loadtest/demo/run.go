package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"libra.dev/libra/loadtest/demo/report"
	"libra.dev/libra/loadtest/demo/schedule"
	"libra.dev/libra/loadtest/prometheus"
	"libra.dev/libra/pkg/api"
)

const (
	// tableFile is the name of the table in the folder of the results.
	tableFile = "table.txt"
	// learnSeed is far from every seed that a person gives: Libra must not learn from the
	// requests that it is measured with.
	learnSeed = 1 << 32

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
	data, err := d.measure(ctx)
	if err != nil {
		return err
	}
	return d.report(data)
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
// learning, Libra.
func (d *demo) measure(ctx context.Context) (data report.Data, err error) {
	data = report.Data{Commit: d.commit, Seed: d.seed}
	if data.Machine, err = d.machine(ctx); err != nil {
		return data, err
	}
	requests := schedule.Generate(d.seed, d.runLength, d.corpus)
	measured, err := d.loadOf("demo", requests)
	if err != nil {
		return data, err
	}
	// Libra must not learn from the requests that it is measured with.
	others := schedule.Generate(d.seed+learnSeed, d.learnLength, d.corpus)
	learned, err := d.loadOf("learn", others)
	if err != nil {
		return data, err
	}
	warmUp, err := d.loadOf("warm-up", firstOf(others, warmUpLength))
	if err != nil {
		return data, err
	}
	run := func(name, what string) (report.Run, error) {
		d.say("%s: %d requests in %.0f s: %s", name, len(requests), measured.length().Seconds(), what)
		results, err := d.replay(ctx, name, measured)
		return report.Run{Name: name, Schedule: requests, Results: results}, err
	}

	if err := d.setMode(ctx, api.ModeObserve); err != nil {
		return data, err
	}
	if err := d.warm(ctx, others); err != nil {
		return data, err
	}
	if err := d.awaitOwnLimits(ctx); err != nil {
		return data, err
	}
	before, err := d.restarts(ctx)
	if err != nil {
		return data, err
	}
	if data.StockLimits, err = d.watchingLimits(ctx, func() error {
		// The first run would be the coldest.
		if _, err := d.replaySaying(ctx, warmUp, "stock activator; results are discarded"); err != nil {
			return err
		}
		if data.Stock, err = run("stock", "stock activator, fixed limits"); err != nil {
			return err
		}
		data.Again, err = run("again", "the same once more, for the noise")
		return err
	}); err != nil {
		return data, err
	}

	d.say("activator: putting Libra's in the stock one's place, and Libra's mode to %s", api.ModeFull)
	if err := errors.Join(d.installActivator(ctx), d.setMode(ctx, api.ModeFull)); err != nil {
		return data, err
	}
	if err := d.warm(ctx, others); err != nil {
		return data, err
	}
	data.Learn = report.Run{Name: learned.name, Schedule: others}
	if data.Learn.Results, err = d.replaySaying(ctx, learned, "Libra learns the functions from other requests"); err != nil {
		return data, err
	}
	if err := d.awaitModels(ctx); err != nil {
		return data, err
	}
	if err := d.settle(ctx, others); err != nil {
		return data, err
	}
	if data.Limits, err = d.watchingLimits(ctx, func() (err error) {
		d.say("libra: %d requests in %.0f s: Libra, with the requests that stock had", len(requests), measured.length().Seconds())
		data.Libra = report.Run{Name: "libra", Schedule: requests}
		data.Libra.Results, data.Outcomes, data.Writes, err = d.replayRecorded(ctx, "libra", measured)
		return err
	}); err != nil {
		return data, err
	}
	after, err := d.restarts(ctx)
	if err != nil {
		return data, err
	}
	data.Restarts = restartsSince(before, after)
	data.Elapsed = time.Since(d.start)
	return data, nil
}

func (d *demo) replaySaying(ctx context.Context, l *load, what string) ([]report.Result, error) {
	d.say("%s: %d requests in %.0f s: %s", l.name, len(l.entries), l.length().Seconds(), what)
	return d.replay(ctx, l.name, l)
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
	if err := pause(ctx, settleTime); err != nil {
		return err
	}
	return d.warm(ctx, requests)
}

// pause waits, unless the context ends.
func pause(ctx context.Context, length time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(length):
		return nil
	}
}

// report writes the results and prints the table.
func (d *demo) report(data report.Data) error {
	c := report.Compare(data)
	var table bytes.Buffer
	if err := report.WriteTable(&table, data, c); err != nil {
		return err
	}
	if err := errors.Join(
		report.ResultsOf(data, c).Write(d.outDir),
		os.WriteFile(d.path(tableFile), table.Bytes(), 0o644)); err != nil {
		return err
	}
	fmt.Fprintf(d.out, "\n%s", table.String())
	look, takeDown := "make box-status, or "+d.box+" kubectl -- get pods -A", "make box-down"
	if !d.boxed() {
		look = "kubectl --context " + d.context + " get pods -A"
		takeDown = "nothing to do: the stock activator comes back now, and what was installed is removed"
	}
	fmt.Fprintf(d.out, "\nResults:   %s and %s\n", d.path(report.ResultsFile), d.path(tableFile))
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
