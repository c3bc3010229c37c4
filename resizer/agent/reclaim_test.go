package agent

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	clocktesting "k8s.io/utils/clock/testing"
	"pgregory.net/rapid"
	logf "sigs.k8s.io/controller-runtime/pkg/log"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/resizer/cgroup"
	"libra.dev/libra/resizer/cgroup/cgrouptest"
)

// Whatever a container does, nothing is taken before it has been idle for a minute, nor while it
// is to be left alone. Its working set and 50 MiB more are never taken.
func TestIdling(t *testing.T) {
	var steps, rests int // so that something was tested
	rapid.Check(t, func(t *rapid.T) {
		i := newIdling()
		now, cpu := epoch, time.Duration(0)
		quiet := &epoch
		cache := cgroup.Cache{Used: 900 * mib, Inactive: 800 * mib}
		var stirredAt = now                // when a request was last known
		var after time.Time                // it is left alone until then
		uses := []cpuUse{{now, cpu}}       // each second
		var sets []struct{ at, set int64 } // working sets, by second
		second := func() {
			now = now.Add(time.Second)
			if quiet == nil {
				stirredAt = now
			}
			uses = append(uses, cpuUse{now, cpu})
			i.follow(now, quiet, cpu)
			before := i.seen
			bytes, pressed := i.look(now, cache)
			set := cache.Used - cache.Inactive
			if i.seen != before { // it was due
				sets = append(sets, struct{ at, set int64 }{now.Unix(), set})
			}
			if pressed {
				after, rests = now.Add(pressedMin), rests+1
			}
			if bytes == 0 {
				return
			}
			steps++
			ago := func(d time.Duration) int { return max(0, len(uses)-1-int(d/time.Second)) }
			for _, s := range sets {
				if s.at > now.Add(-idleTime).Unix() {
					set = max(set, s.set)
				}
			}
			switch {
			case before == nil || cache.Waited-before.Waited > pressedWait || cache.Refaults-before.Refaults > pressedBytes:
				t.Fatalf("%d bytes are taken after %+v, %+v", bytes, before, cache)
			case quiet == nil || now.Sub(stirredAt) < idleTime:
				t.Fatalf("%d bytes are taken %v after a request", bytes, now.Sub(stirredAt))
			case cpu-uses[ago(idleTime)].cpu >= 2*idleUse: // each of two windows may have a little of it
				t.Fatalf("%d bytes are taken of a container that has used %v", bytes, cpu-uses[ago(idleTime)].cpu)
			case now.Before(after):
				t.Fatalf("%d bytes are taken %v before it may be", bytes, after.Sub(now))
			case cache.Used-bytes < set+spareBytes:
				t.Fatalf("%d bytes are taken of %+v, and the working set was %d", bytes, cache, set)
			case bytes > stepMost || bytes > cache.Inactive-cache.Unclean-spareBytes:
				t.Fatalf("%d bytes are taken of %+v at a time", bytes, cache)
			}
			took := rapid.Int64Range(0, bytes).Draw(t, "took")
			cache.Used, cache.Inactive = cache.Used-took, cache.Inactive-took
		}
		for range rapid.IntRange(1, 12).Draw(t, "events") {
			for range rapid.SampledFrom([]int{1, 2, 58, 59, 60, 61, 70, 120, 601}).Draw(t, "seconds") {
				second()
			}
			switch rapid.SampledFrom([]string{"request", "short request", "cpu", "refaults", "waits", "cache"}).Draw(t, "event") {
			case "request":
				quiet = nil
				for range rapid.IntRange(1, 3).Draw(t, "lasts") {
					second()
				}
				ended := now
				quiet = &ended
			case "short request": // it is over before anybody looks
				ended := now.Add(time.Millisecond)
				quiet, stirredAt = &ended, ended
			case "cpu":
				cpu += time.Duration(rapid.Int64Range(0, int64(2*idleUse)).Draw(t, "cpu"))
			case "refaults":
				cache.Refaults += rapid.SampledFrom([]int64{0, 1, pressedBytes, pressedBytes + 1, 2 * pressedBytes}).Draw(t, "refaults")
			case "waits":
				cache.Waited += rapid.SampledFrom([]time.Duration{0, 1, pressedWait, pressedWait + 1, 2 * pressedWait}).Draw(t, "waited")
			case "cache":
				cache.Inactive = rapid.Int64Range(0, 1<<30).Draw(t, "inactive")
				cache.Used = cache.Inactive + rapid.Int64Range(0, 1<<30).Draw(t, "active")
				cache.Unclean = rapid.Int64Range(0, cache.Inactive).Draw(t, "unclean")
			}
		}
	})
	if steps == 0 || rests == 0 {
		t.Errorf("%d steps and %d rests: nothing was tested", steps, rests)
	}
}

// Memory that the kernel takes to be rarely used, because it was told to take memory, does not
// count as unused.
func TestIdlingKeepsWorkingSet(t *testing.T) {
	i := newIdling()
	i.follow(epoch, &epoch, 0)
	now := epoch.Add(idleTime)
	i.look(now, cgroup.Cache{Used: 400 * mib, Inactive: 100 * mib})
	if bytes, _ := i.look(now, cgroup.Cache{Used: 360 * mib, Inactive: 360 * mib}); bytes > 10*mib/stepPart {
		t.Errorf("%d bytes are to be taken, of 60 MiB above the working set", bytes)
	}
	if bytes, _ := i.look(now, cgroup.Cache{Used: 357 * mib, Inactive: 357 * mib}); bytes != 0 {
		t.Errorf("%d bytes are to be taken, with 57 MiB above the working set left", bytes)
	}
	// Its earlier use does not count for ever.
	i.follow(now, nil, 0)
	i.follow(now, &now, 0)
	now = now.Add(2 * idleTime)
	if bytes, _ := i.look(now, cgroup.Cache{Used: 350 * mib, Inactive: 250 * mib}); bytes == 0 {
		t.Error("nothing is to be taken after another request")
	}
}

// cached is a cgroup from which memory can be taken.
type cached struct {
	constantCgroup
	*cgroup.Cache
	asked   []int64 // bytes
	part    int64   // it gives so many percent of what is asked for
	opening error
	err     error
	opened  int
	open    func() // called when the Reclaimer is opened
}

func (c *cached) Reclaimer() (cgroup.Reclaimer, error) {
	if c.opening != nil {
		return nil, c.opening
	}
	c.opened++
	if c.open != nil {
		c.open()
	}
	return &cachedReclaimer{c}, nil
}

type cachedReclaimer struct{ *cached }

func (r *cachedReclaimer) Close() error                { r.opened--; return nil }
func (r *cachedReclaimer) Read() (cgroup.Cache, error) { return *r.Cache, nil }
func (r *cachedReclaimer) Reclaim(bytes int64) error {
	r.asked = append(r.asked, bytes)
	r.Used -= bytes * r.part / 100
	r.Inactive -= bytes * r.part / 100
	return r.err
}

// reclaimRig is an agent that takes memory from idle containers.
type reclaimRig struct {
	*testing.T
	*Agent
	clock   *clocktesting.FakeClock
	metrics *rig // for the counters
	lines   []string
}

func newReclaimRig(t *testing.T) *reclaimRig {
	clk := clocktesting.NewFakeClock(epoch)
	a, _, reader := newTestAgent(t, clk, nil, t.TempDir(), &scriptedWatcher{}, nil)
	return &reclaimRig{T: t, Agent: a, clock: clk, metrics: &rig{fatal: t, ctx: t.Context(), metrics: reader}}
}

func (g *reclaimRig) add(pod string, c cgroup.Container) *container {
	made := &container{id: pod, function: pod + "-00001", cgroup: c}
	quiet := g.clock.Now()
	made.quiet.Store(&quiet)
	g.containers.put(pod, made)
	return made
}

// pass lets seconds pass.
func (g *reclaimRig) pass(d time.Duration) {
	g.Helper()
	log := funcr.New(func(_, line string) { g.lines = append(g.lines, line) }, funcr.Options{Verbosity: 1})
	ctx := logf.IntoContext(g.Context(), log)
	for until := g.clock.Now().Add(d); g.clock.Now().Before(until); {
		g.clock.Step(time.Second)
		for _, s := range g.containers.all() {
			if err := s.sampleWhole(g.clock.Now); err != nil {
				g.Fatal(err)
			}
		}
		g.reclaimOnce(ctx)
	}
}

func (g *reclaimRig) expect(c *cached, what string, steps int) {
	g.Helper()
	if len(c.asked) != steps {
		g.Errorf("%s: %d steps, want %d: %v", what, len(c.asked), steps, c.asked)
	}
	if c.opened != 0 {
		g.Errorf("%s: %d are open", what, c.opened)
	}
	c.asked = nil
}

func bigCache() *cgroup.Cache { return &cgroup.Cache{Used: 900 * mib, Inactive: 800 * mib} }

// Each second a step takes memory from one container, until enough is left.
func TestReclaim(t *testing.T) {
	g := newReclaimRig(t)
	a, b := &cached{Cache: bigCache(), part: 100}, &cached{Cache: &cgroup.Cache{Used: 300 * mib, Inactive: 250 * mib}, part: 100}
	g.add("x/a", a)
	g.add("x/b", b)
	g.pass(idleTime)
	g.expect(a, "before a minute", 0)
	g.expect(b, "before a minute", 0)
	g.pass(2 * time.Second) // a first look at each
	g.expect(a, "a first look", 0)
	g.expect(b, "a first look", 0)
	g.pass(10 * time.Second)
	g.expect(a, "ten seconds", 5)
	g.expect(b, "ten seconds", 5)
	g.pass(5 * time.Minute)
	for c, workingSet := range map[*cached]int64{a: 100 * mib, b: 50 * mib} {
		if left := c.Used - workingSet; left < spareBytes || left >= spareBytes+stepLeast*stepPart {
			t.Errorf("%d bytes are left above the working set", left)
		}
	}
	if n, want := g.metrics.counted("libra.agent.reclaimed", "x/a-00001"), 900*mib-a.Used; n != want {
		t.Errorf("%d bytes are counted of a, want %d", n, want)
	}
	if n := g.metrics.counted("libra.agent.reclaims", reclaimTaken); n < 50 {
		t.Errorf("%d steps are counted", n)
	}
}

// A container that gives less than it is asked for, or whose memory cannot be taken, is left alone
// for longer and longer. One that gives again is not.
func TestReclaimLess(t *testing.T) {
	g := newReclaimRig(t)
	c := &cached{Cache: bigCache(), err: syscall.EAGAIN}
	g.add("x/a", c)
	g.pass(idleTime + 2*time.Second)
	g.expect(c, "the first", 1)
	for wait := lessMin; wait <= 2*lessMax; wait *= 2 {
		g.pass(min(wait, lessMax) - time.Second)
		g.expect(c, fmt.Sprint("before ", wait), 0)
		g.pass(time.Second)
		g.expect(c, fmt.Sprint("after ", wait), 1)
	}
	c.err, c.part = nil, 100
	g.pass(lessMax)
	c.asked, c.err, c.part = nil, errors.New("broken"), 0
	g.pass(time.Second)
	g.expect(c, "broken", 1)
	g.pass(lessMin - time.Second)
	g.expect(c, "before a minute", 0)
	g.pass(time.Second)
	g.expect(c, "after a minute", 1)
	if less, failed := g.metrics.counted("libra.agent.reclaims", reclaimLess), g.metrics.counted("libra.agent.reclaims", reclaimFailed); less < 7 || failed != 2 {
		t.Errorf("%d gave less and %d failed", less, failed)
	}
}

// A container that has read back what was taken from it, or waits for memory, is left alone for
// ten minutes, and then for longer.
func TestReclaimPressure(t *testing.T) {
	g := newReclaimRig(t)
	c := &cached{Cache: bigCache(), part: 100}
	g.add("x/a", c)
	g.pass(idleTime + 2*time.Second)
	g.expect(c, "the first", 1)
	c.Refaults, c.Waited = pressedBytes, pressedWait
	g.pass(time.Second)
	g.expect(c, "a little pressure", 1)
	c.Refaults += pressedBytes + 1
	g.pass(pressedMin)
	g.expect(c, "after refaults", 0)
	g.pass(2 * time.Second)
	g.expect(c, "later", 2)
	c.Waited += pressedWait + 1
	g.pass(2 * pressedMin)
	g.expect(c, "after waiting", 0)
	g.pass(time.Second)
	g.expect(c, "later", 1)
	if n := g.metrics.counted("libra.agent.reclaims", reclaimPressed); n != 2 {
		t.Errorf("%d times under pressure, want 2", n)
	}
}

// Nothing is taken while a request is known, nor for a minute after it or after CPU was used. CPU
// that probes use does not count.
func TestReclaimOnlyWhileIdle(t *testing.T) {
	g := newReclaimRig(t)
	c := &cached{Cache: bigCache(), part: 100}
	made := g.add("x/a", c)
	g.pass(idleTime + 2*time.Second)
	g.expect(c, "idle", 1)
	made.quiet.Store(nil)
	g.pass(2 * idleTime)
	g.expect(c, "with a request", 0)
	ended := g.clock.Now()
	made.quiet.Store(&ended)
	g.pass(idleTime - time.Second)
	g.expect(c, "before a minute", 0)
	g.pass(time.Second)
	g.expect(c, "after a minute", 1)
	c.open = func() { made.quiet.Store(nil) }
	g.pass(time.Second)
	g.expect(c, "with a request that has just begun", 0)
	c.open = nil
	ended = g.clock.Now()
	made.quiet.Store(&ended)
	g.pass(idleTime + time.Second)
	g.expect(c, "after it", 1)
	c.Reading.CPU += idleUse
	g.pass(idleTime)
	g.expect(c, "after CPU was used", 0)
	g.pass(2 * time.Second)
	g.expect(c, "a minute later", 2)
	for range 5 {
		c.Reading.CPU += 10 * leastUse
		g.pass(12 * time.Second)
	}
	g.expect(c, "with probes", 55) // not while they are answered
}

// The log says only once of each container that the kernel cannot.
func TestReclaimUnsupported(t *testing.T) {
	g := newReclaimRig(t)
	for _, pod := range []string{"x/a", "x/b"} {
		g.add(pod, &cached{Cache: bigCache(), opening: fmt.Errorf("%w: %w", errors.ErrUnsupported, syscall.ENOENT)})
	}
	g.add("x/gone", &cached{Cache: bigCache(), opening: syscall.ENOENT})
	g.pass(3 * time.Hour)
	if len(g.lines) != 2 || !strings.Contains(g.lines[0]+g.lines[1], "x/a") || !strings.Contains(g.lines[0]+g.lines[1], "x/b") {
		t.Errorf("the log says %q, want one line for each container that the kernel cannot reclaim from", g.lines)
	}
	if n := g.metrics.counted("libra.agent.reclaims", ""); n != 0 {
		t.Errorf("%d are counted", n)
	}
}

// Memory is taken from pods that lend, while no request is known in them, and where it helps.
func TestQuiet(t *testing.T) {
	m := newMemoryRig(t)
	m.run("a/p", true)
	m.openPool()
	quiet := func(what string, want bool) *time.Time {
		t.Helper()
		m.needs(map[string]int64{"a/p": 50})
		at := m.sampled.get("a/p").quiet.Load()
		if got := at != nil; got != want {
			t.Errorf("%s: quiet is %t", what, got)
		}
		return at
	}
	since := quiet("at rest", true)
	m.clock.Step(time.Second)
	if at := quiet("still", true); at != since {
		t.Errorf("quiet since %v, and then since %v", since, at)
	}
	m.node.free = m.node.total / 2
	quiet("on a node with free memory", false)
	m.kernel["a/p"].Limit.MemoryBytes = 2 * userLimits.MemoryBytes
	quiet("with a raised limit", true)
	m.kernel["a/p"].Limit.MemoryBytes = userLimits.MemoryBytes
	m.node.free = 0
	m.inform("a/p", func(i *podInfo) { i.allocation = api.Resources{} })
	quiet("in mode observe", false)
	m.inform("a/p", func(i *podInfo) { i.allocation = userLimits })
	quiet("in mode full", true)
	m.inform("a/p", func(i *podInfo) { i.observed = "it has no limit" })
	quiet("only observed", false)
	m.inform("a/p", func(i *podInfo) { i.observed = "" })
	quiet("not any more", true)
	m.begin("1", "a/p", api.Resources{}, api.Resources{MemoryBytes: 200 * mib})
	m.exchange()
	quiet("with a request that needs more than there is", false)
	m.run("a/q", true)
	m.exchange()
	m.begin("2", "a/q", api.Resources{MemoryBytes: 200 * mib}, api.Resources{})
	m.exchange()
	if b := m.balance(m.get("a/p")); b.Borrowed.IsZero() || b.Short != 0 {
		t.Fatalf("nothing was borrowed: %+v", b)
	}
	quiet("with a request that borrows", false)
	m.end("1")
	m.exchange()
	quiet("after it", true)
	m.lost = true
	quiet("without Redis", false)
}

// A request that begins is known at once.
func TestQuietEndsWithARequest(t *testing.T) {
	k := newRankedPair(t)
	c := &container{id: "c0"}
	k.sampled.put("default/p0", c)
	k.tell()
	c.told.Store(true)
	c.quiet.Store(&epoch)
	k.fly("default/p0", time.Second)
	k.hearBegun("default/p0")
	if c.quiet.Load() != nil {
		t.Error("a container is quiet in which a request has begun")
	}
}

// On a real kernel, what an idle container read is taken, and no more once the container reads it
// again.
func TestKernelReclaimsOfIdle(t *testing.T) {
	made := cgrouptest.New(t)
	if !made.V2 {
		t.Skip("cgroup v1 cannot reclaim")
	}
	opened, err := cgroup.Open(made.Root, made.ID)
	if err != nil {
		t.Fatal(err)
	}
	g := newReclaimRig(t)
	c := g.add("x/a", opened)
	t.Cleanup(func() {
		c.close()
		if t.Failed() {
			t.Log(strings.Join(g.lines, "\n"))
		}
	})
	file, load := cgrouptest.Cold(t), made.Start(t)
	load.Do("hold %d", 32*mib)
	load.Do("read %s", file)
	used := func() int64 {
		var bytes int64
		if _, err := fmt.Sscan(cgrouptest.Line(t, made.File("", "memory.current")), &bytes); err != nil {
			t.Fatal(err)
		}
		return bytes
	}
	before := used()
	g.pass(idleTime)
	if now := used(); before-now > mib {
		t.Errorf("%d bytes are used before a minute, and were %d", now, before)
	}
	g.pass(time.Minute)
	idle := used()
	if taken := before - idle; taken < 66*mib || taken > 79*mib {
		t.Errorf("%d MiB were taken, want 128 less 50, or some less", taken/mib)
	}
	if n, want := g.metrics.counted("libra.agent.reclaimed", "x/a-00001"), before-idle; n < want-2*mib || n > want+2*mib {
		t.Errorf("%d bytes are counted, and %d were taken", n, want)
	}
	load.Do("read %s", file)
	again := used()
	g.pass(idleTime + pressedMin)
	if now := used(); again-now > mib {
		t.Errorf("%d bytes are used after all was read again, and were %d", now, again)
	}
	if n := g.metrics.counted("libra.agent.reclaims", reclaimPressed); n != 1 {
		t.Errorf("%d times under pressure, want one", n)
	}
}
