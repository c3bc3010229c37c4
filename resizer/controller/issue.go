package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	logf "sigs.k8s.io/controller-runtime/pkg/log"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/resizer/actuate"
	"libra.dev/libra/resizer/telemetry"
)

// issue sends resizes that were planned at asOf, in order, a few at a time. next is how long until
// one that was not sent or not accepted may be tried again.
func (c *Controller) issue(ctx context.Context, n *node, resizes []resize, asOf time.Time) (next time.Duration) {
	next = resync
	held, patients := false, 0
	var sent []*managedPod
	var group errgroup.Group
	group.SetLimit(concurrentPatches)
	for _, r := range resizes {
		m, now := r.pod, c.clock.Now() // a limiter must not be given a past time
		patient := r.canWait()
		if now.Before(m.calls.retryAt) && (patient || !m.calls.couldWait) {
			next = max(heldTick, min(next, m.calls.retryAt.Sub(now)))
			continue
		}
		if patient && patients == patientPatches {
			next = min(next, heldTick)
			continue
		}
		if patient && !(halfLeft(c.total, now) && halfLeft(n.limiter, now) && c.patient.TryAcquire(1)) {
			if !held {
				c.metrics.resized(ctx, r, resultLimited)
			}
			held, next = true, min(next, waitTick)
			continue
		}
		if c.total.TokensAt(now) < 1 || !n.limiter.AllowN(now, 1) || !c.total.AllowN(now, 1) {
			c.metrics.resized(ctx, r, resultLimited)
			if patient {
				c.patient.Release(1)
			}
			next = heldTick
			break
		}
		sent = append(sent, m)
		if patient {
			patients++
		}
		group.Go(func() error {
			c.resize(ctx, n, r, asOf)
			if patient {
				c.patient.Release(1)
			}
			return nil
		})
	}
	group.Wait() //nolint:errcheck // nothing in the group returns an error
	now := c.clock.Now()
	for _, m := range sent {
		if !m.calls.retryAt.IsZero() {
			next = min(next, m.calls.retryAt.Sub(now))
		} else {
			next = min(next, tick)
		}
	}
	return next
}

// halfLeft reports whether one more resize leaves half of a limiter's burst. That half is for
// resizes that cannot wait, which may be due at any moment.
func halfLeft(l *rate.Limiter, now time.Time) bool {
	burst := float64(l.Burst())
	return l.TokensAt(now) >= min(burst, burst/2+1)
}

// resize sends one resize, planned at asOf, and records its outcome.
func (c *Controller) resize(ctx context.Context, n *node, r resize, asOf time.Time) {
	m := r.pod
	log := logf.FromContext(ctx).WithValues("node", n.name, "pod", m.name, "function", m.function)
	ctx, cancel := context.WithTimeout(ctx, patchTimeout)
	defer cancel()

	span := c.span(n, r)
	from, patched := m.asked, m.pod.DeepCopy()
	err := actuate.SetLimits(ctx, c.resizes, patched, m.user.Name, r.limits)
	now := c.clock.Now()
	var result string
	switch stored := m.askedOf(patched); {
	case err == nil && stored == r.limits:
		result = resultAccepted
		log.V(1).Info("resized a pod", "direction", r.direction.String(), "reason", r.reason, "from", from.String(), "to", r.limits.String())
		m.accepted(keepPod(patched), r, asOf)
	case err == nil:
		result = resultRefused
		err = fmt.Errorf("%v was stored in its place, perhaps by a mutating webhook", stored)
		m.pod, m.asked = keepPod(patched), stored
		c.refused(log, r, from, err, now)
	case apierrors.IsConflict(err), noSuchPod(err), otherUID(err):
		result = resultConflict
		// The cache will soon show the change, unless it no longer shows the pod.
		if m.standing == departed || noSuchPod(err) {
			m.standing = gone
		}
		m.backOff(r, now)
	case apierrors.IsInvalid(err), apierrors.IsForbidden(err), apierrors.IsBadRequest(err), apierrors.IsNotFound(err):
		result = resultRefused
		c.refused(log, r, from, err, now)
	default:
		// The resize may have been accepted all the same. The cache will show it, and sending it
		// twice does no harm.
		result = resultFailed
		log.Error(err, "resize failed", "to", r.limits.String())
		m.calls.unsure = true
		m.backOff(r, now)
	}
	telemetry.EndSpan(span, result, err)
	c.metrics.resized(ctx, r, result)
}

// refused puts off a resize that was refused, and tells of the first refusal in a row.
func (c *Controller) refused(log logr.Logger, r resize, from api.Resources, err error, now time.Time) {
	if r.pod.refused(r, now) {
		log.Error(err, "resize refused; retrying later", "reason", r.reason, "from", from.String(), "to", r.limits.String())
		c.tellRefused(r, err)
	}
}

// tellRefused records an Event that tells the pod's owner of a refusal.
func (c *Controller) tellRefused(r resize, err error) {
	m := r.pod
	if r.refusable() == reasonCeiling {
		ceilingRefusedEvent(m.pod, m.user.Name, r.limits.CPUMilli, max(m.asked.CPUMilli, m.owed.CPUMilli), err.Error()).record(c.recorder)
		return
	}
	refusedEvent(m.pod, r, err).record(c.recorder)
}

// noSuchPod reports whether the pod is not there. An API server that serves no pods/resize says "not found", too, but of no
// object.
func noSuchPod(err error) bool {
	var status apierrors.APIStatus
	return apierrors.IsNotFound(err) && errors.As(err, &status) && status.Status().Details != nil && status.Status().Details.Name != ""
}

// otherUID reports whether the pod's name belongs to another pod by now.
func otherUID(err error) bool {
	var status apierrors.APIStatus
	return errors.As(err, &status) && status.Status().Details != nil &&
		slices.ContainsFunc(status.Status().Details.Causes, func(c metav1.StatusCause) bool { return c.Field == "metadata.uid" })
}
