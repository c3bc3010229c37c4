package tapp

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

const scopeName = "libra.dev/libra/activator-plugin/placement/tapp"

// metrics read the policies when they are collected: a request only increments counts, and a policy that is gone leaves
// no series behind.
type metrics struct {
	edits     metric.Int64ObservableCounter
	decisions metric.Int64ObservableCounter
	policies  metric.Int64ObservableGauge
	known     atomic.Pointer[[]counted]
}

// counted is a policy in the metrics.
type counted struct {
	of    key
	state string
	*counts
}

// States of policies: the attribute "state".
const (
	stateInForce  = "in_force"
	stateLastGood = "last_good" // an edit was refused, and what the policy said before is in force
	stateRefused  = "refused"   // nothing of it is in force
)

// Outcomes of decisions: the attribute "outcome".
const (
	outcomePlaced   = "placed"
	outcomeFollowed = "default" // the policy default, or the platform's choice, followed it
	outcomeRefused  = "refused"
)

func newMetrics(mp metric.MeterProvider) (*metrics, error) {
	meter, m := mp.Meter(scopeName), &metrics{}
	m.known.Store(&[]counted{})
	var errs [4]error
	m.edits, errs[0] = meter.Int64ObservableCounter("libra.placement.policy.edits.refused",
		metric.WithDescription("Refused edits of placement policies, by `policy_namespace` and `policy`; the last accepted version stays in force"),
		metric.WithUnit("{edit}"))
	m.decisions, errs[1] = meter.Int64ObservableCounter("libra.placement.policy.decisions",
		metric.WithDescription("Decisions by placement policies, by `policy_namespace`, `policy`, `outcome` (placed, default, refused) and the `block` that placed the request"),
		metric.WithUnit("{decision}"))
	m.policies, errs[2] = meter.Int64ObservableGauge("libra.placement.policies",
		metric.WithDescription("Placement policies by `state`: in_force, last_good (an edit was refused) or refused (no version was accepted)"),
		metric.WithUnit("{policy}"))
	_, errs[3] = meter.RegisterCallback(m.observe, m.edits, m.decisions, m.policies)
	if err := errors.Join(errs[:]...); err != nil {
		return nil, fmt.Errorf("making the metrics of placement policies: %w", err)
	}
	return m, nil
}

// inForce takes in what is known about the policies.
func (m *metrics) inForce(known map[key]*policy) {
	all := make([]counted, 0, len(known))
	for of, k := range known {
		c := counted{of: of, state: stateInForce, counts: k.counts}
		switch {
		case k.refused != nil && k.program == nil:
			c.state = stateRefused
		case k.refused != nil:
			c.state = stateLastGood
		}
		all = append(all, c)
	}
	m.known.Store(&all)
}

func (m *metrics) observe(_ context.Context, o metric.Observer) error {
	states := map[string]int64{stateInForce: 0, stateLastGood: 0, stateRefused: 0}
	for _, c := range *m.known.Load() {
		states[c.state]++
		observe := func(counter metric.Int64Observable, n uint64, attrs ...attribute.KeyValue) {
			if n > 0 {
				o.ObserveInt64(counter, int64(n), metric.WithAttributes(append(attributesOf(c.of), attrs...)...))
			}
		}
		observe(m.edits, c.refusedEdits.Load())
		for i := range c.placed {
			observe(m.decisions, c.placed[i].Load(), attribute.String("outcome", outcomePlaced), attribute.String("block", strconv.Itoa(i)))
		}
		observe(m.decisions, c.followed.Load(), attribute.String("outcome", outcomeFollowed))
		observe(m.decisions, c.counts.refused.Load(), attribute.String("outcome", outcomeRefused))
	}
	for state, n := range states {
		o.ObserveInt64(m.policies, n, metric.WithAttributes(attribute.String("state", state)))
	}
	return nil
}

func attributesOf(of key) []attribute.KeyValue {
	return []attribute.KeyValue{attribute.String("policy_namespace", of.namespace), attribute.String("policy", of.name)}
}
