package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"

	"libra.dev/libra/loadtest/demo/evaluation"
	"libra.dev/libra/loadtest/demo/schedule"
	"libra.dev/libra/loadtest/prometheus"
	"libra.dev/libra/loadtest/trace"
	"libra.dev/libra/pkg/api"
)

// ten are the evaluation's functions.
var ten = services{"loadtest/functions/evaluation", trace.Mixed, append(slices.Clone(trace.Mixed), schedule.Plain)}

const (
	mixed    = "mixed"
	dataFile = "data.json"
	// learnSeed is far from every seed that a person gives: Libra must not learn from the
	// requests that it is measured with.
	learnSeed = 1 << 32
	// learnPerMinute is as much as the functions can answer with their own limits.
	learnPerMinute = 150

	traceFunctions, traceMinutes = 100, 480
	inputsPerFunction            = 100
	traceSkew                    = 0.25
)

// workloads are the functions of each.
var workloads = map[string][]string{mixed: trace.Mixed, "related": trace.Related, "unrelated": trace.Unrelated}

// evaluateOptions are the flags that the evaluation has beyond the demo's.
type evaluateOptions struct {
	rounds, requests    int
	perMinute           float64
	policies, workloads []string
	thresholds          []float64
	again               bool
	azure, beside       string
	learnLength         time.Duration
}

// evaluate is one run of the command.
type evaluate struct {
	*demo
	evaluateOptions
	chosen  []policy
	loads   []*load // the first is the one that all policies replay
	learned *load

	// apart are the demos of the policies that have functions of their own, by name.
	apart map[string]*demo

	libra bool // which activator there is now
	parts parts
}

func newEvaluate() *cobra.Command {
	var o options
	var e evaluateOptions
	cmd := &cobra.Command{
		Use:   "evaluate",
		Short: "Compare policies on the ten functions, as section 8.3 of the LIBRA paper does",
		Long: `evaluate replays the same requests under each policy, round after round, and writes
a report. The first workload is replayed under all policies, the others with stock and
with Libra only. It works on the box, which it leaves with the stock activator, or with
--context on another cluster that has Knative, KServe and a gateway: there it asks
first, and at the end puts the stock activator back and removes what it made.

It is to be run from the root of the repository, and may be run again at any time.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.context != "" && !cmd.Flags().Changed("policies") {
				e.policies = slices.DeleteFunc(e.policies, func(name string) bool { return name == vpaPolicy })
			}
			return startEvaluation(cmd.Context(), o, e, os.Stdin, cmd.OutOrStdout())
		},
	}
	var names []string
	for _, p := range policies {
		names = append(names, p.Name)
	}
	o.flags(cmd)
	f := cmd.Flags()
	f.StringVar(&o.outDir, "out", "out/evaluate", "folder for the results")
	f.IntVar(&e.rounds, "rounds", 3, "how often each policy replays each of its workloads")
	f.IntVar(&e.requests, "requests", 165, "requests of a replay")
	f.Float64Var(&e.perMinute, "rpm", 120, "requests a minute on average")
	f.StringSliceVar(&e.policies, "policies", names, "policies; stock is always among them, and vpa not with --context")
	f.StringSliceVar(&e.workloads, "workloads", []string{mixed, "related", "unrelated"}, "workloads, the first one under all policies")
	f.Float64SliceVar(&e.thresholds, "thresholds", nil, "thresholds of the safeguard, 0 to 1, with each of which Libra is one more policy")
	f.StringVar(&e.azure, "azure", "", "folder with the three files of a day of the Azure Functions 2019 data set (default: a trace with its statistics)")
	f.StringVar(&e.beside, "beside", "", "data.json of another evaluation, of which the report says whether the policies come in the same order")
	f.BoolVar(&e.again, "report-only", false, "write the report of what an earlier evaluation has measured, in --out, and measure nothing")
	f.DurationVar(&e.learnLength, "learn-length", 4*time.Minute, "length of the run from which Libra learns")
	return cmd
}

// startEvaluation checks what can be checked, and runs the evaluation.
func startEvaluation(ctx context.Context, o options, eo evaluateOptions, in *os.File, out io.Writer) error {
	if eo.again {
		return reportAgain(newDemo(o, out), eo.beside)
	}
	o.namespace = "evaluation"
	o.runLength, o.learnLength = time.Minute, eo.learnLength // as resolve wants them
	d := newDemo(o, out)
	d.services = ten
	e := &evaluate{demo: d, evaluateOptions: eo}
	if err := errors.Join(d.resolve(), e.check()); err != nil {
		return err
	}
	if err := d.mayChange(ctx, in, "over an hour", e.namespaces()...); err != nil {
		return err
	}
	if !d.boxed() {
		if err := d.checkOther(ctx, e.namespaces()...); err != nil {
			return err
		}
	}
	if slices.ContainsFunc(e.chosen, func(p policy) bool { return p.vpa }) {
		if err := d.checkVPA(); err != nil {
			return err
		}
	}
	return e.run(ctx)
}

// check checks the flags and makes the schedules.
func (e *evaluate) check() error {
	var errs []error
	if e.rounds < 1 || e.rounds > 100 {
		errs = append(errs, fmt.Errorf("--rounds is %d; it must be 1 to 100", e.rounds))
	}
	if e.requests < 10 || e.requests > 100_000 {
		errs = append(errs, fmt.Errorf("--requests is %d; it must be 10 to 100000", e.requests))
	}
	if !(e.perMinute >= trace.MinPerMinute && e.perMinute <= trace.MaxPerMinute) {
		errs = append(errs, fmt.Errorf("--rpm is %v; it must be %d to %d", e.perMinute, trace.MinPerMinute, trace.MaxPerMinute))
	}
	for i, w := range e.workloads {
		if workloads[w] == nil || slices.Contains(e.workloads[:i], w) {
			errs = append(errs, fmt.Errorf("--workloads is %s; it must be some of mixed, related and unrelated, each once", strings.Join(e.workloads, ",")))
		}
	}
	if len(e.workloads) == 0 {
		errs = append(errs, errors.New("--workloads is empty; it must be some of mixed, related and unrelated"))
	}
	for i, threshold := range e.thresholds {
		if !(threshold >= 0 && threshold <= 1) || slices.Contains(e.thresholds[:i], threshold) {
			errs = append(errs, fmt.Errorf("--thresholds has %v; they must be from 0 to 1, each once", threshold))
		}
	}
	if e.beside != "" {
		if _, err := readData(e.beside); err != nil {
			errs = append(errs, fmt.Errorf("--beside: %w", err))
		}
	}
	var err error
	e.chosen, err = named(e.policies)
	for _, threshold := range e.thresholds {
		e.chosen = append(e.chosen, atThreshold(threshold))
	}
	if !e.boxed() && slices.ContainsFunc(e.chosen, func(p policy) bool { return p.vpa }) {
		errs = append(errs, fmt.Errorf("--policies has %s, which brings a metrics server in the place of any other and removes it: it works on the box only, not with --context", vpaPolicy))
	}
	return errors.Join(append(errs, err)...)
}

// run does the whole evaluation.
func (e *evaluate) run(ctx context.Context) (err error) {
	if err := e.prepare(ctx); err != nil {
		return err
	}
	e.say("requests: drawing the inputs")
	if err := e.makeLoads(); err != nil {
		return err
	}
	var server *prometheus.Server
	if e.boxed() {
		if server, err = e.watch(ctx); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, server.Stop()) }()
	} else {
		defer func() { err = errors.Join(err, e.cleanUp(context.WithoutCancel(ctx))) }()
	}
	var data evaluation.Data
	if err = e.installEvaluation(ctx); err == nil {
		data, err = e.measureAll(ctx)
	}
	if err == nil && server != nil {
		data.Alerts, err = e.alerts(ctx, server)
	}
	if err == nil {
		err = e.keep(data)
	}
	// Also after a failure, or when the user has had enough.
	after, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanUpTimeout)
	defer cancel()
	if err := errors.Join(err, e.use(after, policy{}), e.removeApart(after)); err != nil {
		return err
	}
	return writeReport(e.demo, data, e.beside)
}

// installEvaluation brings everything on the cluster, with the stock activator.
func (e *evaluate) installEvaluation(ctx context.Context) error {
	if err := e.install(ctx); err != nil {
		return err
	}
	if err := e.setParts(ctx, e.parts); err != nil {
		return err
	}
	return e.installApart(ctx)
}

// measureAll has Libra learn, and then makes all the runs.
func (e *evaluate) measureAll(ctx context.Context) (evaluation.Data, error) {
	data := evaluation.Data{Commit: e.commit, Seed: e.seed, Trace: "a trace with the statistics of the Azure Functions 2019 data set"}
	if e.azure != "" {
		data.Trace = "the Azure Functions 2019 data set"
	}
	var err error
	if data.Machine, err = e.machine(ctx); err != nil {
		return data, err
	}
	if data.Functions, err = e.describeFunctions(ctx); err != nil {
		return data, err
	}
	for _, p := range e.chosen {
		data.Policies = append(data.Policies, p.Policy)
	}
	if slices.ContainsFunc(e.chosen, func(p policy) bool { return p.libra }) {
		if err := e.learn(ctx); err != nil {
			return data, err
		}
		data.Learned = len(e.learned.entries)
	}
	for _, p := range e.chosen {
		if p.vpa {
			if err := e.learnVPA(ctx, p); err != nil {
				return data, err
			}
		}
	}
	total, done := e.countRuns(), 0
	for round := 1; round <= e.rounds; round++ {
		for _, p := range order(e.chosen, round) {
			under, err := e.under(ctx, p)
			if err != nil {
				return data, err
			}
			for _, l := range e.loadsOf(p) {
				done++
				e.say("run %d of %d: %s, %s, round %d", done, total, p.Title, l.workload, round)
				run, err := under.readyRun(ctx, p, l, round)
				if err != nil {
					return data, fmt.Errorf("%s, %s, round %d: %w", p.Title, l.workload, round, err)
				}
				data.Runs = append(data.Runs, run)
			}
			if err := e.leave(ctx, p); err != nil {
				return data, err
			}
		}
		data.Elapsed = time.Since(e.start)
		// What is measured by now stays, whatever comes.
		if err := e.keep(data); err != nil {
			return data, err
		}
	}
	return data, nil
}

// loadsOf are what a policy replays.
func (e *evaluate) loadsOf(p policy) []*load {
	if p.Name == evaluation.Stock || p.Name == evaluation.Libra {
		return e.loads
	}
	return e.loads[:1]
}

func (e *evaluate) countRuns() int {
	n := 0
	for _, p := range e.chosen {
		n += len(e.loadsOf(p))
	}
	return n * e.rounds
}

// describeFunctions says what the functions' owners configured.
func (d *demo) describeFunctions(ctx context.Context) ([]evaluation.Function, error) {
	var list servingv1.ServiceList
	if err := d.kubectl.get(ctx, &list, "-n", d.namespace, "services.serving.knative.dev"); err != nil {
		return nil, err
	}
	limits := map[string]api.Resources{}
	for _, s := range list.Items {
		limits[s.Name] = api.FromList(s.Spec.Template.Spec.Containers[0].Resources.Limits)
	}
	var functions []evaluation.Function
	for _, f := range d.services.optedIn {
		functions = append(functions, evaluation.Function{Name: f, Related: slices.Contains(trace.Related, f), Limit: limits[f]})
	}
	return functions, nil
}
