package duplicator

import (
	"context"
	"errors"
	"fmt"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"k8s.io/apimachinery/pkg/types"
	servingmetrics "knative.dev/serving/pkg/metrics"
)

const scopeName = "libra.dev/libra/activator-plugin/duplicator"

// reason is why a request was not kept, or a revision not duplicated: the attribute
// "reason".
type reason string

const (
	reasonNone reason = ""

	// Of requests.
	reasonDuplicate        reason = "duplicate"           // it is a duplicate itself
	reasonUpgrade          reason = "connection_upgraded" // not a request and its response
	reasonUnknownLength    reason = "unknown_length"      // no Content-Length
	reasonEmpty            reason = "empty"               // nothing to scale
	reasonTooLarge         reason = "too_large"           // more than maxBody
	reasonEncoded          reason = "content_encoding"    // cannot be decoded once scaled
	reasonCutShort         reason = "cut_short"           // not read to its end
	reasonNotOK            reason = "not_ok"              // not answered with a 2xx
	reasonTooManyFunctions reason = "too_many_functions"  // the bound was reached
	reasonTooManyBytes     reason = "too_many_bytes"      // the bound was reached

	// Of revisions.
	reasonAnnotation reason = "annotation" // neither "true" nor "false"
	reasonInputSize  reason = "input_size" // its size is not that of the body
	reasonBusy       reason = "busy"       // another activator is at it
	reasonDone       reason = "done"       // it was done before
	reasonFailed     reason = "failed"     // it failed not long ago
	reasonNoLock     reason = "no_lock"    // Redis does not answer
	reasonUnwanted   reason = "unwanted"   // any more
)

// Values of the attribute "result": of a duplication, of its replays, or of the removal
// of a copy.
const (
	resultFinished = "finished"
	resultFailed   = "failed"
	resultStopped  = "stopped" // the activator is told to stop, or nobody wants it any more

	resultOK          = "ok"
	resultClientError = "client_error" // 4xx
	resultServerError = "server_error" // 5xx
	resultOther       = "other"        // any other but 2xx
	resultTimeout     = "timeout"
	resultError       = "error" // no response
)

type metrics struct {
	copies       metric.Int64Counter
	duplications metric.Int64Counter
	replays      metric.Int64Counter
	skipped      metric.Int64Counter
	removals     metric.Int64Counter
}

func newMetrics(mp metric.MeterProvider) (*metrics, error) {
	var (
		meter = mp.Meter(scopeName)
		m     metrics
		errs  [5]error
	)
	m.copies, errs[0] = meter.Int64Counter("libra.duplicator.copies",
		metric.WithDescription("Copies of revisions made, per revision"),
		metric.WithUnit("{copy}"))
	m.duplications, errs[1] = meter.Int64Counter("libra.duplicator.duplications",
		metric.WithDescription("Duplications that ended, per revision, by `result`"),
		metric.WithUnit("{duplication}"))
	m.replays, errs[2] = meter.Int64Counter("libra.duplicator.replays",
		metric.WithDescription("Requests to copies, per revision, by `result`"),
		metric.WithUnit("{request}"))
	m.skipped, errs[3] = meter.Int64Counter("libra.duplicator.skipped",
		metric.WithDescription("Requests not kept and revisions not duplicated, per revision, by `reason`"),
		metric.WithUnit("1"))
	m.removals, errs[4] = meter.Int64Counter("libra.duplicator.removals",
		metric.WithDescription("Attempts to remove copies, per revision, by `result` and whether the copy had been left behind (`left_behind`)"),
		metric.WithUnit("{copy}"))
	if err := errors.Join(errs[:]...); err != nil {
		return nil, fmt.Errorf("making the duplicator's metrics: %w", err)
	}
	return &m, nil
}

func (m *metrics) onCopy(f types.NamespacedName) { add(m.copies, f) }

func (m *metrics) onDuplication(f types.NamespacedName, result string) {
	add(m.duplications, f, attribute.String("result", result))
}

func (m *metrics) onReplay(f types.NamespacedName, result string) {
	add(m.replays, f, attribute.String("result", result))
}

func (m *metrics) onSkipped(f types.NamespacedName, why reason) {
	add(m.skipped, f, attribute.String("reason", string(why)))
}

func (m *metrics) onRemoval(f types.NamespacedName, err error, leftBehind bool) {
	result := resultOK
	if err != nil {
		result = resultError
	}
	add(m.removals, f, attribute.String("result", result), attribute.Bool("left_behind", leftBehind))
}

func add(c metric.Int64Counter, f types.NamespacedName, attrs ...attribute.KeyValue) {
	attrs = append(attrs, servingmetrics.K8sNamespaceKey.With(f.Namespace), servingmetrics.RevisionNameKey.With(f.Name))
	c.Add(context.Background(), 1, metric.WithAttributeSet(attribute.NewSet(attrs...)))
}
