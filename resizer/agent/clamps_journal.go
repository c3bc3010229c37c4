package agent

import (
	"context"
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
	c.log, c.journal, c.debts = log, journal, debts
	c.repay(ctx)
}

// stop gives every container back what its pod's spec says.
func (c *clamps) stop(ctx context.Context) {
	if c == nil {
		return
	}
	c.nextAt, c.repayAt = c.clock.Now(), time.Time{}
	c.follow(nil)
	c.repay(ctx)
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
	c.debts, c.repayAt = append(c.debts, k.debt()), time.Time{}
}

// repay pays the debts to containers that are not capped. It retries those that it could not pay once per
// beat, because looking for a container walks through all cgroups of the node.
func (c *clamps) repay(ctx context.Context) {
	now := c.clock.Now()
	due := !now.Before(c.repayAt)
	if due {
		c.repayAt = now.Add(beatEvery)
	}
	c.debts = slices.DeleteFunc(c.debts, func(d debt) bool {
		if k := c.known[d.Container]; k != nil {
			k.changed = true // it is capped again
			return c.owe(k)
		}
		if !due {
			return false
		}
		if err := c.repayOne(ctx, d); err != nil && !cgroup.Gone(err) {
			c.log.V(1).Info("could not set a container's CPU limit back to its pod's spec; retrying", "pod", d.Pod, "reason", err.Error())
			return false
		}
		c.journal.forget(d.Container, ceilingSuffix)
		return true
	})
}

// repayOne pays one debt. It opens the container anew, because whoever had it open may have closed it.
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
	if limit != 0 && limit < w.to {
		w.direction = restore
	}
	err = container.SetCPU(w.to)
	c.metrics.wrote(ctx, w, resultOf(err))
	return err
}
