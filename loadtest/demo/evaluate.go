package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"

	"libra.dev/libra/loadtest/demo/evaluation"
	"libra.dev/libra/loadtest/functions/inputs"
	"libra.dev/libra/loadtest/trace"
	"libra.dev/libra/pkg/api"
)

// shiftedScale scales the inputs that Libra learns from before the ablations, so that its
// predictions are wrong.
const shiftedScale = 0.5

// evaluationParts are the values that --parts accepts.
var evaluationParts = []string{evaluation.PartRequests, evaluation.PartBystanders, evaluation.PartMemory, evaluation.PartCost}

// evaluationLoads are the values that --loads accepts.
var evaluationLoads = []int{loadLow, loadMiddle, loadHigh, loadOver}

// evaluationPods are the values that --pods accepts.
var evaluationPods = []int{10, 40}

// evaluateOptions are the evaluation's flags beyond the demo's.
type evaluateOptions struct {
	quick, ablations, again bool
	limit                   time.Duration
	parts, without          []string
	loads, pods             []int
	blocks                  int
}

// evaluate is one run of the command.
type evaluate struct {
	*demo
	evaluateOptions
	pace pace
	data evaluation.Data
	plan timePlan // the whole, with blocks for which there is no time

	pool     pool
	learned  pool // other inputs, from which Libra learns
	capacity capacity
	// places are the places that exist, by namespace.
	places   map[string]*demo
	sets     map[string]int // how many sets each place has
	hasVPA   bool
	parts    parts   // how Libra's parts are known to be set
	oracle   *oracle // nil without an arm that asks it
	gaps     gapsSeen
	measured int // blocks measured so far
	planned  int // blocks in the current plan
	// repeated is how long measuring blocks again has taken.
	repeated  time.Duration
	placement api.Placement // that the activator is known to follow; empty: not known
	changed   []setting
	write     func(*demo, evaluation.Data) error // writes the report
}

func newEvaluate() *cobra.Command {
	var o options
	var e evaluateOptions
	cmd := &cobra.Command{
		Use:   "evaluate",
		Short: "Compare ways to give CPU and memory to ten functions",
		Long: `evaluate sends the same requests to the same functions, which get their CPU and memory
in one way and then another, block after block, and writes a report. It leaves out what
it has no time for, and names it. It works only on the box, whose cgroups it reads on this
machine, and leaves it with the stock activator and without the functions.

Run it from the root of the repository. You can run it again at any time.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return startEvaluation(cmd.Context(), o, e, cmd.OutOrStdout())
		},
	}
	o.flags(cmd)
	f := cmd.Flags()
	f.StringVar(&o.outDir, "out", "out/evaluate", "folder for the results")
	f.BoolVar(&e.quick, "quick", false, fmt.Sprintf("a quick look within %s: fewer and shorter blocks, fewer inputs, what matters most, and no %s", minutes(quickTime), evaluation.VPA))
	f.BoolVar(&e.ablations, "ablations", false, "instead of the evaluation, measure Libra without some of its parts")
	f.DurationVar(&e.limit, "limit", 0, fmt.Sprintf("time limit for the evaluation (default: %s; quick %s, ablations %s, quick ablations %s)", fullTime, quickTime, ablationTime, quickAblationTime))
	f.StringSliceVar(&e.parts, "parts", evaluationParts, "parts of the evaluation")
	f.StringSliceVar(&e.without, "without", nil, "arms to leave out")
	f.IntSliceVar(&e.loads, "loads", evaluationLoads, "loads, in percent of the node's CPU that the platform leaves")
	f.IntSliceVar(&e.pods, "pods", evaluationPods, "pods that serve the requests; the parts memory and cost have numbers of their own")
	f.IntVar(&e.blocks, "blocks", 0, fmt.Sprintf("blocks of each arm that a goal is about (default: %d; quick %d)", full.blocks, quick.blocks))
	f.BoolVar(&e.again, "report-only", false, "measure nothing; rewrite the report of an earlier evaluation from its results in --out")
	return cmd
}

// startEvaluation checks the flags and the cluster, and runs the evaluation.
func startEvaluation(ctx context.Context, o options, eo evaluateOptions, out io.Writer) error {
	d := newDemo(o, out)
	if eo.again {
		return reportAgain(d, writeReport)
	}
	e := newEvaluation(d, namespaceOf(phaseTen, evaluation.Stock))
	e.evaluateOptions = eo
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

// newEvaluation returns an evaluation of the ten functions and of bystanders.
func newEvaluation(d *demo, namespace string) *evaluate {
	d.namespace = namespace
	d.services = services{optedIn: trace.Mixed, all: append(slices.Clone(trace.Mixed), plainFunction, spinDeployment)}
	return &evaluate{demo: d, places: map[string]*demo{}, sets: map[string]int{}, gaps: gapsSeen{}, write: writeReport}
}

// check checks the flags and makes the plan.
func (e *evaluate) check() error {
	var errs []error
	for _, part := range e.evaluateOptions.parts {
		if !slices.Contains(evaluationParts, part) {
			errs = append(errs, fmt.Errorf("--parts has %q; want some of %s", part, strings.Join(evaluationParts, ", ")))
		}
	}
	var names []string
	for _, a := range slices.Concat(arms, ablations) {
		names = append(names, a.Name)
	}
	for _, name := range e.without {
		if !slices.Contains(names, name) {
			errs = append(errs, fmt.Errorf("--without has %q; want some of %s", name, strings.Join(names, ", ")))
		}
	}
	l, parts := full, e.evaluateOptions.parts
	e.pace = fullPace
	if e.quick {
		l, e.pace = quick, quickPace
		// Building VPA's images alone takes longer than a quick run, and VPA takes minutes
		// to learn.
		e.without = append(slices.Clone(e.without), evaluation.VPA)
	}
	if e.blocks > 0 {
		l.blocks = e.blocks
	}
	e.plan = plan(l)
	if e.ablations {
		e.plan, parts = ablationPlan(l), []string{evaluation.PartAblations, evaluation.PartBystanders}
	}
	if e.plan = e.plan.only(parts, e.loads, e.pods, e.without); len(e.plan) == 0 {
		errs = append(errs, errors.New("--parts, --loads, --pods and --without leave nothing to measure"))
	}
	for _, pods := range e.pods {
		if !slices.Contains(evaluationPods, pods) {
			errs = append(errs, fmt.Errorf("--pods has %d; want some of %v", pods, evaluationPods))
		}
	}
	if e.limit == 0 {
		e.limit = fullTime
		switch {
		case e.quick && e.ablations:
			e.limit = quickAblationTime
		case e.quick:
			e.limit = quickTime
		case e.ablations:
			e.limit = ablationTime
		}
	}
	return errors.Join(append(errs, e.checkCommon(e.loads, e.blocks))...)
}

// checkCommon checks the flags that both evaluations have, against the pace.
func (e *evaluate) checkCommon(loads []int, blocks int) error {
	var errs []error
	if !e.boxed() {
		errs = append(errs, errors.New("--context names another cluster: the evaluation works only on the box, whose nodes are this machine"))
	}
	for _, load := range loads {
		if !slices.Contains(evaluationLoads, load) {
			errs = append(errs, fmt.Errorf("--loads has %d; want some of %v", load, evaluationLoads))
		}
	}
	if blocks < 0 || blocks > mostBlocks {
		errs = append(errs, fmt.Errorf("--blocks is %d; it must be 1 to %d, or 0 for the default", blocks, mostBlocks))
	}
	if least := e.pace.opening + e.pace.closing + 2*time.Minute; e.limit < least || e.limit > 24*time.Hour {
		errs = append(errs, fmt.Errorf("--limit is %v; it must be %v to 24h", e.limit, least))
	}
	return errors.Join(errs...)
}

// uses reports whether an arm is in the plan, including the blocks for which there may be
// no time.
func (e *evaluate) uses(name string) bool {
	return slices.ContainsFunc(e.plan.arms(), func(a arm) bool { return a.Name == name })
}

// perfect reports whether there is an arm whose predictions are never wrong.
func (e *evaluate) perfect() bool {
	return slices.ContainsFunc(e.plan.arms(), func(a arm) bool { return a.perfect })
}

// left returns how much time is left to measure.
func (e *evaluate) left() time.Duration { return e.limit - time.Since(e.start) - e.pace.closing }

// run runs the whole evaluation.
func (e *evaluate) run(ctx context.Context) (err error) {
	if err := os.MkdirAll(e.outDir, 0o755); err != nil {
		return err
	}
	fitted := e.plan.fit(e.limit - e.pace.opening - e.pace.closing)
	e.planned = fitted.blocks()
	e.say("plan: %d blocks within %s, of which %s to begin and %s to end; the plan is revised as time passes", e.planned, minutes(e.limit), minutes(e.pace.opening), minutes(e.pace.closing))
	fitted.write(e.out)
	for i, ph := range e.plan {
		for _, left := range ph.leftOut(fitted[i]) {
			e.say("not planned: %s", left)
		}
	}
	e.say("making the inputs")
	e.corpus = inputs.Corpus()
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
	// Clean up even after a failure or an interrupt.
	after, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanUpTimeout)
	defer cancel()
	err = errors.Join(err, e.putBack(after))
	if len(e.data.Blocks) == 0 {
		return err
	}
	e.data.Elapsed = time.Since(e.start)
	return errors.Join(err, e.data.WriteFile(e.path(evaluation.DataFile)), e.write(e.demo, e.data))
}

func (e *evaluate) makePools() (err error) {
	scale := 1.0
	if e.ablations {
		scale = shiftedScale
	}
	if e.pool, err = makePool(e.seed, trace.Mixed, e.pace.inputs, 1); err != nil {
		return err
	}
	e.learned, err = makePool(e.seed+learnSeed, trace.Mixed, e.pace.lessons, scale)
	return err
}

// measureAll measures phase after phase.
func (e *evaluate) measureAll(ctx context.Context) (failed error) {
	if err := e.openCluster(ctx); err != nil {
		return err
	}
	for i := range e.plan {
		// Phases that were quick leave time for more blocks, slow ones for fewer.
		fitted := e.plan[i:].by(e.gaps).fit(e.left())
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
			err = fmt.Errorf("%s%s: %w", fitted[0].name, fitted[0].drawn(), err)
		}
		if ctx.Err() != nil {
			return err
		}
		if err != nil {
			// Another phase may do better.
			e.say("gave up a phase: %v", err)
			e.data.Unmeasured = append(e.data.Unmeasured, err.Error())
			failed = errors.Join(failed, err)
		}
	}
	return failed
}

// openCluster installs Libra on the cluster, and measures the node's capacity.
func (e *evaluate) openCluster(ctx context.Context) error {
	e.say("removing what an earlier evaluation or demo left")
	if err := errors.Join(e.removeFour(ctx), e.clear(ctx)); err != nil {
		return err
	}
	e.say("installing Libra: applying %s, and its activator", libraManifests)
	steps := []func(context.Context) error{
		e.installLibra,
		e.installActivator,
		func(ctx context.Context) error { return e.setParts(ctx, parts{}) },
		e.forget,
	}
	if e.perfect() {
		steps = append(steps, e.startOracle)
	}
	for _, step := range steps {
		if err := step(ctx); err != nil {
			return err
		}
	}
	e.data = evaluation.Data{Commit: e.commit, Seed: e.seed}
	if e.ablations {
		e.data.Unmeasured = []string{escraLike}
	} else if e.uses(evaluation.Owners) {
		e.data.Unmeasured = []string{"requests with 40 pods under \"Libra, owners\", \"no limits, weighted\" and \"VPA in place\": the node has no room for their pods beside the others."}
	}
	if err := e.describeMachine(ctx); err != nil {
		return err
	}
	return e.calibrate(ctx)
}

// describeMachine records what the evaluation runs on. It does not read the cores of a
// cluster other than the box.
func (e *evaluate) describeMachine(ctx context.Context) error {
	about, err := e.machine(ctx)
	if err != nil || !e.boxed() {
		e.data.Machine = evaluation.Machine{About: about}
		return err
	}
	var node corev1.NodeList
	if err := e.kubectl.get(ctx, &node, "nodes"); err != nil {
		return err
	}
	e.capacity.cores = coresOf(node.Items)
	e.data.Machine = evaluation.Machine{About: about, Cores: e.capacity.cores}
	return nil
}

// coresOf returns how many cores this machine has. With several nodes, the control node
// has all of them, and each worker has some.
func coresOf(nodes []corev1.Node) int {
	var most int64
	for _, n := range nodes {
		most = max(most, n.Status.Capacity.Cpu().Value())
	}
	return int(most)
}

// calibrate installs the functions of an arm without limits, and measures the capacity
// there.
func (e *evaluate) calibrate(ctx context.Context) error {
	a := armNamed(evaluation.NoLimits)
	own := e.placeFor(phase{name: phaseTen}, a, 1)
	e.say("installing the functions of the arm \"%s\" in the namespace %s", a.Title, own.namespace)
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
	return e.measureCapacity(ctx, own)
}

// measureCapacity runs each input alone, at a place without limits, and measures what a
// request costs there beside its function.
func (e *evaluate) measureCapacity(ctx context.Context, own *demo) error {
	e.say("running each of the %d inputs of each function alone, %d times", len(e.pool[trace.Mixed[0]]), aloneRuns)
	var err error
	if e.data.Alone, err = e.measureAlone(ctx, own, e.pool, trace.Mixed); err != nil {
		return err
	}
	if e.capacity.platform, err = measurePlatform(ctx, e.pace.platform); err != nil {
		return err
	}
	e.capacity.function, e.capacity.path = meanCPU(e.data.Alone, trace.Mixed), guessedPath
	if err := e.capacity.check(); err != nil {
		return err
	}
	path := time.Duration(math.MaxInt64)
	for look := range pathLooks {
		took, err := e.measurePath(ctx, own, look)
		if err != nil {
			return err
		}
		path = min(path, took)
	}
	e.capacity.path = path
	e.data.Platform, e.data.Machine.RequestMilliseconds = e.capacity.platform, milliseconds(e.capacity.path)
	e.say("the node uses %.2f of %d cores without requests; on average a function takes %.1f ms of CPU for a request that runs alone, and at a load of %d %% the node takes %.1f ms more than that for each; a load of 90 %% is %.1f requests a second",
		e.capacity.platform, e.capacity.cores, milliseconds(e.capacity.function), calibrateLoad, milliseconds(e.capacity.path), e.capacity.perSecond(loadHigh))
	return nil
}

// measurePath returns the CPU time that a request costs beside its function, from requests
// to a place without limits.
func (e *evaluate) measurePath(ctx context.Context, own *demo, look int) (time.Duration, error) {
	alone := map[string]map[int]time.Duration{}
	for _, r := range e.data.Alone {
		if alone[r.Function] == nil {
			alone[r.Function] = map[int]time.Duration{}
		}
		alone[r.Function][r.Input] = time.Duration(r.CPUMilliseconds * float64(time.Millisecond))
	}
	schedule := arrivals(seedOf(e.seed+learnSeed, "calibrate", look), e.capacity.perSecond(calibrateLoad), e.pace.calibrate, callees{trace.Mixed, 1, len(e.pool[trace.Mixed[0]])})
	messages := make([]message, len(schedule))
	var functions time.Duration
	for i, a := range schedule {
		messages[i] = message{due: a.at, host: own.targets.hosts[a.function], input: e.pool[a.function][a.input]}
		functions += alone[a.function][a.input]
	}
	sender := own.newSender()
	defer sender.http.CloseIdleConnections()
	before, err := readNodeCPU()
	if err != nil {
		return 0, err
	}
	began := time.Now()
	if _, err := sender.replay(ctx, messages); err != nil {
		return 0, err
	}
	after, err := readNodeCPU()
	if err != nil {
		return 0, err
	}
	return e.capacity.pathOf(after.busy-before.busy, time.Since(began), len(messages), functions)
}
