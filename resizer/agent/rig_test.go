package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"go.opentelemetry.io/otel/attribute"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	clocktesting "k8s.io/utils/clock/testing"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/pool"
	"libra.dev/libra/pkg/pool/pooltest"
	"libra.dev/libra/resizer/cgroup"
)

const node = "n1"

// kernelContainer is a cgroup as the kernel keeps it, whoever has it open.
type kernelContainer struct {
	cpuReads int // of its CPU alone
	cgroup.Reading
	gone   bool
	broken bool // writes fail
	// endsAtWrite says that it ends as soon as its limit is written.
	endsAtWrite bool
	writes      int
	guard       int64 // bytes of memory
	pod         *kernelPod
}

// kernelPod is the cgroup of a pod, with the weight that the kernel keeps.
type kernelPod struct {
	dir     string
	weight  int64
	kubelet int64 // what the kubelet wrote last
	gone    bool
	broken  bool // writes fail
	writes  int
}

// podHandle is an open kernelPod.
type podHandle struct {
	*kernelPod
	closed bool
}

func (h *podHandle) check() error {
	switch {
	case h.closed:
		return errors.New("used after it was closed")
	case h.gone:
		return syscall.ENODEV
	}
	return nil
}

func (h *podHandle) Dir() string          { return h.dir }
func (h *podHandle) Least() int64         { return v1Weights.least }
func (h *podHandle) Most() int64          { return v1Weights.most }
func (h *podHandle) Read() (int64, error) { return h.weight, h.check() }

func (h *podHandle) Set(weight int64) error {
	if err := h.check(); err != nil {
		return err
	}
	if h.broken {
		return errors.New("broken")
	}
	if weight < h.Least() || weight > h.Most() {
		return syscall.EINVAL
	}
	h.writes++
	h.weight = weight
	return nil
}

func (h *podHandle) Close() error {
	if h.closed {
		return errors.New("closed twice")
	}
	h.closed = true
	return nil
}

// handle is an open kernelContainer.
type handle struct {
	*kernelContainer
	closed bool
}

func (h *handle) check() error {
	switch {
	case h.closed:
		return errors.New("used after it was closed")
	case h.gone:
		return syscall.ENODEV
	}
	return nil
}

func (h *handle) Read() (cgroup.Reading, error) { return h.Reading, h.check() }

func (h *handle) SetCPU(milli int64) error {
	h.gone = h.gone || h.endsAtWrite
	if err := h.writable(); err != nil {
		return err
	}
	h.writes++
	h.Limit.CPUMilli = milli
	return nil
}

func (h *handle) writable() error {
	if err := h.check(); err != nil {
		return err
	}
	if h.broken {
		return errors.New("broken")
	}
	return nil
}

func (h *handle) Attainable(milli int64) int64     { return milli }
func (h *handle) PodLimit() (api.Resources, error) { return api.Resources{}, h.check() }
func (h *handle) CPU() (time.Duration, error) {
	h.cpuReads++
	return h.Reading.CPU, h.check()
}
func (h *handle) CPULimit() (int64, error)         { return h.Limit.CPUMilli, h.check() }
func (h *handle) ReadUse() (cgroup.Reading, error) { return h.Read() }
func (h *handle) PodWeight() (cgroup.PodWeight, error) {
	return &podHandle{kernelPod: h.pod}, h.check()
}
func (h *handle) GuardMemory(bytes int64) error {
	if err := h.writable(); err != nil {
		return err
	}
	h.guard = bytes
	return nil
}
func (h *handle) MemoryGuard() (int64, error)          { return h.guard, h.check() }
func (h *handle) Reclaimer() (cgroup.Reclaimer, error) { return nil, errors.ErrUnsupported }
func (h *handle) Close() error                         { h.closed = true; return nil }

// fatal is the part that testing and rapid tests have in common.
type fatal interface {
	Helper()
	Fatalf(format string, args ...any)
}

// rig is a reflex that a test takes through its rounds, with a real pool and a fake
// kernel.
type rig struct {
	fatal
	ctx     context.Context
	clock   *clocktesting.FakeClock
	pool    *pooltest.Memory
	kernel  map[string]*kernelContainer // by container id
	cgroups map[string]*kernelPod       // by pod
	dir     string
	metrics *sdkmetric.ManualReader
	spans   *tracetest.SpanRecorder
	told    pool.Heartbeat
	opening error // what opening a cgroup fails with
	opens   int   // of containers
	// safeguardPercent applies to pods from now on; 0 is not known.
	safeguardPercent int64
	*reflex
}

// named returns the pods in the last heartbeat.
func (g *rig) named() map[string]bool {
	pods := map[string]bool{}
	for pod := range g.told.Pods {
		pods[pod] = true
	}
	return pods
}

func newRig(t fatal, ctx context.Context, dir string) *rig {
	g := &rig{fatal: t, ctx: ctx, clock: clocktesting.NewFakeClock(epoch), kernel: map[string]*kernelContainer{}, cgroups: map[string]*kernelPod{}, dir: dir}
	g.pool = pooltest.NewMemory(g.clock)
	g.start()
	return g
}

// start starts an agent, like another process, without ending the one before it.
func (g *rig) start() {
	g.Helper()
	if g.reflex != nil {
		g.journal.close() //nolint:errcheck // as the kernel does for a process that ends
	}
	g.metrics, g.spans = sdkmetric.NewManualReader(), tracetest.NewSpanRecorder()
	tracers := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(g.spans))
	m, err := newMetrics(sdkmetric.NewMeterProvider(sdkmetric.WithReader(g.metrics)))
	if err != nil {
		g.Fatalf("%v", err)
	}
	j, err := openJournal(g.dir, logr.Discard(), m.journalErrors)
	if err != nil {
		g.Fatalf("%v", err)
	}
	settings := Settings{CgroupRoot: "/cgroup", ProcRoot: "/proc", SampleLowered: 10 * time.Millisecond}
	if g.reflex != nil {
		settings = g.settings
	}
	g.reflex = &reflex{
		clock: g.clock, log: logr.Discard(), repeats: repeats{}, metrics: m, tracer: tracers.Tracer(""), agent: fmt.Sprint(g.clock.Now().UnixNano()), journal: j,
		settings: settings,
		open: func(id string) (cgroup.Container, error) {
			g.opens++
			if g.opening != nil {
				return nil, g.opening
			}
			if c, ok := g.kernel[id]; ok && !c.gone {
				return &handle{kernelContainer: c}, nil
			}
			return nil, cgroup.ErrNotFound
		},
		openPod: func(dir string) (cgroup.PodWeight, error) {
			for _, p := range g.cgroups {
				if p.dir == dir && !p.gone {
					return &podHandle{kernelPod: p}, nil
				}
			}
			return nil, cgroup.ErrNotFound
		},
		pods: newPodInfos(), sampled: newContainers(), most: map[string]int64{},
		awake: make(chan struct{}, 1), sharesWrong: map[group]exceeding{},
		link: newLink(g.clock, g.pool, node, m),
	}
	g.recall(g.ctx)
}

var userLimits = api.Resources{CPUMilli: 500, MemoryBytes: 512 * mib}

// run makes a pod's container run, with the limits in its spec.
func (g *rig) run(pod, container string, limits api.Resources) *kernelContainer {
	c, ok := g.kernel[container]
	if !ok {
		c = &kernelContainer{Reading: cgroup.Reading{Memory: 50 * mib, Limit: limits}}
		g.kernel[container] = c
	}
	if g.cgroups[pod] == nil {
		g.cgroups[pod] = &kernelPod{dir: "/cgroup/cpu/burstable/pod-" + strings.ReplaceAll(pod, "/", "-"), weight: 100, kubelet: 100}
	}
	c.pod = g.cgroups[pod]
	g.pods.set(pod, podInfo{function: "default/f-00001", container: container, limits: limits, allocation: userLimits, safeguardPercent: g.safeguardPercent, cgroup: &handle{kernelContainer: c}})
	g.follow(g.ctx)
	g.round(g.ctx)
	return c
}

// remove makes the pod unknown to the cluster.
func (g *rig) remove(pod string) {
	g.pods.remove(pod)
	g.follow(g.ctx)
	g.round(g.ctx)
}

// exchange does the link's work: heartbeats, strikes and a read.
func (g *rig) exchange() {
	g.Helper()
	if err := g.link.revoke(g.ctx); err != nil {
		g.Fatalf("%v", err)
	}
	select {
	case hb := <-g.link.beats:
		// The test machine may be busy; node_test covers what it has idle.
		hb.Lendable = api.Resources{CPUMilli: 1 << 30, MemoryBytes: 1 << 40}
		g.told = hb
		if _, err := g.pool.Heartbeat(g.ctx, node, hb); err != nil {
			g.Fatalf("%v", err)
		}
	default:
	}
	if err := g.link.read(g.ctx); err != nil {
		g.Fatalf("%v", err)
	}
	g.learn(<-g.link.states)
	g.round(g.ctx)
}

// pass lets time pass in rounds that hear nothing from the pool.
func (g *rig) pass(d time.Duration) {
	for until := g.clock.Now().Add(d); g.clock.Now().Before(until); {
		g.clock.Step(10 * time.Millisecond)
		g.round(g.ctx)
	}
}

// rest lets seconds pass in which the agent and the pool hear of each other.
func (g *rig) rest(d time.Duration) {
	g.Helper()
	for range int(d / time.Second) {
		g.pass(time.Second)
		g.exchange()
	}
}

// open makes the pool open, for pods that rest.
func (g *rig) openPool() {
	g.Helper()
	g.exchange()
	g.clock.Step(beatEvery)
	g.round(g.ctx)
	g.exchange()
	rested := g.told
	rested.Rested, rested.RestedAt = slices.Collect(maps.Keys(rested.Pods)), g.clock.Now()
	if _, err := g.pool.Heartbeat(g.ctx, node, rested); err != nil {
		g.Fatalf("%v", err)
	}
	if s, err := g.pool.Read(g.ctx, node); err != nil || !s.Open {
		g.Fatalf("the pool is not open (%v): %+v", err, s)
	}
}

func (g *rig) begin(id, pod string, surplus, want api.Resources) {
	g.Helper()
	_, err := g.pool.Begin(g.ctx, node, pool.Invocation{
		ID: id, Function: "default/f-00001", Pod: pod, Domain: "default", Owner: "activator",
		Duration: time.Minute, Allocation: userLimits, Surplus: surplus, Want: want,
	})
	if err != nil {
		g.Fatalf("%v", err)
	}
}

// beginIdling begins an invocation whose pod lends 400m when it has ended.
func (g *rig) beginIdling(id, pod string) {
	g.Helper()
	_, err := g.pool.Begin(g.ctx, node, pool.Invocation{
		ID: id, Function: "default/f-00001", Pod: pod, Domain: "default", Owner: "activator",
		Duration: time.Minute, Allocation: userLimits, IdleCPUMilli: 400,
	})
	if err != nil {
		g.Fatalf("%v", err)
	}
}

func (g *rig) end(id string) {
	g.Helper()
	if _, err := g.pool.End(g.ctx, node, pool.Ending{ID: id}); err != nil {
		g.Fatalf("%v", err)
	}
}

// want compares the CPU limit of a container. The memory limit is never the agent's to
// set.
func (g *rig) want(container string, milli int64) {
	g.Helper()
	if got := g.kernel[container].Limit; got != (api.Resources{CPUMilli: milli, MemoryBytes: userLimits.MemoryBytes}) {
		g.Fatalf("limits of %s are %v, want %dm and as much memory as ever", container, got, milli)
	}
}

// debts returns the containers that the journal names.
func (g *rig) debts() []string {
	g.Helper()
	files, err := filepath.Glob(filepath.Join(g.dir, "*"+limitSuffix))
	if err != nil {
		g.Fatalf("%v", err)
	}
	for i, f := range files {
		files[i] = strings.TrimSuffix(filepath.Base(f), limitSuffix)
	}
	return files
}

// instrument returns what an instrument has recorded, once for each scope that has one of that name.
func (g *rig) instrument(name string) (all []metricdata.Aggregation) {
	g.Helper()
	var data metricdata.ResourceMetrics
	if err := g.metrics.Collect(g.ctx, &data); err != nil {
		g.Fatalf("%v", err)
	}
	for _, scope := range data.ScopeMetrics {
		for _, m := range scope.Metrics {
			if m.Name == name {
				all = append(all, m.Data)
			}
		}
	}
	return all
}

// counted returns a counter's sum over the data points with an attribute value, if one is
// given.
func (g *rig) counted(name string, value string) (sum int64) {
	g.Helper()
	for _, data := range g.instrument(name) {
		for _, p := range data.(metricdata.Sum[int64]).DataPoints {
			if value == "" || slices.ContainsFunc(p.Attributes.ToSlice(), func(a attribute.KeyValue) bool { return a.Value.AsString() == value }) {
				sum += p.Value
			}
		}
	}
	return sum
}

// countedSeconds returns the sum of a counter of time.
func (g *rig) countedSeconds(name string) (sum float64) {
	g.Helper()
	for _, data := range g.instrument(name) {
		for _, p := range data.(metricdata.Sum[float64]).DataPoints {
			sum += p.Value
		}
	}
	return sum
}

// recorded returns how often a histogram of time was recorded.
func (g *rig) recorded(name string) (count uint64) {
	g.Helper()
	for _, data := range g.instrument(name) {
		for _, p := range data.(metricdata.Histogram[float64]).DataPoints {
			count += p.Count
		}
	}
	return count
}

// lend makes d lend 200m and 100 MiB to b.
func (g *rig) lend() {
	g.Helper()
	g.run("default/d", "donor", userLimits)
	g.run("default/b", "borrower", userLimits)
	g.openPool()
	volume := api.Resources{CPUMilli: 200, MemoryBytes: 100 * mib}
	g.begin("1", "default/d", volume, api.Resources{})
	g.begin("2", "default/b", api.Resources{}, volume)
	g.exchange()
	g.want("donor", 300)
	g.want("borrower", 700)
}

func newTestRig(t *testing.T) *rig {
	g := newRig(t, t.Context(), t.TempDir())
	t.Cleanup(func() { g.journal.close() }) //nolint:errcheck // the test ends
	return g
}
