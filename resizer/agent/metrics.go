package agent

import (
	"context"
	"errors"
	"strconv"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

const (
	resultKey    = attribute.Key("result")
	operationKey = attribute.Key("operation") // ask, heartbeat, observe, read, safeguard, watch
	resourceKey  = attribute.Key("resource")  // cpu, or weight for rewrites
	directionKey = attribute.Key("direction") // restore, lower, raise
	causeKey     = attribute.Key("cause")
	functionKey  = attribute.Key("function") // namespace/revision
	ruleKey      = attribute.Key("rule")
	levelKey     = attribute.Key("level") // 0 (done soonest) to 3
)

// Results of observing an invocation that ended.
const (
	resultObserved   = "observed"
	resultNotAlone   = "not-alone"   // others ran in its pod
	resultUnknownPod = "unknown-pod" // not sampled
	resultUncovered  = "uncovered"   // the samples do not cover it
	resultEnough     = "enough"      // others of its container are observed
	resultLate       = "late"        // Redis was away when it ended
	resultUnreadable = "unreadable"  // of an unknown version, or broken
	resultDropped    = "dropped"     // too many wait to be appended
)

// Results of writing a limit or a weight.
const (
	resultWritten = "written"
	resultGone    = "gone" // the container has ended
	resultFailed  = "failed"
)

// Causes of a restore.
const (
	causeEnded     = "ended"             // its loans ended
	causeSafeguard = "safeguard"         // use came near its lowered limit
	causeRedisLost = "redis-lost"        // the pool could not be read for the length of a lease
	causeStart     = "start"             // the journal of an earlier agent named it
	causeStop      = "stop"              // the agent stops
	causeChanged   = "container-changed" // it is another container, or its pod opted out
)

// Rules whose violations are counted.
const (
	ruleConservation = "conservation" // more CPU in force than the node's pods are owed
	ruleDonorWhole   = "donor-whole"  // a limit that the safeguard restored is not in force
	ruleShares       = "shares"       // weights add up to more than the kubelet gave, or one is too small
)

// The resource that was rewritten: a CPU limit, or a pod's CPU weight, which is not a limit.
var (
	ofCPU    = metric.WithAttributes(resourceKey.String("cpu"))
	ofWeight = metric.WithAttributes(resourceKey.String("weight"))
)

type metrics struct {
	invocations  metric.Int64Counter
	containers   metric.Int64Gauge
	sampleErrors metric.Int64Counter
	redisErrors  metric.Int64Counter

	writes        metric.Int64Counter
	restores      metric.Int64Counter
	rewrites      metric.Int64Counter
	safeguards    metric.Int64Counter
	reaction      metric.Float64Histogram
	wake          metric.Float64Histogram
	weights       metric.Int64Counter
	weightWake    metric.Float64Histogram
	weightLevels  metric.Int64Gauge
	exceeded      metric.Float64Histogram
	below         metric.Float64Counter
	lentCPU       metric.Float64Counter
	borrowedCPU   metric.Float64Counter
	borrowedMem   metric.Float64Counter
	availableCPU  metric.Float64Counter
	availableMem  metric.Float64Counter
	lendableCPU   metric.Int64Gauge
	lendableMem   metric.Int64Gauge
	pins          metric.Int64Gauge
	rescues       metric.Int64Counter
	asks          metric.Int64Counter
	reclaims      metric.Int64Counter
	reclaimed     metric.Int64Counter
	open          metric.Int64Gauge
	owing         metric.Int64Gauge
	journalErrors metric.Int64Counter
	violations    metric.Int64Counter

	clamped      metric.Float64Counter
	waited       metric.Float64Counter
	waitedBeyond metric.Float64Counter
	// credits are what functions have left. An observable gauge reads them, because any other would
	// never forget a function.
	credits atomic.Pointer[map[string]time.Duration]
}

func newMetrics(provider metric.MeterProvider) (*metrics, error) {
	meter := provider.Meter(instrumentation)
	m := &metrics{}
	var errs []error
	count := func(name, description string) metric.Int64Counter {
		c, err := meter.Int64Counter(name, metric.WithDescription(description))
		errs = append(errs, err)
		return c
	}
	sum := func(name, unit, description string) metric.Float64Counter {
		c, err := meter.Float64Counter(name, metric.WithUnit(unit), metric.WithDescription(description))
		errs = append(errs, err)
		return c
	}
	gauge := func(name, unit, description string) metric.Int64Gauge {
		g, err := meter.Int64Gauge(name, metric.WithUnit(unit), metric.WithDescription(description))
		errs = append(errs, err)
		return g
	}
	times := func(name, description string) metric.Float64Histogram {
		h, err := meter.Float64Histogram(name, metric.WithUnit("s"), metric.WithDescription(description),
			metric.WithExplicitBucketBoundaries(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1, 5))
		errs = append(errs, err)
		return h
	}
	m.invocations = count("libra.agent.invocations", "Invocations that ended on the node, by `result` of observing them: observed, enough, not-alone, unknown-pod, uncovered, late, unreadable or dropped")
	m.containers = gauge("libra.agent.containers", "{container}", "Containers being sampled")
	m.sampleErrors = count("libra.agent.sample.errors", "Failed reads of cgroups and of /proc")
	m.redisErrors = count("libra.agent.redis.errors", "Failed Redis calls, by `operation`")

	m.writes = count("libra.agent.writes", "CPU limits written to cgroups, by `direction` (restore, lower, raise) and `result` (written, gone, failed)")
	m.restores = count("libra.agent.restores", "CPU limits raised to what the container is owed, by `cause`: ended, safeguard, redis-lost, start, stop or container-changed")
	m.rewrites = count("libra.agent.rewrites", "CPU limits and pod weights found changed by something else, such as the kubelet at a resize, by `resource`: cpu or weight")
	m.safeguards = count("libra.agent.safeguards", "Donors restored because their use came near a lowered limit, by `function`")
	m.reaction = times("libra.agent.safeguard.reaction", "Time from the sample that crossed the threshold until the limit is restored")
	m.wake = times("libra.agent.wake", "Time from asking for the node's state until the resulting limits are written")
	m.weights = count("libra.agent.weights", "CPU weights of pods written to cgroups, by `direction` (restore, lower, raise) and `result` (written, gone, failed)")
	m.weightWake = times("libra.agent.weights.wake", "Time from an invocation's Begin, by the pool's clock, until the resulting weights are written")
	m.weightLevels = gauge("libra.agent.weights.pods", "{pod}", "Pods in flight whose weight the agent sets, by `level` of CPU time until a request in them is done: 0 is under 25 ms, 1 under 100, 2 under 400, 3 more")
	m.exceeded = times("libra.agent.exceeded", "Time that more CPU was in force than the node's pods are owed, until borrowers were shrunk")
	m.below = sum("libra.agent.below.owed", "s", "Time that containers had less CPU in force than their user allocation minus what they lend, by `function`")
	m.lentCPU = sum("libra.agent.lent.cpu", "{core_second}", "CPU in force below user allocations, in core seconds")
	m.borrowedCPU = sum("libra.agent.borrowed.cpu", "{core_second}", "CPU in force above user allocations, or under source node CPU used above them, in core seconds")
	m.borrowedMem = sum("libra.agent.borrowed.memory", "{byte_second}", "Memory in force, or asked for, above user allocations, in byte seconds")
	m.availableCPU = sum("libra.agent.available.cpu", "{core_second}", "CPU in the pool that nobody borrowed, in core seconds")
	m.availableMem = sum("libra.agent.available.memory", "{byte_second}", "Memory in the pool that nobody borrowed, in byte seconds")
	m.lendableCPU = gauge("libra.agent.lendable.cpu", "m{core}", "Maximum CPU that may be on loan on the node, in milli CPU")
	m.lendableMem = gauge("libra.agent.lendable.memory", "By", "Maximum memory that may be on loan on the node")
	m.pins = gauge("libra.agent.pins", "By", "Memory by which limits are above user allocations without a loan: it is in use, or was a moment ago")
	m.reclaims = count("libra.agent.reclaims", "Attempts to reclaim memory from idle containers, by `result`: taken, less (than half of what was asked for), pressure (the container had waited for memory, or read back what was taken) or failed")
	m.asks = count("libra.agent.asks", "Times that a container's CPU loan was asked to grow or shrink, based on its use")
	m.rescues = count("libra.agent.rescues", "Containers that need more memory than their limits, by `function` and `result`: asked, no-room (not available on the node) or unmet (not given within ten seconds)")
	m.open = gauge("libra.agent.open", "", "1 while the node's pool is open, else 0")
	m.owing = gauge("libra.agent.owing", "{container}", "Containers named in the journal")
	m.journalErrors = count("libra.agent.journal.errors", "Failed reads and writes of the journal")
	m.clamped = sum("libra.agent.clamped", "s", "Time that containers were held to their user allocations because pods that did not opt in waited for CPU, by `function`")
	m.waited = sum("libra.agent.bystanders.waited", "s", "Time that pods that did not opt in waited for CPU, measured while functions used more than their allocations")
	m.waitedBeyond = sum("libra.agent.bystanders.waited.beyond", "s", "Time that pods that did not opt in waited for CPU beyond what is tolerated for each pod")
	var err error
	_, err = meter.Float64ObservableGauge("libra.agent.credits", metric.WithUnit("{core_second}"),
		metric.WithDescription("CPU that a function may still use above its allocation while others wait, for its container with the least, by `function`"),
		metric.WithFloat64Callback(m.observeCredits))
	errs = append(errs, err)
	m.reclaimed, err = meter.Int64Counter("libra.agent.reclaimed", metric.WithUnit("By"),
		metric.WithDescription("Cold memory reclaimed from idle containers, by `function`"))
	errs = append(errs, err)
	violations, err := meter.Int64Counter("libra.agent.invariant.violations",
		metric.WithDescription("Invariant violations seen in readings, by `rule`: conservation, donor-whole or shares. One that lasts is counted every minute. Should always be 0"))
	m.violations = violations
	if err := errors.Join(append(errs, err)...); err != nil {
		return nil, err
	}
	// An alert sees a counter rise only if the counter was there before.
	for _, rule := range []string{ruleConservation, ruleDonorWhole, ruleShares} {
		m.violations.Add(context.Background(), 0, metric.WithAttributes(ruleKey.String(rule)))
	}
	m.journalErrors.Add(context.Background(), 0)
	m.waitedBeyond.Add(context.Background(), 0)
	m.opened(context.Background(), false) // until Redis has said otherwise
	return m, nil
}

func (m *metrics) ended(ctx context.Context, result string, count int64) {
	if count > 0 {
		m.invocations.Add(ctx, count, metric.WithAttributes(resultKey.String(result)))
	}
}

func (m *metrics) redisFailed(ctx context.Context, operation string) {
	m.redisErrors.Add(ctx, 1, metric.WithAttributes(operationKey.String(operation)))
}

func (m *metrics) wrote(ctx context.Context, w write, result string) {
	m.writes.Add(ctx, 1, metric.WithAttributes(directionKey.String(w.direction.String()), resultKey.String(result)))
}

func (m *metrics) restored(ctx context.Context, cause string) {
	m.restores.Add(ctx, 1, metric.WithAttributes(causeKey.String(cause)))
}

func (m *metrics) weighed(ctx context.Context, d direction, result string) {
	if result == resultWritten {
		m.weights.Add(ctx, 1, weightWritten[d]...)
		return
	}
	m.weights.Add(ctx, 1, metric.WithAttributes(directionKey.String(d.String()), resultKey.String(result)))
}

// Metrics that are recorded with each request have their attributes ready: making them costs more
// than counting.
var (
	weightWritten = func() (options [raise + 1][]metric.AddOption) {
		for d := range options {
			options[d] = []metric.AddOption{metric.WithAttributeSet(attribute.NewSet(
				directionKey.String(direction(d).String()), resultKey.String(resultWritten)))}
		}
		return options
	}()
	ofLevel = func() (options [lastLevel + 1][]metric.RecordOption) {
		for l := range options {
			options[l] = []metric.RecordOption{metric.WithAttributeSet(attribute.NewSet(levelKey.String(strconv.Itoa(l))))}
		}
		return options
	}()
)

func (m *metrics) opened(ctx context.Context, open bool) {
	var v int64
	if open {
		v = 1
	}
	m.open.Record(ctx, v)
}

func (m *metrics) violated(ctx context.Context, rule string) {
	m.violations.Add(ctx, 1, metric.WithAttributes(ruleKey.String(rule)))
}

func (m *metrics) observeCredits(_ context.Context, o metric.Float64Observer) error {
	credits := m.credits.Load()
	if credits == nil {
		return nil
	}
	for function, credit := range *credits {
		o.Observe(credit.Seconds(), ofFunction(function))
	}
	return nil
}

// coreSeconds adds so many milli CPU, over a time, to a counter of core seconds.
func coreSeconds(ctx context.Context, counter metric.Float64Counter, milli int64, d time.Duration) {
	if milli > 0 {
		counter.Add(ctx, float64(milli)/1000*d.Seconds())
	}
}

// byteSeconds adds so many bytes of memory, over a time, to a counter of byte seconds.
func byteSeconds(ctx context.Context, counter metric.Float64Counter, bytes int64, d time.Duration) {
	if bytes > 0 {
		counter.Add(ctx, float64(bytes)*d.Seconds())
	}
}

func ofFunction(function string) metric.MeasurementOption {
	return metric.WithAttributes(functionKey.String(function))
}
