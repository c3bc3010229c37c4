package invocation

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"k8s.io/apimachinery/pkg/types"
	servingmetrics "knative.dev/serving/pkg/metrics"

	"libra.dev/libra/activator-plugin/placement"
	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/pool"
)

const scopeName = "libra.dev/libra/activator-plugin/invocation"

// role is an invocation's role when it was dispatched: the attribute "role".
type role string

const (
	roleDonor     role = "donor"
	roleBorrower  role = "borrower"
	roleBoth      role = "donor_and_borrower" // of different resources
	roleNeither   role = "neither"
	roleObserved  role = "observed"  // begun, but not to lend or borrow
	roleUnmanaged role = "unmanaged" // not begun
)

// reason is why an invocation was only observed or unmanaged, or did not lend or borrow what it could
// have: the attribute "reason".
type reason string

const (
	reasonNone             reason = ""
	reasonClusterIP        reason = "cluster_ip"          // the pod is not known to the activator
	reasonPodUnknown       reason = "pod_unknown"         // not in the informer
	reasonTooMany          reason = "too_many_in_flight"  // a bound was reached
	reasonNotInPath        reason = "not_in_path"         // requests can bypass the activator
	reasonConcurrency      reason = "concurrency"         // containerConcurrency is 0, which is no bound
	reasonQueueProxyLimits reason = "queue_proxy_limits"  // the pod's own quota would bind
	reasonNoLimits         reason = "no_limits"           // nothing is owed
	reasonNoPrediction     reason = "no_prediction"       // the predictor does not know the function
	reasonUpgrade          reason = "connection_upgraded" // not a request and its response
	reasonCopy             reason = "copy"                // it repeats another request, to be learned from
	reasonColdStart        reason = "cold_start"          // it came before its container had started
	reasonFirst            reason = "first_in_container"  // its container may still have to start up
	reasonMode             reason = "mode"                // the revision's mode
	reasonSampled          reason = "sampled"             // enough of those that neither lend nor borrow are reported
)

// Operations on the pool and their results: the attributes "operation" and "result".
const (
	opBegin = "begin"
	opEnd   = "end"
	opRenew = "renew"

	resultOK       = "ok"
	resultDeadline = "deadline"
	resultRefused  = "refused" // fails until somebody changes something
	resultError    = "error"
	resultNotSent  = "not_sent"
)

type metrics struct {
	dispatched metric.Int64Counter
	inFlight   metric.Int64UpDownCounter
	ended      metric.Int64Counter
	abandoned  metric.Int64Counter
	refused    metric.Int64Counter
	// refusedAnnotations counts those of settings; refused counts that of the input size, too.
	refusedAnnotations metric.Int64Counter
	cpu, memory        metric.Float64Counter
	poolCalls          metric.Float64Histogram
	placed, over       metric.Int64Counter
	promises           metric.Float64Counter
	placing, requests  metric.Float64Histogram

	// Making an attribute set costs more than counting.
	dispatchSets optionsOf[dispatchKey]
	endedSets    optionsOf[endedKey]
	revisionSets optionsOf[types.NamespacedName]
	volumeSets   optionsOf[volumeKey]
	placedSets   optionsOf[placedKey]
	poolCallSets optionsOf[poolCallKey]
}

type (
	dispatchKey struct {
		rev types.NamespacedName
		role
		reason
		ranked bool
	}
	endedKey struct {
		rev                   types.NamespacedName
		found, lent, borrowed bool
	}
	volumeKey struct {
		rev      types.NamespacedName
		kind     string
		withheld bool
	}
	placedKey   struct{ policy, outcome string }
	poolCallKey struct{ operation, result string }
)

// maxOptions bounds what an optionsOf keeps: as many sets as a metric has at most. Past it, the
// optionsOf starts afresh.
const maxOptions = 100_000

// optionsOf caches the options for the attributes seen so far.
type optionsOf[K comparable] struct {
	mu   sync.RWMutex
	kept map[K]options
}

// options are the same attributes, for counters and for histograms.
type options struct {
	add    []metric.AddOption
	record []metric.RecordOption
}

func (o *optionsOf[K]) get(key K, attrs func(K) []attribute.KeyValue) options {
	o.mu.RLock()
	of, ok := o.kept[key]
	o.mu.RUnlock()
	if ok {
		return of
	}
	set := withSet(attrs(key)...)
	of = options{add: []metric.AddOption{set}, record: []metric.RecordOption{set}}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.kept == nil || len(o.kept) >= maxOptions {
		o.kept = make(map[K]options)
	}
	o.kept[key] = of
	return of
}

func newMetrics(mp metric.MeterProvider) (*metrics, error) {
	var (
		meter = mp.Meter(scopeName)
		m     metrics
		errs  [14]error
	)
	m.dispatched, errs[0] = meter.Int64Counter("libra.invocations",
		metric.WithDescription("Invocations of opted-in revisions, per revision, by `role` (donor, borrower, donor_and_borrower, neither, observed, unmanaged), by `reason` if only observed or unmanaged, or if it did not lend or borrow what it could, and by whether their pods are `ranked`"),
		metric.WithUnit("{invocation}"))
	m.inFlight, errs[1] = meter.Int64UpDownCounter("libra.invocations.in_flight",
		metric.WithDescription("Invocations in flight, from their Begin until their End is answered"),
		metric.WithUnit("{invocation}"))
	m.ended, errs[2] = meter.Int64Counter("libra.invocations.ended",
		metric.WithDescription("Invocations that ended, per revision, by whether the pool still knew them (`found`) and whether they had `lent` or `borrowed` anything"),
		metric.WithUnit("{invocation}"))
	m.refused, errs[3] = meter.Int64Counter("libra.sizes.refused",
		metric.WithDescription("Refused input sizes, by the `field` that was wrong"),
		metric.WithUnit("{request}"))
	m.poolCalls, errs[4] = meter.Float64Histogram("libra.pool.call.duration",
		metric.WithDescription("Duration of the activator's Redis calls, off the request path, by `operation` (begin, end, renew) and `result` (ok, deadline, refused, error, not_sent). Refused calls fail until something is changed"),
		metric.WithUnit("s"),
		metric.WithExplicitBucketBoundaries(.0001, .0002, .0005, .001, .002, .005, .01, .05, .1, .5, 1))
	m.refusedAnnotations, errs[5] = meter.Int64Counter("libra.annotations.refused",
		metric.WithDescription("Invocations of revisions with a refused annotation, by `annotation`"),
		metric.WithUnit("{invocation}"))
	m.cpu, errs[6] = meter.Float64Counter("libra.invocations.cpu",
		metric.WithDescription("CPU that invocations could lend (`kind` surplus) or would borrow (want), in core-seconds, per revision: the volume times their run time. `withheld` tells whether their mode or source kept it from the pool"),
		metric.WithUnit("s"))
	m.memory, errs[7] = meter.Float64Counter("libra.invocations.memory",
		metric.WithDescription("Memory that invocations could lend (`kind` surplus) or would borrow (want), in byte-seconds, per revision: the volume times their run time. `withheld` tells whether their mode or source kept it from the pool"),
		metric.WithUnit("{byte_second}"))
	m.abandoned, errs[8] = meter.Int64Counter("libra.invocations.abandoned",
		metric.WithDescription("Invocations whose client went away before it had the whole response, or whose time ran out, and upgraded connections, where it is not seen who closed them, per revision: their pods lend nothing until seen at rest"),
		metric.WithUnit("{invocation}"))
	m.placed, errs[9] = meter.Int64Counter("libra.placement.choices",
		metric.WithDescription("Requests that a pod was chosen for, by `policy` and by `outcome` for the pod that Knative had picked"),
		metric.WithUnit("{request}"))
	m.over, errs[10] = meter.Int64Counter("libra.placement.over_concurrency",
		metric.WithDescription("Requests sent to a pod that already had containerConcurrency requests from this activator, per revision: its queue-proxy makes them wait"),
		metric.WithUnit("{request}"))
	m.promises, errs[11] = meter.Float64Counter("libra.placement.cpu",
		metric.WithDescription("CPU under the source owners that requests were placed for (`kind` promised) and that the pool had when they began (granted), in core-seconds over their predicted duration"),
		metric.WithUnit("s"))
	m.placing, errs[12] = meter.Float64Histogram("libra.placement.duration",
		metric.WithDescription("Time to choose a pod"),
		metric.WithUnit("s"),
		metric.WithExplicitBucketBoundaries(1e-6, 2e-6, 5e-6, 1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 1e-2))
	m.requests, errs[13] = meter.Float64Histogram("libra.request.duration",
		metric.WithDescription("Time from a request's arrival at the activator to the end of its response, for opted-in revisions, per revision"),
		metric.WithUnit("s"),
		metric.WithExplicitBucketBoundaries(.005, .01, .025, .05, .075, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10, 30, 60))
	if err := errors.Join(errs[:]...); err != nil {
		return nil, fmt.Errorf("making the invocation metrics: %w", err)
	}
	return &m, nil
}

func (m *metrics) onDispatch(rev types.NamespacedName, r role, why reason, ranked bool) {
	m.dispatched.Add(context.Background(), 1, m.dispatchSets.get(dispatchKey{rev, r, why, ranked}, dispatchKey.attributes).add...)
}

func (k dispatchKey) attributes() []attribute.KeyValue {
	attrs := append(ofRevision(k.rev), attribute.String("role", string(k.role)))
	if k.reason != reasonNone {
		attrs = append(attrs, attribute.String("reason", string(k.reason)))
	}
	if k.ranked {
		attrs = append(attrs, attribute.Bool("ranked", true))
	}
	return attrs
}

func ofRevision(rev types.NamespacedName) []attribute.KeyValue {
	return []attribute.KeyValue{
		servingmetrics.K8sNamespaceKey.With(rev.Namespace),
		servingmetrics.RevisionNameKey.With(rev.Name),
	}
}

func (m *metrics) onInFlight(delta int64) { m.inFlight.Add(context.Background(), delta) }

func (m *metrics) onEnded(rev types.NamespacedName, o pool.Outcome) {
	key := endedKey{rev, o.Found, !o.Lent.IsZero(), !o.Borrowed.IsZero()}
	m.ended.Add(context.Background(), 1, m.endedSets.get(key, endedKey.attributes).add...)
}

func (k endedKey) attributes() []attribute.KeyValue {
	return append(ofRevision(k.rev),
		attribute.Bool("found", k.found),
		attribute.Bool("lent", k.lent),
		attribute.Bool("borrowed", k.borrowed),
	)
}

func (m *metrics) onAbandoned(rev types.NamespacedName) {
	m.abandoned.Add(context.Background(), 1, m.revisionSets.get(rev, ofRevision).add...)
}

func (m *metrics) onPlaced(policy string, o placement.Outcome, took time.Duration) {
	m.placed.Add(context.Background(), 1, m.placedSets.get(placedKey{policy, string(o)}, placedKey.attributes).add...)
	m.placing.Record(context.Background(), took.Seconds())
}

func (k placedKey) attributes() []attribute.KeyValue {
	return []attribute.KeyValue{attribute.String("policy", k.policy), attribute.String("outcome", k.outcome)}
}

func (m *metrics) onRequest(rev types.NamespacedName, took time.Duration) {
	m.requests.Record(context.Background(), took.Seconds(), m.revisionSets.get(rev, ofRevision).record...)
}

func (m *metrics) onOver(rev types.NamespacedName) {
	m.over.Add(context.Background(), 1, m.revisionSets.get(rev, ofRevision).add...)
}

// The attribute "kind" of CPU that requests are placed for.
var (
	isPromised = withSet(attribute.String("kind", "promised"))
	isGranted  = withSet(attribute.String("kind", "granted"))
)

func (m *metrics) onPromise(promisedMilli, grantedMilli int64, d time.Duration) {
	if promisedMilli <= 0 {
		return
	}
	m.promises.Add(context.Background(), float64(promisedMilli)/1000*d.Seconds(), isPromised)
	m.promises.Add(context.Background(), float64(grantedMilli)/1000*d.Seconds(), isGranted)
}

func (m *metrics) onRefusedSize(field string) {
	m.refused.Add(context.Background(), 1, withSet(attribute.String("field", field)))
}

func (m *metrics) onRefusedAnnotation(annotation string) {
	m.refusedAnnotations.Add(context.Background(), 1, withSet(attribute.String("annotation", annotation)))
}

func (m *metrics) onVolumes(rev types.NamespacedName, v volumes, withheld bool, ran time.Duration) {
	m.onVolume(rev, "surplus", v.surplus, withheld, ran)
	m.onVolume(rev, "want", v.want, withheld, ran)
}

func (m *metrics) onVolume(rev types.NamespacedName, kind string, r api.Resources, withheld bool, ran time.Duration) {
	if r.IsZero() {
		return
	}
	of := m.volumeSets.get(volumeKey{rev, kind, withheld}, volumeKey.attributes).add
	m.cpu.Add(context.Background(), float64(r.CPUMilli)/1000*ran.Seconds(), of...)
	m.memory.Add(context.Background(), float64(r.MemoryBytes)*ran.Seconds(), of...)
}

func (k volumeKey) attributes() []attribute.KeyValue {
	return append(ofRevision(k.rev), attribute.String("kind", k.kind), attribute.Bool("withheld", k.withheld))
}

func (m *metrics) onPoolCall(operation, result string, took time.Duration) {
	m.poolCalls.Record(context.Background(), took.Seconds(), m.poolCallSets.get(poolCallKey{operation, result}, poolCallKey.attributes).record...)
}

func (k poolCallKey) attributes() []attribute.KeyValue {
	return []attribute.KeyValue{attribute.String("operation", k.operation), attribute.String("result", k.result)}
}

func withSet(attrs ...attribute.KeyValue) metric.MeasurementOption {
	return metric.WithAttributeSet(attribute.NewSet(attrs...))
}

// resultOf returns the attribute "result" for a call that returned err.
func resultOf(err error) string {
	switch {
	case err == nil:
		return resultOK
	case timedOut(err):
		return resultDeadline
	case pool.Refused(err):
		return resultRefused
	default:
		return resultError
	}
}

// timedOut reports whether the call or its connection timed out: a Redis client turns the call's
// deadline into the connection's.
func timedOut(err error) bool {
	var timeout net.Error
	return errors.Is(err, context.DeadlineExceeded) || errors.As(err, &timeout) && timeout.Timeout()
}
