package controller

import (
	"context"
	"errors"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	logf "sigs.k8s.io/controller-runtime/pkg/log"
)

// issue sends resizes in their order. next is how long until one that was not sent or
// not accepted may be tried again.
func (c *Controller) issue(ctx context.Context, n *node, resizes []resize) (next time.Duration) {
	lowers := slices.ContainsFunc(resizes, func(r resize) bool { return r.direction == lower })
	crowded, next := c.send(ctx, n, resizes, lowers)
	if len(crowded) > 0 {
		// A quota counts what the lowered ones have only now given up.
		_, again := c.send(ctx, n, crowded, false)
		next = min(next, again)
	}
	for _, m := range n.pods {
		m.planned = true
	}
	return next
}

// send sends resizes in their order, a few at a time. crowded are the restores that
// were forbidden though more room may come of the others.
func (c *Controller) send(ctx context.Context, n *node, resizes []resize, moreRoom bool) (crowded []resize, next time.Duration) {
	next = tick
	now := c.clock.Now()
	waits, held := n.waits(), false
	outcomes := make([]outcome, len(resizes))
	var group errgroup.Group
	group.SetLimit(concurrentPatches)
	for i, r := range resizes {
		m := n.pods[r.pod]
		if now.Before(m.retryAt) {
			next = min(next, m.retryAt.Sub(now))
			continue
		}
		if m.canWait(r, waits) && !(halfLeft(c.total, now) && halfLeft(n.limiter, now)) {
			if !held {
				c.metrics.resized(ctx, r.direction, resultLimited, reasonOf(n, m, r))
			}
			held, next = true, heldTick
			continue
		}
		if c.total.TokensAt(now) < 1 || !n.limiter.AllowN(now, 1) || !c.total.AllowN(now, 1) {
			c.metrics.resized(ctx, r.direction, resultLimited, reasonOf(n, m, r))
			next = heldTick
			break
		}
		group.Go(func() error {
			outcomes[i] = c.resize(ctx, n, m, r, moreRoom && r.direction == restore)
			return nil
		})
	}
	group.Wait() //nolint:errcheck // nothing in the group returns an error
	for i, o := range outcomes {
		switch o {
		case waitsForRoom:
			crowded = append(crowded, resizes[i])
		case notAnswered:
			n.lowering(c.clock.Now(), unansweredPatience)
			fallthrough
		case failed:
			next = min(next, n.pods[resizes[i].pod].retryAt.Sub(now))
		}
	}
	return crowded, next
}

// canWait says that a resize is for nobody's own: it gives a pod its ceiling, or takes that
// back, which matters only while others wait for room.
func (m *managedPod) canWait(r resize, othersWait bool) bool {
	return m.movesCeiling(r) && (r.direction == raise || r.direction == lower && !othersWait)
}

// waits says that a pod waits for its own until others are lowered.
func (n *node) waits() bool {
	for _, m := range n.pods {
		if !m.waitsSince.IsZero() {
			return true
		}
	}
	return false
}

// halfLeft says that one more leaves half of what a limiter lets through at once. That half
// is for restores, which may be due at any moment.
func halfLeft(l *rate.Limiter, now time.Time) bool {
	burst := float64(l.Burst())
	return l.TokensAt(now) >= min(burst, burst/2+1)
}

// outcome is what is left to do after a resize was sent.
type outcome int

const (
	nothingLeft outcome = iota
	failed
	notAnswered
	waitsForRoom
)

func (c *Controller) resize(ctx context.Context, n *node, m *managedPod, r resize, moreRoom bool) outcome {
	log := logf.FromContext(ctx).WithValues("node", n.name, "pod", r.pod, "function", m.function)
	ctx, cancel := context.WithTimeout(ctx, patchTimeout)
	defer cancel()
	reason := reasonOf(n, m, r)

	span := c.span(n, m, r, reason)
	patched := m.pod.DeepCopy()
	err := c.actuator.Of(patched, m.user.Name).SetLimits(ctx, r.limits)
	now := c.clock.Now()
	result, left := resultAccepted, failed
	switch {
	case err == nil:
		left = nothingLeft
		log.V(1).Info("resized", "direction", r.direction.String(), "reason", reason, "from", m.asked.String(), "to", r.limits.String())
		if r.direction == restore {
			c.metrics.restored(ctx, c.restoreCause(n, m, now))
		}
		m.accepted(keepPod(patched), r, n.readAt)
	case apierrors.IsConflict(err), apierrors.IsNotFound(err), otherUID(err):
		result = resultConflict
		// The cache is about to tell, unless it does not tell of the pod any more.
		m.gone = m.departed || apierrors.IsNotFound(err)
		m.backOff(now)
	case apierrors.IsForbidden(err) && moreRoom:
		result, left = resultRefused, waitsForRoom
	case apierrors.IsInvalid(err), apierrors.IsForbidden(err), apierrors.IsBadRequest(err):
		result = resultRefused
		switch ceiling := m.raisesToCeiling(r); {
		case ceiling && !m.ceilingRefusal.Failing():
			log.Error(err, "ceiling refused; the node agent sets it instead", "from", m.asked.String(), "to", r.limits.String())
			ceilingRefusedEvent(m.pod, m.user.Name, r.limits.CPUMilli, max(m.asked.CPUMilli, m.owed.CPUMilli), err.Error()).record(c.recorder)
		case !ceiling && !m.retry.Failing():
			log.Error(err, "resize refused", "to", r.limits.String())
			refusedEvent(m.pod, r, err).record(c.recorder)
		}
		m.refused(r, now)
	default:
		// It may have been accepted all the same.
		result, left = resultFailed, notAnswered
		m.unsure(r.limits, now)
		log.Error(err, "resize failed", "to", r.limits.String())
		m.backOff(now)
	}
	endSpan(span, result, err)
	c.metrics.resized(ctx, r.direction, result, reason)
	return left
}

// reasonOf is why a resize is made, for the metric.
func reasonOf(n *node, m *managedPod, r resize) string {
	switch {
	case r.direction == nudge, m.nudged && (r.direction == lower || m.ceiling > 0):
		return reasonNudge
	case r.direction == restore:
		return reasonRestore
	case m.movesCeiling(r):
		return reasonCeiling
	case n.silent:
		return reasonBackstop
	default:
		return reasonRecord
	}
}

// otherUID says that the pod's name belongs to another pod by now.
func otherUID(err error) bool {
	var status apierrors.APIStatus
	return errors.As(err, &status) && status.Status().Details != nil &&
		slices.ContainsFunc(status.Status().Details.Causes, func(c metav1.StatusCause) bool { return c.Field == "metadata.uid" })
}

func (c *Controller) restoreCause(n *node, m *managedPod, now time.Time) string {
	switch {
	case !m.planned:
		return causeStart
	case n.lost:
		return causePoolLost
	case now.Before(m.memoryUntil):
		return causeMemoryInUse
	default:
		return causeReleased
	}
}
