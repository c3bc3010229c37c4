// Package agent is Libra's reflex on a node. It sets the limits in the cgroups of the
// node's functions to what the pool's state says, gives a donor back what it lends as
// soon as its use comes near its lowered limit, and restores every container to what it
// is owed when Redis is lost or the agent stops. It tells the pool what the node can
// lend, and the predictor what each invocation really used.
//
//	sampling and observations   observe.go, container.go, ring.go, thinning.go, measure.go
//	pods of the node            tracker.go, lending.go, introduce.go, pods.go
//	planning writes             plan.go
//	writing limits              reflex.go, act.go, entry.go, entries.go
//	loans that are too small    wanting.go
//	what was in force           account.go, report.go, metrics.go
//	the safeguard               safeguard.go
//	requests in flight          flights.go, fly.go, activity.go, pool_clock.go
//	CPU weights of pods         weights.go, weigh.go, weights_owed.go
//	containers short of memory  memory.go, guard.go
//	cold memory of idle pods    reclaim.go
//	ceilings and bystanders     clamp.go, clamps.go, clamps_journal.go, cap.go, participants.go
//	what is owed, on disk       journal.go
//	repeated log lines          repeats.go
//	Redis                       link.go, watch.go, heartbeat.go, node.go
package agent

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	logf "sigs.k8s.io/controller-runtime/pkg/log"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/report"
	"libra.dev/libra/resizer/backoff"
	"libra.dev/libra/resizer/cgroup"
	"libra.dev/libra/resizer/pressure"
)

// instrumentation is what the agent's traces and metrics come from.
const instrumentation = "libra.dev/libra/resizer/agent"

const (
	// stalled is how long an agent may do nothing before it is restarted, and absent how long
	// before others stop relying on it: then the controller has the kubelet rewrite what the
	// agent may have left behind.
	stalled = 10 * time.Second
	absent  = 2 * beatEvery

	// heldPatience is how long to wait for another agent that holds the journal: it may be
	// the one that an update replaces.
	heldPatience = 30 * time.Second
	// stopTime is how long the agent tries to give everything back when it stops. The
	// grace period of its pod is longer.
	stopTime = 3 * time.Second
)

// Settings are what a user can set.
type Settings struct {
	Node       string // name of the node
	CgroupRoot string // where the host's cgroups are mounted
	JournalDir string // on the host, so that it outlives the pod
	ProcRoot   string // where a proc file system of the host's PIDs and CPUs is mounted

	SampleLowered time.Duration // how often a lowered container is read: 1 to 25 ms
	// Unguarded, for experiments, turns the safeguard off: however much a donor uses or is
	// throttled, it gets nothing back before its loan ends (LIBRA-NS, section 8.3).
	Unguarded bool
	// Unclamped, for experiments, lets functions use what they can up to their ceilings,
	// whether or not bystanders wait.
	Unclamped bool
	// Unweighted, for experiments, leaves every pod the weight that the kubelet gave it,
	// whatever is in flight.
	Unweighted bool
}

// Validate returns one error that names every setting that is out of range.
func (s Settings) Validate() error {
	var errs []error
	if s.Node == "" {
		errs = append(errs, errors.New("no node name: set NODE_NAME to spec.nodeName of the pod, or give --node"))
	}
	if _, err := os.Stat(s.CgroupRoot); err != nil {
		errs = append(errs, fmt.Errorf("--cgroup-root must be the host's cgroups, mounted read-write: %w", err))
	}
	if _, err := os.Stat(filepath.Join(s.ProcRoot, "stat")); err != nil {
		errs = append(errs, fmt.Errorf("--proc-root must be a proc file system: %w", err))
	}
	if !filepath.IsAbs(s.JournalDir) {
		errs = append(errs, fmt.Errorf("--journal-dir is %q: it must be an absolute path", s.JournalDir))
	}
	if s.SampleLowered < time.Millisecond || s.SampleLowered > sampleEvery {
		errs = append(errs, fmt.Errorf("--sample-lowered is %v: it must be from 1ms to %v", s.SampleLowered, sampleEvery))
	}
	return errors.Join(errs...)
}

// Redis is what the agent needs from Redis.
type Redis struct {
	Pool     Pool
	Watcher  Watcher
	Observer Observer
}

// Agent samples containers, sets their limits, and observes invocations.
type Agent struct {
	clock      clock.WithTicker
	settings   Settings
	watcher    Watcher
	observer   Observer
	containers *containers
	queue      chan api.Observation
	metrics    *metrics
	sampledAt  atomic.Pointer[time.Time]
	counted    int // containers, as last recorded in the metric; for sampleAll alone
	link       *link
	reflex     *reflex
	sender     *report.Sender // nil: nothing is reported

	participants *participants
}

// New returns an Agent, and the Tracker that tells it which containers there are. lending says how pods
// take part. Their Revisions, which are read through revisions, say what they are owed.
func New(clk clock.WithTicker, kube, revisions client.Reader, lending Lending, settings Settings, redis Redis,
	meters metric.MeterProvider, tracers trace.TracerProvider) (*Agent, *Tracker, error) {
	m, err := newMetrics(meters)
	if err != nil {
		return nil, nil, fmt.Errorf("making the agent's metrics: %w", err)
	}
	a := &Agent{
		clock:      clk,
		settings:   settings,
		watcher:    redis.Watcher,
		observer:   redis.Observer,
		containers: newContainers(),
		queue:      make(chan api.Observation, queueLength),
		metrics:    m,
		link:       newLink(clk, redis.Pool, settings.Node, m),
	}
	a.participants = newParticipants()
	pods := newPodInfos()
	a.reflex = &reflex{
		clock:    clk,
		metrics:  m,
		tally:    &report.Tally{},
		tracer:   tracers.Tracer(instrumentation),
		settings: settings,
		agent:    rand.Text(),
		open:     func(id string) (cgroup.Container, error) { return cgroup.Open(settings.CgroupRoot, id) },
		openPod:  cgroup.OpenPodWeight,
		heard:    make(chan heard, heardLength),
		awake:    make(chan struct{}, 1),
		crowded:  make(chan struct{}, 1),
		pods:     pods,
		sampled:  a.containers,
		link:     a.link,
		most:     map[string]int64{},

		repeats:     repeats{},
		sharesWrong: map[group]exceeding{},
	}
	a.reflex.clamps = &clamps{
		clock: clk, metrics: m, tally: a.reflex.tally, open: a.reflex.open, specOf: a.reflex.specOf, off: settings.Unclamped,
		waits: pressure.New(settings.CgroupRoot, settings.ProcRoot, a.participants.has),
	}
	now := clk.Now()
	a.sampledAt.Store(&now)
	a.reflex.roundAt.Store(&now)
	return a, &Tracker{
		clock: clk, kube: kube, cgroupRoot: settings.CgroupRoot, containers: a.containers, pods: pods, participants: a.participants,
		lending: lending, allocations: &allocations{revisions: revisions, byUID: map[types.UID]api.Resources{}},
	}, nil
}

// Start runs the agent until ctx ends, and then restores every container to what it is
// owed. It implements manager.Runnable.
func (a *Agent) Start(ctx context.Context) error {
	if err := a.lockJournal(ctx); err != nil {
		return err
	}
	works := []func(context.Context){a.sampleAll, a.watch, a.append, a.link.run, a.react, a.reclaimAll}
	if a.sender != nil {
		works = append(works, a.sender.Run)
	}
	var group sync.WaitGroup
	for _, f := range works {
		group.Go(func() { f(ctx) })
	}
	group.Wait()
	return a.reflex.journal.close()
}

// react sets limits until ctx ends, and then gives everything back.
func (a *Agent) react(ctx context.Context) {
	a.reflex.run(ctx)
	stopCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTime)
	defer cancel()
	a.reflex.stop(stopCtx)
}

// lockJournal opens the journal. It waits up to heldPatience for another agent of the node to end.
func (a *Agent) lockJournal(ctx context.Context) error {
	deadline := a.clock.Now().Add(heldPatience)
	retry := backoff.Delay{Min: backoff.Min, Max: time.Second}
	for {
		var err error
		if a.reflex.journal, err = openJournal(a.settings.JournalDir, logf.FromContext(ctx), a.metrics.journalErrors); err == nil {
			return nil
		}
		if !errors.Is(err, errHeld) || !a.clock.Now().Before(deadline) {
			return err
		}
		if !retry.Failing() {
			logf.FromContext(ctx).Info("waiting for another agent of this node to end", "journal", a.settings.JournalDir)
		}
		backoff.Pause(ctx, a.clock, retry.Next())
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
}

// Healthy is a probe: it fails when the agent has stopped sampling or setting limits.
func (a *Agent) Healthy(*http.Request) error {
	if since := a.clock.Since(*a.sampledAt.Load()); since > stalled {
		return fmt.Errorf("nothing was sampled for %v; a round is due within about %v", since, sleepEvery)
	}
	if since := a.clock.Since(*a.reflex.roundAt.Load()); since > stalled {
		return fmt.Errorf("no limits were checked for %v; a round is due every %v", since, beatEvery)
	}
	return nil
}

// Ready is a probe: it fails while the agent does not keep the node's limits, because another
// agent holds the journal or because its rounds are late.
func (a *Agent) Ready(*http.Request) error {
	if !a.reflex.began.Load() {
		return errors.New("no limits were checked yet: another agent of the node may hold the journal")
	}
	if since := a.clock.Since(*a.reflex.roundAt.Load()); since > absent {
		return fmt.Errorf("no limits were checked for %v; a round is due every %v", since, beatEvery)
	}
	return nil
}
