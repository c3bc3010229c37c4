package invocation

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"k8s.io/apimachinery/pkg/types"
	servingmetrics "knative.dev/serving/pkg/metrics"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/pool"
)

const scopeName = "libra.dev/libra/activator-plugin/invocation"

// role is what an invocation was when it was dispatched: the attribute "role".
type role string

const (
	roleDonor     role = "donor"
	roleBorrower  role = "borrower"
	roleBoth      role = "donor_and_borrower" // of different resources
	roleNeither   role = "neither"
	roleObserved  role = "observed"  // begun, but not to lend or borrow
	roleUnmanaged role = "unmanaged" // not begun
)

// reason is why an invocation was only observed, unmanaged, or kept from what it could
// have lent or would have borrowed: the attribute "reason".
type reason string

const (
	reasonNone             reason = ""
	reasonClusterIP        reason = "cluster_ip"          // the pod is not known to the activator
	reasonPodUnknown       reason = "pod_unknown"         // not in the informer
	reasonTooMany          reason = "too_many_in_flight"  // the bound was reached
	reasonConcurrency      reason = "concurrency"         // containerConcurrency is not 1
	reasonQueueProxyLimits reason = "queue_proxy_limits"  // the pod's own quota would bind
	reasonNoLimits         reason = "no_limits"           // nothing is owed
	reasonNoPrediction     reason = "no_prediction"       // the predictor does not know the function
	reasonUpgrade          reason = "connection_upgraded" // not a request and its response
	reasonCopy             reason = "copy"                // it repeats another, to be learned from
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
	resultError    = "error"
	resultNotSent  = "not_sent"
)

type metrics struct {
	dispatched metric.Int64Counter
	inFlight   metric.Int64UpDownCounter
	ended      metric.Int64Counter
	refused    metric.Int64Counter
	// refusedAnnotations are those of settings; refused has the one of the input size.
	refusedAnnotations metric.Int64Counter
	cpu, memory        metric.Float64Counter
	poolCalls          metric.Float64Histogram
}

func newMetrics(mp metric.MeterProvider) (*metrics, error) {
	var (
		meter = mp.Meter(scopeName)
		m     metrics
		errs  [8]error
	)
	m.dispatched, errs[0] = meter.Int64Counter("libra.invocations",
		metric.WithDescription("Invocations of opted-in revisions, by role, and by the reason when they are only observed or unmanaged"),
		metric.WithUnit("{invocation}"))
	m.inFlight, errs[1] = meter.Int64UpDownCounter("libra.invocations.in_flight",
		metric.WithDescription("Invocations from their Begin until their End is answered"),
		metric.WithUnit("{invocation}"))
	m.ended, errs[2] = meter.Int64Counter("libra.invocations.ended",
		metric.WithDescription("Invocations that ended, by whether the pool still knew them and whether they had lent or borrowed anything"),
		metric.WithUnit("{invocation}"))
	m.refused, errs[3] = meter.Int64Counter("libra.sizes.refused",
		metric.WithDescription("Input sizes that were refused, by the field that was wrong"),
		metric.WithUnit("{request}"))
	m.poolCalls, errs[4] = meter.Float64Histogram("libra.pool.call.duration",
		metric.WithDescription("Time of the activator's calls of the pool, off the request path"),
		metric.WithUnit("s"),
		metric.WithExplicitBucketBoundaries(.0001, .0002, .0005, .001, .002, .005, .01, .05, .1, .5, 1))
	m.refusedAnnotations, errs[5] = meter.Int64Counter("libra.annotations.refused",
		metric.WithDescription("Invocations of revisions with an annotation that was refused, by the annotation"),
		metric.WithUnit("{invocation}"))
	m.cpu, errs[6] = meter.Float64Counter("libra.invocations.cpu",
		metric.WithDescription("CPU that invocations could lend (surplus) or would borrow (want), in core-seconds: the volume times how long they ran. withheld says that their mode kept them from it"),
		metric.WithUnit("s"))
	m.memory, errs[7] = meter.Float64Counter("libra.invocations.memory",
		metric.WithDescription("Memory that invocations could lend (surplus) or would borrow (want), in byte-seconds: the volume times how long they ran. withheld says that their mode kept them from it"),
		metric.WithUnit("{byte_second}"))
	if err := errors.Join(errs[:]...); err != nil {
		return nil, fmt.Errorf("making the invocation metrics: %w", err)
	}
	return &m, nil
}

func (m *metrics) onDispatch(rev types.NamespacedName, r role, why reason) {
	attrs := []attribute.KeyValue{
		servingmetrics.K8sNamespaceKey.With(rev.Namespace),
		servingmetrics.RevisionNameKey.With(rev.Name),
		attribute.String("role", string(r)),
	}
	if why != reasonNone {
		attrs = append(attrs, attribute.String("reason", string(why)))
	}
	m.dispatched.Add(context.Background(), 1, withSet(attrs...))
}

func (m *metrics) onInFlight(delta int64) { m.inFlight.Add(context.Background(), delta) }

func (m *metrics) onEnded(rev types.NamespacedName, o pool.Outcome) {
	m.ended.Add(context.Background(), 1, withSet(
		servingmetrics.K8sNamespaceKey.With(rev.Namespace),
		servingmetrics.RevisionNameKey.With(rev.Name),
		attribute.Bool("found", o.Found),
		attribute.Bool("lent", !o.Lent.IsZero()),
		attribute.Bool("borrowed", !o.Borrowed.IsZero()),
	))
}

func (m *metrics) onRefusedSize(field string) {
	m.refused.Add(context.Background(), 1, withSet(attribute.String("field", field)))
}

func (m *metrics) onRefusedAnnotation(annotation string) {
	m.refusedAnnotations.Add(context.Background(), 1, withSet(attribute.String("annotation", annotation)))
}

func (m *metrics) onVolumes(rev types.NamespacedName, v volumes, withheld bool, ran time.Duration) {
	for kind, r := range map[string]api.Resources{"surplus": v.surplus, "want": v.want} {
		if r.IsZero() {
			continue
		}
		attrs := withSet(
			servingmetrics.K8sNamespaceKey.With(rev.Namespace),
			servingmetrics.RevisionNameKey.With(rev.Name),
			attribute.String("kind", kind),
			attribute.Bool("withheld", withheld),
		)
		m.cpu.Add(context.Background(), float64(r.CPUMilli)/1000*ran.Seconds(), attrs)
		m.memory.Add(context.Background(), float64(r.MemoryBytes)*ran.Seconds(), attrs)
	}
}

func (m *metrics) onPoolCall(operation, result string, took time.Duration) {
	m.poolCalls.Record(context.Background(), took.Seconds(), withSet(
		attribute.String("operation", operation),
		attribute.String("result", result),
	))
}

func withSet(attrs ...attribute.KeyValue) metric.MeasurementOption {
	return metric.WithAttributeSet(attribute.NewSet(attrs...))
}

// resultOf is the attribute "result" of a call that ended in err.
func resultOf(err error) string {
	switch {
	case err == nil:
		return resultOK
	case errors.Is(err, context.DeadlineExceeded):
		return resultDeadline
	default:
		return resultError
	}
}
