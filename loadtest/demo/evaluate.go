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
	corev1 "k8s.io/api/core/v1"

	"libra.dev/libra/loadtest/demo/evaluation"
	"libra.dev/libra/loadtest/demo/schedule"
	"libra.dev/libra/loadtest/trace"
)

const (
	// poolInputs are of each function; a quick evaluation has fewer, which are run alone
	// sooner.
	poolInputs, quickPoolInputs = 40, 12
	// shiftedScale is how much smaller the inputs are that Libra learns from before the
	// ablations: its predictions are wrong then.
	shiftedScale = 0.5

	platformLength, calibrateLength, warmLength = 10 * time.Second, 20 * time.Second, 10 * time.Second
)

// evaluationParts are what --parts knows.
var evaluationParts = []string{evaluation.PartRequests, evaluation.PartBystanders, evaluation.PartMemory, evaluation.PartCost}

// evaluateOptions are the flags that the evaluation has beyond the demo's.
type evaluateOptions struct {
	quick, ablations, again bool
	limit                   time.Duration
	parts, without          []string
}

// evaluate is one run of the command.
type evaluate struct {
	*demo
	evaluateOptions
	data evaluation.Data
	plan timePlan // whole, with what there is no time for

	pool     pool
	learned  pool // what Libra learns from: other inputs
	capacity capacity
	// places are those that there are, by namespace.
	places   map[string]*demo
	sets     map[string]int // how many they have
	hasVPA   bool
	parts    parts // as Libra's are set
	measured int   // blocks so far
	planned  int   // blocks, as the plan is now
}

func newEvaluate() *cobra.Command {
	var o options
	var e evaluateOptions
	cmd := &cobra.Command{
		Use:   "evaluate",
		Short: "Compare ways to give out CPU and memory on ten functions",
		Long: `evaluate sends the same requests to the same functions, which get their CPU and memory
in one way and in another, block after block, and writes a report. What it has no time
for it leaves out, and says so. It works on the box only, whose cgroups it reads on this
machine, and leaves it with the stock activator and without the functions.

It is to be run from the root of the repository, and may be run again at any time.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return startEvaluation(cmd.Context(), o, e, cmd.OutOrStdout())
		},
	}
	o.flags(cmd)
	f := cmd.Flags()
	f.StringVar(&o.outDir, "out", "out/evaluate", "folder for the results")
	f.BoolVar(&e.quick, "quick", false, fmt.Sprintf("a look within %s: fewer and shorter blocks, fewer inputs, what matters most, and no %s", minutes(quickTime), evaluation.VPA))
	f.BoolVar(&e.ablations, "ablations", false, "in place of the evaluation: Libra without some of it")
	f.DurationVar(&e.limit, "limit", 0, fmt.Sprintf("how long it may take in all (default: %s; quick %s, ablations %s)", fullTime, quickTime, ablationTime))
	f.StringSliceVar(&e.parts, "parts", evaluationParts, "parts of the evaluation")
	f.StringSliceVar(&e.without, "without", nil, "arms to leave out")
	f.BoolVar(&e.again, "report-only", false, "write the report of what an earlier evaluation has measured, in --out, and measure nothing")
	return cmd
}

// startEvaluation checks what can be checked, and runs the evaluation.
func startEvaluation(ctx context.Context, o options, eo evaluateOptions, out io.Writer) error {
	d := newDemo(o, out)
	if eo.again {
		return reportAgain(d)
	}
	d.namespace = namespaceOf("", evaluation.Stock)
	d.runLength, d.learnLength = time.Minute, time.Minute // as resolve wants them
	names := append(slices.Clone(trace.Mixed), plainFunction, "spin")
	d.services = services{optedIn: trace.Mixed, all: names}
	e := &evaluate{demo: d, evaluateOptions: eo, places: map[string]*demo{}, sets: map[string]int{}}
	if err := errors.Join(e.check(), d.resolve()); err != nil {
		return err
	}
	if err := d.mayChange(ctx, nil, ""); err != nil {
		return err
	}
	if e.uses(evaluation.VPA) {
		if err := d.checkVPA(); err != nil {
			return err
		}
	}
	return e.run(ctx)
}

// check checks the flags, and makes the plan.
func (e *evaluate) check() error {
	var errs []error
	if !e.boxed() {
		errs = append(errs, errors.New("--context names another cluster: the evaluation works on the box only, whose node is this machine"))
	}
	for _, part := range e.evaluateOptions.parts {
		if !slices.Contains(evaluationParts, part) {
			errs = append(errs, fmt.Errorf("--parts has %q; they must be some of %s", part, strings.Join(evaluationParts, ", ")))
		}
	}
	var names []string
	for _, a := range slices.Concat(arms, ablations) {
		names = append(names, a.Name)
	}
	for _, name := range e.without {
		if !slices.Contains(names, name) {
			errs = append(errs, fmt.Errorf("--without has %q; they must be some of %s", name, strings.Join(names, ", ")))
		}
	}
	l, parts := full, e.evaluateOptions.parts
	if e.quick {
		// Its images alone take longer to make, and it takes minutes to learn.
		l, e.without = quick, append(slices.Clone(e.without), evaluation.VPA)
	}
	e.plan = plan(l)
	if e.ablations {
		e.plan, parts = ablationPlan(l), []string{evaluation.PartAblations}
	}
	if e.plan = e.plan.only(parts, e.without); len(e.plan) == 0 {
		errs = append(errs, errors.New("--parts and --without leave nothing to measure"))
	}
	if e.limit == 0 {
		e.limit = fullTime
		switch {
		case e.quick:
			e.limit = quickTime
		case e.ablations:
			e.limit = ablationTime
		}
	}
	if least := e.opening() + e.closing() + 2*time.Minute; e.limit < least || e.limit > 24*time.Hour {
		errs = append(errs, fmt.Errorf("--limit is %v; it must be %v to 24h", e.limit, least))
	}
	return errors.Join(errs...)
}

func (e *evaluate) opening() time.Duration {
	if e.quick {
		return quickOpeningTime
	}
	return openingTime
}

func (e *evaluate) closing() time.Duration {
	if e.quick {
		return quickClosingTime
	}
	return closingTime
}

// uses says whether the plan, with all that there may be time for, has an arm.
func (e *evaluate) uses(name string) bool {
	return slices.ContainsFunc(e.plan.arms(), func(a arm) bool { return a.Name == name })
}

// left is how long may still be measured.
func (e *evaluate) left() time.Duration { return e.limit - time.Since(e.start) - e.closing() }

// run does the whole evaluation.
func (e *evaluate) run(ctx context.Context) (err error) {
	if err := os.MkdirAll(e.outDir, 0o755); err != nil {
		return err
	}
	fitted := e.plan.fit(e.limit - e.opening() - e.closing())
	e.planned = fitted.blocks()
	e.say("plan: %d blocks, within %s of which %s to begin and %s to end; it is made again as time passes", e.planned, minutes(e.limit), minutes(e.opening()), minutes(e.closing()))
	fitted.write(e.out)
	for i, ph := range e.plan {
		for _, left := range ph.leftOut(fitted[i]) {
			e.say("as it is planned now: %s", left)
		}
	}
	e.say("inputs: making them")
	e.corpus = schedule.Corpus()
	if err := e.makePools(); err != nil {
		return err
	}
	server, err := e.watch(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.Stop()) }()
	err = e.measureAll(ctx)
	if alerts, failed := e.alerts(context.WithoutCancel(ctx), server); failed != nil {
		err = errors.Join(err, failed)
	} else {
		e.data.Alerts = alerts
	}
	// Also after a failure, or when the user has had enough.
	after, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanUpTimeout)
	defer cancel()
	err = errors.Join(err, e.putBack(after))
	if len(e.data.Blocks) == 0 {
		return err
	}
	e.data.Elapsed = time.Since(e.start)
	return errors.Join(err, e.data.WriteFile(e.path(evaluation.DataFile)), writeReport(e.demo, e.data))
}

func (e *evaluate) makePools() (err error) {
	each, scale := poolInputs, 1.0
	if e.quick {
		each = quickPoolInputs
	}
	if e.ablations {
		scale = shiftedScale
	}
	if e.pool, err = makePool(e.seed, trace.Mixed, each, 1); err != nil {
		return err
	}
	e.learned, err = makePool(e.seed+learnSeed, trace.Mixed, learnInputs, scale)
	return err
}

// measureAll measures phase after phase.
func (e *evaluate) measureAll(ctx context.Context) (failed error) {
	if err := e.openCluster(ctx); err != nil {
		return err
	}
	for i := range e.plan {
		// What was quick so far leaves time for more, and what was slow for less.
		fitted := e.plan[i:].fit(e.left())
		e.planned = e.measured + fitted.blocks()
		e.data.Unmeasured = append(e.data.Unmeasured, e.plan[i].leftOut(fitted[0])...)
		for _, left := range e.plan[i].leftOut(fitted[0]) {
			e.say("left out: %s", left)
		}
		if len(fitted[0].combinations) == 0 {
			continue
		}
		s, err := e.setUp(ctx, fitted)
		if err == nil {
			err = e.measure(ctx, s, e.plan[i+1:])
		}
		if err != nil {
			err = fmt.Errorf("%s: %w", fitted[0].name, err)
		}
		if ctx.Err() != nil {
			return err
		}
		if err != nil {
			// Another phase may do better.
			e.say("given up: %v", err)
			e.data.Unmeasured = append(e.data.Unmeasured, err.Error())
			failed = errors.Join(failed, err)
		}
	}
	return failed
}

// openCluster brings Libra on the cluster, and finds out what the node has room for.
func (e *evaluate) openCluster(ctx context.Context) error {
	e.say("what an earlier evaluation or demo has left: removing it")
	if err := e.clear(ctx); err != nil {
		return err
	}
	e.say("Libra's parts: applying %s, and its activator", libraManifests)
	for _, step := range []func(context.Context) error{
		e.installLibra,
		e.installActivator,
		func(ctx context.Context) error { return e.setParts(ctx, parts{}) },
		e.forget,
	} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	e.data = evaluation.Data{Commit: e.commit, Seed: e.seed}
	if e.ablations {
		e.data.Unmeasured = unmeasuredAblations
	} else if e.uses(evaluation.Owners) {
		e.data.Unmeasured = []string{"requests with 40 pods under Libra, owners, no limits, weighted and VPA in place: the node has no room for them beside the others."}
	}
	var node corev1.NodeList
	if err := e.kubectl.get(ctx, &node, "nodes"); err != nil {
		return err
	}
	e.capacity.cores = int(node.Items[0].Status.Capacity.Cpu().Value())
	about, err := e.machine(ctx)
	if err != nil {
		return err
	}
	e.data.Machine = evaluation.Machine{About: about, Cores: e.capacity.cores}
	return e.calibrate(ctx)
}

// calibrate runs each input alone, at a place without limits, and finds out what a
// request costs there beside its function.
func (e *evaluate) calibrate(ctx context.Context) error {
	a := armNamed(evaluation.NoLimits)
	own := e.placeFor(phaseTen, a, 1)
	e.say("functions: %s, in the namespace %s", a.Title, own.namespace)
	e.places[own.namespace] = own
	if err := e.bring(ctx, phaseTen, a, own, 1); err != nil {
		return err
	}
	e.sets[own.namespace] = 1
	if err := e.up(ctx, own); err != nil {
		return err
	}
	s := &scene{places: map[string]*demo{a.Name: own}, functions: trace.Mixed, sets: 1, pool: e.pool}
	if err := e.warmUp(ctx, s, 0); err != nil {
		return err
	}
	e.say("alone: each of %d inputs of each function, %d times", len(e.pool[trace.Mixed[0]]), aloneRuns)
	var err error
	if e.data.Alone, err = e.measureAlone(ctx, own, e.pool, trace.Mixed); err != nil {
		return err
	}
	if e.capacity.platform, err = measurePlatform(ctx, platformLength); err != nil {
		return err
	}
	e.capacity.function, e.capacity.path = meanCPU(e.data.Alone, trace.Mixed), guessedPath
	if err := e.capacity.check(); err != nil {
		return err
	}
	alone := map[string]map[int]time.Duration{}
	for _, r := range e.data.Alone {
		if alone[r.Function] == nil {
			alone[r.Function] = map[int]time.Duration{}
		}
		alone[r.Function][r.Input] = time.Duration(r.CPUMilliseconds * float64(time.Millisecond))
	}
	schedule := arrivals(seedOf(e.seed+learnSeed, "calibrate"), e.capacity.perSecond(calibrateLoad), calibrateLength, callees{trace.Mixed, 1, len(e.pool[trace.Mixed[0]])})
	messages := make([]message, len(schedule))
	var functions time.Duration
	for i, a := range schedule {
		messages[i] = message{a.at, own.targets.hosts[a.function], e.pool[a.function][a.input]}
		functions += alone[a.function][a.input]
	}
	sender := newSender(own.targets.gateway)
	defer sender.http.CloseIdleConnections()
	before, err := nodeCPU()
	if err != nil {
		return err
	}
	began := time.Now()
	if _, err := sender.replay(ctx, messages); err != nil {
		return err
	}
	after, err := nodeCPU()
	if err != nil {
		return err
	}
	if e.capacity.path, err = e.capacity.pathOf(after-before, time.Since(began), len(messages), functions); err != nil {
		return err
	}
	e.data.Platform, e.data.Machine.RequestMilliseconds = e.capacity.platform, milliseconds(e.capacity.path)
	e.say("the node: %.2f of %d cores in use without requests; a request takes %.1f ms of its function and %.1f ms beside it on average; 90 %% are %.1f requests a second",
		e.capacity.platform, e.capacity.cores, milliseconds(e.capacity.function), milliseconds(e.capacity.path), e.capacity.perSecond(loadHigh))
	return nil
}
