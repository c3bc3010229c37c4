package agent

import (
	"context"
	"errors"
	"os"
	"slices"
)

// A container that uses more than guardFrom of its memory limit, in eighths, is slowed down in the
// last eighth of it until the limit is raised: the kernel has it wait the longer the further it
// goes on, in all for seconds. It is let go when it uses less than guardUntil.
//
// One whose limit is about to be lowered is guarded by what that will be, however little it uses: the
// kubelet looks at what is in use a while before it sets the limit, and a request that grows
// beyond it meanwhile would be killed.
const (
	guardFrom, guardUntil, guardAt, guardParts = 4, 3, 7, 8
)

var pageSize = int64(os.Getpagesize())

// guardOf is the use, in bytes, beyond which a container with a memory limit is slowed down. The
// kernel counts in pages.
func guardOf(limit int64) int64 { return limit / guardParts * guardAt / pageSize * pageSize }

// isGuard says that some agent may have set a guard, of one of the limits or of one before or after:
// what is asked for is a multiple of needStep.
func isGuard(at int64, limits ...int64) bool {
	return at%guardAt == 0 && at/guardAt*guardParts%needStep == 0 ||
		slices.ContainsFunc(limits, func(limit int64) bool { return at == guardOf(limit) })
}

// guard is what of a container's memory its use is slowed down beyond.
type guard struct {
	at    int64 // bytes, as the kernel was told last; 0 is nothing
	known bool  // what it was told before the agent came
	// others says that it is another's to set, or that the kernel has no such thing.
	others bool
}

// guardMemory sets the container's guard to what the last sample asks for. What an earlier agent left
// is like one's own.
func (c *container) guardMemory() error {
	c.guarding.Lock()
	defer c.guarding.Unlock()
	at, another, err := c.guardDue()
	if err != nil || !another {
		return err
	}
	return c.setGuard(at)
}

// guardDue is where the guard is to be by the last sample, and says whether that is another place than
// where it is.
func (c *container) guardDue() (at int64, another bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	g := &c.guard
	if g.others || c.ring.len() == 0 {
		return 0, false, nil
	}
	last := c.ring.last()
	limit, spec := last.Limit.MemoryBytes, c.spec.Load()
	if !g.known {
		found, err := c.cgroup.MemoryGuard()
		if err != nil {
			return 0, false, err
		}
		g.known = true
		if g.others = found != 0 && !isGuard(found, limit, spec); g.others {
			return 0, false, nil
		}
		g.at = found
	}
	from := int64(guardFrom)
	switch {
	case spec > 0 && spec < limit && (last.Memory < guardOf(spec) || g.at == guardOf(spec)):
		limit, from = spec, 0
	case g.at != 0:
		from = guardUntil
	}
	at = guardOf(limit)
	if !c.rescuable.Load() || guardParts*last.Memory <= from*limit {
		at = 0
	}
	// A write of less than is in use would wait for the kernel to reclaim that, and so would whoever
	// takes samples.
	if at != g.at && last.Memory >= at {
		at = 0
	}
	return at, at != g.at, nil
}

// setGuard tells the kernel. The caller holds guarding, and not mu: more may be in use by now than was
// sampled, and while the kernel reclaims it, the safeguards of all containers must not wait for this one's samples.
func (c *container) setGuard(at int64) error {
	err := c.cgroup.GuardMemory(at)
	c.mu.Lock()
	defer c.mu.Unlock()
	if errors.Is(err, errors.ErrUnsupported) {
		c.guard.others = true
		return nil
	}
	if err == nil {
		c.guard.at = at
	}
	return err
}

// release takes the container's guard off.
func (c *container) release() error {
	c.guarding.Lock()
	defer c.guarding.Unlock()
	return c.takeGuardOff()
}

// takeGuardOff does, for who holds guarding.
func (c *container) takeGuardOff() error {
	if c.guard.at == 0 {
		return nil
	}
	return c.setGuard(0)
}

// guardMemory has a container that may get more memory not be killed before it does.
func (a *Agent) guardMemory(ctx context.Context, s sampledPod) {
	a.failedSample(ctx, s.pod, s.guardMemory())
}

// releaseAll takes all guards off, of an agent that stops.
func (a *Agent) releaseAll(ctx context.Context) {
	for _, s := range a.containers.all() {
		a.failedSample(ctx, s.pod, s.release())
	}
}
