package agent

import (
	"context"
	"errors"
	"math"
	"slices"
	"time"

	"github.com/go-logr/logr"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/resizer/cgroup"
)

// recall gives back what an earlier agent raised above what pods' specs say, or held to less.
func (c *clamps) recall(ctx context.Context, log logr.Logger, journal *journal, debts []debt) {
	if c == nil {
		return
	}
	c.log, c.journal = log, journal
	for _, d := range debts {
		c.incur(d)
	}
	c.repay(ctx, untilPaid)
}

// stop gives every container back what its pod's spec says.
func (c *clamps) stop(ctx context.Context) {
	if c == nil {
		return
	}
	c.nextAt = c.clock.Now()
	c.follow(nil)
	for i := range c.debts {
		c.debts[i].at = time.Time{}
	}
	c.repay(ctx, untilPaid)
}

// owe writes to the journal what a container is to get back, and reports whether it could.
func (c *clamps) owe(k *clampedContainer) bool {
	if err := c.journal.put(k.container, ceilingSuffix, k.debt()); err != nil {
		c.refuse(k, err, "a container gets no more CPU than its pod's spec says, because the journal cannot record what it is to get back")
		return false
	}
	k.owing = true
	return true
}

// debt is what a container gets back.
func (k *clampedContainer) debt() debt {
	return debt{
		Version: journalVersion, Container: k.container, Pod: k.pod, Function: k.function, Allocation: api.Resources{CPUMilli: max(k.spec, k.allocation)},
	}
}

// forget removes a container from the journal, because the clamps no longer owe it anything.
func (c *clamps) forget(k *clampedContainer) {
	k.owing = false
	c.journal.forget(k.container, ceilingSuffix)
}

// giveBack has a container that is no longer capped get back what its spec says.
func (c *clamps) giveBack(k *clampedContainer) {
	if k.bound != nil {
		k.bound(0)
		return
	}
	if !k.changed && !k.owing {
		return
	}
	c.incur(k.debt())
}

// unpaid is a debt that is to be tried at a time. From giveUp on, it is dropped if nobody knows what the pod's spec says.
type unpaid struct {
	debt
	at, giveUp time.Time
}

func (c *clamps) incur(d debt) {
	c.debts = append(c.debts, unpaid{debt: d, giveUp: c.clock.Now().Add(unclaimedTime)})
}

// errSpecUnknown says that the Tracker does not know the container.
var errSpecUnknown = errors.New("the limit in its pod's spec is not known")

const (
	// Looking for a container walks through all cgroups of the node, and other containers wait meanwhile: in one round,
	// no more is begun after repayFor.
	repayFor  = 10 * time.Millisecond
	untilPaid = math.MaxInt64
)

// repay pays the debts to containers that are not capped, for as long as it may take. It retries each that it could not
// pay once per beat.
func (c *clamps) repay(ctx context.Context, mayTake time.Duration) {
	began := c.clock.Now()
	slices.SortStableFunc(c.debts, func(a, b unpaid) int { return a.at.Compare(b.at) }) // so that each has its turn
	left := c.debts[:0]
	for _, d := range c.debts {
		k, now, paid := c.known[d.Container], c.clock.Now(), false
		switch {
		case k != nil:
			k.changed = true // it is capped again
			paid = c.owe(k)
		case !now.Before(d.at) && now.Sub(began) < mayTake:
			paid = c.repaid(ctx, d, now)
			d.at = now.Add(beatEvery)
		}
		if !paid {
			left = append(left, d)
		}
	}
	clear(c.debts[len(left):])
	c.debts = left
}

// repaid pays one debt, and reports whether nothing is owed any more.
func (c *clamps) repaid(ctx context.Context, d unpaid, now time.Time) bool {
	err := c.repayOne(ctx, d.debt)
	dropped := errors.Is(err, errSpecUnknown) && !now.Before(d.giveUp)
	if err != nil && !cgroup.Gone(err) && !dropped {
		c.log.V(1).Info("could not set a container's CPU limit back to its pod's spec; retrying", "pod", d.Pod, "reason", err.Error())
		return false
	}
	c.journal.forget(d.Container, ceilingSuffix)
	return true
}

// repayOne pays one debt. It opens the container anew, because whoever had it open may have closed it. The pod's spec may
// have changed since, and the kubelet has written the limit then. So a limit is lowered at once, to no less than the spec
// says if that is known, and raised to no more than that: a container that was held has what it is owed meanwhile.
func (c *clamps) repayOne(ctx context.Context, d debt) error {
	container, err := c.open(d.Container)
	if err != nil {
		return err
	}
	defer container.Close() //nolint:errcheck // the write was checked
	limit, err := container.CPULimit()
	w := write{d.Pod, lower, d.Allocation.CPUMilli}
	if err != nil || limit == container.Attainable(w.to) {
		return err
	}
	spec, known := c.specOf(d.Pod, d.Container)
	switch held := limit != 0 && limit < w.to; {
	case held && !known:
		return errSpecUnknown
	case held && limit >= container.Attainable(spec), !held && known && limit != 0 && limit <= container.Attainable(spec):
		return nil
	case held:
		w.direction, w.to = restore, min(w.to, spec)
	case known:
		w.to = max(w.to, spec)
	}
	err = container.SetCPU(w.to)
	c.metrics.wrote(ctx, w, resultOf(err))
	return err
}
