package agent

import (
	"errors"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/resizer/cgroup"
	"libra.dev/libra/resizer/cgroup/cgrouptest"
)

// guardedCgroup is a cgroup whose guard can be set, if the kernel has guards.
type guardedCgroup struct {
	cgroup.Reading
	unguarded
	guard, writes int64
	cannot        bool
	writing       func() // called while the guard is written
}

func (c *guardedCgroup) Read() (cgroup.Reading, error)    { return c.Reading, nil }
func (c *guardedCgroup) ReadUse() (cgroup.Reading, error) { return c.Reading, nil }
func (c *guardedCgroup) CPU() (time.Duration, error)      { return c.Reading.CPU, nil }
func (*guardedCgroup) Close() error                       { return nil }
func (c *guardedCgroup) MemoryGuard() (int64, error)      { return c.guard, nil }
func (c *guardedCgroup) GuardMemory(bytes int64) error {
	c.writes++
	if c.writing != nil {
		c.writing()
	}
	if c.cannot {
		return errors.ErrUnsupported
	}
	c.guard = bytes
	return nil
}

// A container that uses more than half of its limit, and may get more, is slowed down near the limit.
// The guard follows the limit as soon as that is raised.
func TestGuard(t *testing.T) {
	const limit = 128 * mib
	at := int64(0)
	now := func() time.Time { at++; return epoch.Add(time.Duration(at) * sampleEvery) }
	made := &guardedCgroup{Reading: cgroup.Reading{Limit: api.Resources{MemoryBytes: limit}}}
	c := &container{cgroup: made}
	for _, step := range []struct {
		name             string
		memory, limit    int64
		rescuable        bool
		guard, newWrites int64
		still            bool // it uses no CPU
	}{
		{"half is in use", limit / 2, limit, true, 0, 0, false},
		{"more is in use", limit/2 + mib, limit, true, 112 * mib, 1, false},
		{"a little less is", limit/2 - mib, limit, true, 112 * mib, 0, false},
		{"it grows", 113 * mib, limit, true, 112 * mib, 0, false},
		{"the limit is raised, and it has used no CPU", 113 * mib, 160 * mib, true, 140 * mib, 1, true},
		{"the limit is raised far", 113 * mib, 2048 * mib, true, 0, 1, false},
		{"it comes near that", 1700 * mib, 2048 * mib, true, 1792 * mib, 1, false},
		{"there is no more for it", 1800 * mib, 2048 * mib, false, 0, 1, false},
		{"there is none still", 2040 * mib, 2048 * mib, false, 0, 0, false},
		{"there is again, and it is beyond", 1800 * mib, 2048 * mib, true, 0, 0, false},
		{"it uses less", 1700 * mib, 2048 * mib, true, 1792 * mib, 1, false},
		{"the limit falls below what it uses", 1700 * mib, 1800 * mib, true, 0, 1, false},
		{"it rises", 1700 * mib, 2048 * mib, true, 1792 * mib, 1, false},
		{"it has no limit", 1800 * mib, 0, true, 0, 1, false},
	} {
		made.Memory, made.Limit.MemoryBytes = step.memory, step.limit
		c.rescuable.Store(step.rescuable)
		before := made.writes
		sample := c.sampleWhole
		if step.still {
			sample = func(now func() time.Time) error { _, err := c.sample(now); return err }
		}
		if err := sample(now); err != nil {
			t.Fatal(err)
		}
		err := c.guardMemory()
		if err != nil || made.guard != step.guard || made.writes-before != step.newWrites {
			t.Errorf("%s: the guard is %d MiB after %d writes, want %d after %d (%v)",
				step.name, made.guard/mib, made.writes-before, step.guard/mib, step.newWrites, err)
		}
	}
}

// A container whose limit is about to be lowered is guarded by the new limit, however little is in use.
func TestGuardOfALimitThatIsLowered(t *testing.T) {
	made := &guardedCgroup{Reading: cgroup.Reading{Memory: mib, Limit: api.Resources{MemoryBytes: 384 * mib}}}
	c := &container{cgroup: made}
	c.rescuable.Store(true)
	for _, step := range []struct {
		name                       string
		memory, limit, spec, guard int64
	}{
		{"the spec has as much", 1, 384, 384, 0},
		{"the spec has less", 1, 384, 96, 84},
		{"more is in use", 83, 384, 96, 84},
		{"more than the guard is, which it had before", 90, 384, 96, 84},
		{"less again", 60, 384, 96, 84},
		{"the spec has less still", 60, 384, 80, 70},
		{"the limit is lowered", 20, 80, 80, 0},
		{"the spec has more", 20, 80, 384, 0},
		{"it is near the limit that is about to be raised", 60, 80, 384, 70},
		{"it has no limit in the spec", 10, 384, 0, 0},
	} {
		made.Memory, made.Limit.MemoryBytes = step.memory*mib, step.limit*mib
		c.spec.Store(step.spec * mib)
		if err := c.sampleWhole(func() time.Time { return epoch }); err != nil {
			t.Fatal(err)
		}
		if err := c.guardMemory(); err != nil || made.guard != step.guard*mib {
			t.Errorf("%s: the guard is %d MiB, want %d (%v)", step.name, made.guard/mib, step.guard, err)
		}
	}
}

// If a limit cannot be lowered because more is in use, the guard is that of the limit in force.
func TestGuardOfALimitThatCannotBeLowered(t *testing.T) {
	made := &guardedCgroup{Reading: cgroup.Reading{Memory: 300 * mib, Limit: api.Resources{MemoryBytes: 384 * mib}}}
	c := &container{cgroup: made}
	c.rescuable.Store(true)
	c.spec.Store(96 * mib)
	if err := c.sampleWhole(func() time.Time { return epoch }); err != nil {
		t.Fatal(err)
	}
	if err := c.guardMemory(); err != nil || made.guard != guardOf(384*mib) {
		t.Errorf("the guard is %d MiB, %v, want that of the limit in force", made.guard/mib, err)
	}
}

// An agent takes over a guard that its predecessor set by a limit to come and died before that came.
func TestGuardOfBeforeByALimitToCome(t *testing.T) {
	const owed = 100_000_000 // what owners write need not be whole steps
	made := &guardedCgroup{guard: guardOf(owed), Reading: cgroup.Reading{Memory: mib, Limit: api.Resources{MemoryBytes: 384 * mib}}}
	c := &container{cgroup: made}
	c.rescuable.Store(true)
	c.spec.Store(owed)
	if err := c.sampleWhole(func() time.Time { return epoch }); err != nil {
		t.Fatal(err)
	}
	if err := c.guardMemory(); err != nil || made.writes != 0 {
		t.Errorf("the guard is %d after %d writes, %v, want it kept", made.guard, made.writes, err)
	}
	made.Limit.MemoryBytes = owed
	if err := c.sampleWhole(func() time.Time { return epoch }); err != nil {
		t.Fatal(err)
	}
	if err := c.guardMemory(); err != nil || made.guard != 0 {
		t.Errorf("the guard is %d when the limit is lowered, %v, want none", made.guard, err)
	}
}

// A guard that an earlier agent left is taken off, and one that others set is left alone.
func TestGuardOfBefore(t *testing.T) {
	const limit = 128 * mib
	for name, tc := range map[string]struct{ found, want int64 }{
		"an earlier agent's":    {guardOf(limit), 0},
		"one of a limit before": {guardOf(96 * mib), 0},
		"one of a limit after":  {guardOf(200 * mib), 0},
		"another's":             {100 * mib, 100 * mib},
		"nobody's":              {0, 0},
	} {
		made := &guardedCgroup{guard: tc.found, Reading: cgroup.Reading{Memory: mib, Limit: api.Resources{MemoryBytes: limit}}}
		c := &container{cgroup: made}
		c.rescuable.Store(true)
		for range 2 {
			if err := c.sampleWhole(func() time.Time { return epoch }); err != nil {
				t.Fatal(err)
			}
			if err := c.guardMemory(); err != nil || made.guard != tc.want {
				t.Errorf("%s: the guard is %d, %v, want %d", name, made.guard, err, tc.want)
			}
		}
		made.Memory = 100 * mib
		if err := c.sampleWhole(func() time.Time { return epoch }); err != nil {
			t.Fatal(err)
		}
		err := c.guardMemory()
		if ours := tc.want == 0; err != nil || (made.guard == guardOf(limit)) != ours {
			t.Errorf("%s: near the limit the guard is %d, %v", name, made.guard, err)
		}
		if c.close(); made.guard != tc.want {
			t.Errorf("%s: the guard is %d when the container is left alone", name, made.guard)
		}
	}
}

// A kernel that has no guards is asked once.
func TestNoGuards(t *testing.T) {
	made := &guardedCgroup{cannot: true, Reading: cgroup.Reading{Memory: 100 * mib, Limit: api.Resources{MemoryBytes: 128 * mib}}}
	c := &container{cgroup: made}
	c.rescuable.Store(true)
	for range 3 {
		if err := c.sampleWhole(func() time.Time { return epoch }); err != nil {
			t.Fatal(err)
		}
		if err := c.guardMemory(); err != nil {
			t.Error(err)
		}
	}
	if made.writes != 1 {
		t.Errorf("%d writes, want one", made.writes)
	}
}

// While the kernel takes its time over a guard, nobody waits for the container's samples, nor for the
// list of containers.
func TestNobodyWaitsForAGuard(t *testing.T) {
	made := &guardedCgroup{Reading: cgroup.Reading{Memory: 100 * mib, Limit: api.Resources{MemoryBytes: 128 * mib}}}
	all, c := newContainers(), &container{cgroup: made}
	c.rescuable.Store(true)
	c.told.Store(true)
	all.put("a/p", c)
	if err := c.sampleWhole(func() time.Time { return epoch }); err != nil {
		t.Fatal(err)
	}
	made.writing = func() {
		for name, mu := range map[string]*sync.Mutex{"the container's samples": &c.mu, "the containers": &all.mu} {
			if !mu.TryLock() {
				t.Fatalf("write %d of the guard: who asks for %s waits for it", made.writes, name)
			}
			mu.Unlock()
		}
		if used := c.memory().used; used != made.Memory || !c.rests(epoch) {
			t.Errorf("write %d of the guard: %d bytes are in use, and the container rests: %v", made.writes, used, c.rests(epoch))
		}
	}
	for range 2 {
		if err := c.guardMemory(); err != nil {
			t.Fatal(err)
		}
		if made.writes == 1 {
			if err := c.release(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if all.put("a/p", nil); made.writes != 4 || made.guard != 0 {
		t.Errorf("%d writes, and a guard of %d bytes is left, want 4 and none", made.writes, made.guard)
	}
}

// A guard can be written while the container is sampled.
func TestGuardBesideSamples(t *testing.T) {
	opened, err := cgroup.Open(cgrouptest.Tree(t, cgrouptest.V2(filepath.Join("kubepods", id))), id)
	if err != nil {
		t.Fatal(err)
	}
	c := &container{cgroup: opened}
	c.spec.Store(200 * mib) // above what is in use, and below the limit
	sample := func() {
		if err := c.sampleWhole(func() time.Time { return epoch }); err != nil {
			t.Error(err)
		}
	}
	sample()
	var sampling sync.WaitGroup
	sampling.Go(func() {
		for range 100 {
			sample()
		}
	})
	for i := range 100 {
		c.rescuable.Store(i%2 == 0)
		if err := c.guardMemory(); err != nil || (c.guard.at != 0) != (i%2 == 0) {
			t.Errorf("the guard is %d, %v", c.guard.at, err)
		}
	}
	sampling.Wait()
	c.close()
}
