package agent

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/go-logr/logr"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/resizer/cgroup"
)

// ceilingsDir, in the journal's folder, names the containers to which the agent gave more
// CPU than their pods' specs say, or which it holds to less.
const ceilingsDir = "ceilings"

// recall opens the journal, and gives back what an earlier agent raised.
func (c *clamps) recall(ctx context.Context, log logr.Logger, journalDir string) {
	if c == nil {
		return
	}
	c.log = log
	journal, err := openJournal(filepath.Join(journalDir, ceilingsDir))
	if err != nil {
		c.metrics.journalErrors.Add(ctx, 1)
		c.log.Error(err, "no ceiling is set above a pod's spec, because the journal of ceilings cannot be opened")
		return
	}
	debts, unread := journal.load()
	c.journal, c.debts = journal, debts
	if len(unread) > 0 {
		c.metrics.journalErrors.Add(ctx, int64(len(unread)))
		c.log.Error(errors.Join(unread...), "leaving unreadable journal files in place; the ceilings that they record are not taken back")
	}
	c.repay(ctx)
}

// stop gives every container back what its pod's spec says.
func (c *clamps) stop(ctx context.Context) {
	if c == nil {
		return
	}
	c.nextAt, c.repayAt = c.clock.Now(), time.Time{}
	c.follow(ctx, nil)
	c.repay(ctx)
	if c.journal != nil {
		c.journal.close()        //nolint:errcheck // the process ends
		os.Remove(c.journal.dir) //nolint:errcheck // where something is owed it is not empty, and stays
	}
	c.journal = nil
}

// owe writes to the journal what a container is to get back, and reports whether it could.
func (c *clamps) owe(ctx context.Context, k *clampedContainer) bool {
	err := errors.New("there is no journal")
	if c.journal != nil {
		err = c.journal.put(k.debt())
	}
	if err != nil {
		c.metrics.journalErrors.Add(ctx, 1)
		c.refuse(k, err, "a container gets no more CPU than its pod's spec says, because the journal cannot record what it is to get back")
		return false
	}
	k.owing = true
	return true
}

// debt is what a container gets back.
func (k *clampedContainer) debt() debt {
	return debt{Container: k.container, Pod: k.pod, Function: k.function, Allocation: api.Resources{CPUMilli: max(k.spec, k.allocation)}}
}

// forget removes a container from the journal, because the clamps no longer owe it anything.
func (c *clamps) forget(k *clampedContainer) {
	k.owing = false
	c.erase(k.container)
}

func (c *clamps) erase(container string) {
	if c.journal == nil {
		return
	}
	if err := c.journal.remove(container); err != nil {
		c.metrics.journalErrors.Add(context.Background(), 1)
		c.log.Error(err, "could not remove a container from the journal; the next agent to start sets its CPU limit again")
	}
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
			return c.owe(ctx, k)
		}
		if !due {
			return false
		}
		if err := c.repayOne(ctx, d); err != nil && !cgroup.Gone(err) {
			c.log.V(1).Info("could not set a container's CPU limit back to its pod's spec; retrying", "pod", d.Pod, "reason", err.Error())
			return false
		}
		c.erase(d.Container)
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
