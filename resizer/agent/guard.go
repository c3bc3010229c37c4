package agent

import (
	"context"
	"errors"
	"os"
	"slices"
)

// A container that uses more than guardFrom eighths of its memory limit is slowed down in the last
// eighth until the limit is raised: the further it goes, the longer the kernel has it wait, for
// seconds in all. Its guard is taken off when it uses less than guardUntil eighths.
//
// A container whose limit is about to be lowered is guarded by the new limit, however little it
// uses: the kubelet looks at what is in use a while before it sets the limit, and a request that
// grows beyond the limit meanwhile would be killed.
const (
	guardFrom, guardUntil, guardAt, guardParts = 4, 3, 7, 8
)

var pageSize = int64(os.Getpagesize())

// guardOf is the use, in bytes, beyond which a container with that memory limit is slowed down. The
// kernel counts in pages.
func guardOf(limit int64) int64 { return limit / guardParts * guardAt / pageSize * pageSize }

// isGuard reports whether an agent may have set the guard at, for one of limits or for an earlier or
// later one: the limits for which agents ask are multiples of needStep.
func isGuard(at int64, limits ...int64) bool {
	return at%guardAt == 0 && at/guardAt*guardParts%needStep == 0 ||
		slices.ContainsFunc(limits, func(limit int64) bool { return at == guardOf(limit) })
}

// guard is the memory use beyond which a container is slowed down.
type guard struct {
	at    int64 // bytes, as last told to the kernel; 0 is none
	known bool  // the guard from before this agent was read
	// others says that the guard is somebody else's to set, or that the kernel has no guards.
	others bool
}

// guardMemory sets the container's guard to what the last sample calls for. It treats a guard that an
// earlier agent left as its own.
func (c *container) guardMemory() error {
	c.guarding.Lock()
	defer c.guarding.Unlock()
	at, another, err := c.guardDue()
	if err != nil || !another {
		return err
	}
	return c.setGuard(at)
}

// guardDue returns where the guard is to be by the last sample, and whether it is elsewhere now.
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
	// A write of less than is in use would wait while the kernel reclaims the excess, and the goroutine
	// that takes samples would wait with it.
	if at != g.at && last.Memory >= at {
		at = 0
	}
	return at, at != g.at, nil
}

// setGuard writes the guard. The caller holds guarding, but not mu: more may be in use by now than was sampled,
// and while the kernel reclaims it, the safeguards of all containers must not wait for this one's samples.
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

// takeGuardOff is release for a caller that holds guarding.
func (c *container) takeGuardOff() error {
	if c.guard.at == 0 {
		return nil
	}
	return c.setGuard(0)
}

// guardMemory keeps a container that may get more memory from being killed before it does.
func (a *Agent) guardMemory(ctx context.Context, s sampledPod) {
	a.failedSample(ctx, s.pod, s.guardMemory())
}

// releaseAll takes all guards off when the agent stops.
func (a *Agent) releaseAll(ctx context.Context) {
	for _, s := range a.containers.all() {
		a.failedSample(ctx, s.pod, s.release())
	}
}
