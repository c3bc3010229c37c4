package agent

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	"pgregory.net/rapid"
)

// crowd takes a clamp through time, with functions that use all that they may.
type crowd struct {
	clamp clamp
	now   time.Time
	uses  []clampUse
}

func newCrowd(uses ...clampUse) *crowd { return &crowd{now: epoch, uses: uses} }

// tick lets 20 ms pass, after which the clamp's quotas are in force.
func (c *crowd) tick(waited bool) {
	c.after(clampEvery, waited)
}

func (c *crowd) after(d time.Duration, waited bool) {
	c.now = c.now.Add(d)
	c.clamp.tick(c.now, waited, c.uses)
	for i, u := range c.uses {
		c.uses[i].inForce = c.clamp.quota(u.container)
	}
}

func (c *crowd) quota() int64 { return c.uses[0].inForce }
func (c *crowd) level() int64 { return c.clamp.levels[c.uses[0].container].milli }

func (c *crowd) ticks(d time.Duration, waited bool) {
	for range d / clampEvery {
		c.tick(waited)
	}
}

var burning = clampUse{container: "c", allocation: 500, ceiling: 2000, used: 2000, inForce: 2000}

func TestClamp(t *testing.T) {
	c := newCrowd(burning)
	c.ticks(time.Second, false)
	if c.quota() != 2000 {
		t.Fatalf("quota is %dm while nobody waits, want the ceiling", c.quota())
	}

	// A moment's wait halves its level, and holds it until nobody has waited for a period.
	c.tick(true)
	if c.quota() != 500 || c.level() != 1250 {
		t.Fatalf("quota is %dm and level %dm after a wait, want 500m and 1250m", c.quota(), c.level())
	}
	c.ticks(80*time.Millisecond, false)
	if c.quota() != 500 {
		t.Fatalf("quota is %dm before a period has gone by, want 500m", c.quota())
	}
	c.tick(false)
	if c.quota() != 1400 {
		t.Fatalf("quota is %dm after a period without a wait, want half and a tenth of what is above", c.quota())
	}
	c.ticks(500*time.Millisecond, false)
	if c.quota() != 2000 {
		t.Fatalf("quota is %dm half a second later, want the ceiling", c.quota())
	}

	// After a long wait it regains its ceiling by tenths.
	c.ticks(againWithin, false)
	c.ticks(time.Second, true)
	if c.quota() != 500 || c.level() != 500 {
		t.Fatalf("quota is %dm and level %dm after a second of waiting, want 500m", c.quota(), c.level())
	}
	for tenth := range int64(10) {
		c.ticks(100*time.Millisecond, false)
		if want := 500 + 150*(tenth+1); c.quota() != want {
			t.Fatalf("quota is %dm %d00 ms after the wait, want %dm", c.quota(), tenth+1, want)
		}
	}
}

// Functions for which bystanders wait again and again are held longer each time, and as
// briefly as at first after a while without waits.
func TestClampAgain(t *testing.T) {
	c := newCrowd(burning)
	held := func() (d time.Duration) {
		for c.tick(true); c.quota() == 500; c.tick(false) {
			d += clampEvery
		}
		c.ticks(time.Second, false)
		return d
	}
	for _, want := range []time.Duration{100, 200, 400, 800, 1600, 3200, 6400, 6400} {
		if got := held(); got != want*time.Millisecond {
			t.Errorf("it is held for %v after a moment's wait, want %dms", got, want)
		}
	}
	c.ticks(againWithin, false)
	if got := held(); got != regainEvery {
		t.Errorf("it is held for %v after a while in which nobody waited, want %v", got, regainEvery)
	}
}

// Halving starts from what a function uses, not from what it may use.
func TestClampFromUse(t *testing.T) {
	u := burning
	u.used = 900
	c := newCrowd(u)
	c.tick(true)
	if c.level() != 700 {
		t.Errorf("level is %dm, want 500m and half of 400m", c.level())
	}
}

func TestWithinAllocation(t *testing.T) {
	u := burning
	u.used = 500
	c := newCrowd(u)
	c.ticks(time.Second, true)
	if c.quota() != 2000 {
		t.Errorf("quota of a function that uses no more than its allocation is %dm, want the ceiling", c.quota())
	}
	// A window that falls across two periods may see more use than the quota.
	u.used, u.inForce = 900, 500
	c = newCrowd(u)
	c.clamp.tick(epoch, true, c.uses)
	if c.clamp.held("c") {
		t.Error("a function that was let use no more than its allocation is held")
	}
}

// A late tick counts for those that it stands for.
func TestLateTick(t *testing.T) {
	c := newCrowd(burning)
	c.tick(true)
	c.after(60*time.Millisecond, true)
	if c.level() != 593 {
		t.Errorf("level is %dm after four times 20 ms, want 593m", c.level())
	}
}

func TestCredits(t *testing.T) {
	c := newCrowd(burning)
	// It uses all that it may, and a bystander waits for a moment now and then.
	paid := func() time.Duration {
		c.uses[0].used = c.quota()
		c.after(clampEvery, true)
		for range 2 * againWithin / clampEvery {
			c.uses[0].used = c.quota()
			c.after(clampEvery, false)
		}
		return c.clamp.levels["c"].credit
	}
	c.tick(false)
	full := paid()
	if full >= 30*time.Second || full < 29*time.Second {
		t.Fatalf("credit is %v after one short wait, want a little less than 30s", full)
	}
	rounds := 0
	for paid() > 0 {
		if rounds++; rounds > 10_000 {
			t.Fatal("credits never end")
		}
	}
	c.uses[0].used = c.quota()
	c.tick(true)
	if c.level() != 500 {
		t.Errorf("level without credits is %dm, want the allocation at once", c.level())
	}
	// It earns what it leaves of its allocation.
	c.uses[0].used = 0
	c.ticks(10*time.Second, false)
	if got := c.clamp.levels["c"].credit; got < 4900*time.Millisecond || got > 5100*time.Millisecond {
		t.Errorf("credit is %v after 10s that it did not use half a core, want 5s", got)
	}
	c.ticks(time.Hour/100, false)
	if got := c.clamp.levels["c"].credit; got > 30*time.Second {
		t.Errorf("credit is %v, want at most 30s", got)
	}
}

// Whatever happens, a quota is at least the allocation and at most the ceiling; a level
// never grows while bystanders wait; and a second after the longest hold that can follow
// their last wait, every function is at its ceiling.
func TestClampProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var c clamp
		now := epoch
		var uses []clampUse
		for i := range rapid.IntRange(0, 4).Draw(t, "functions") {
			allocation := rapid.Int64Range(1, 4000).Draw(t, "allocation")
			uses = append(uses, clampUse{
				container: fmt.Sprint(i), allocation: allocation,
				ceiling: allocation + rapid.Int64Range(0, 8000).Draw(t, "above"), inForce: allocation,
			})
		}
		check := func(what string) {
			for _, u := range uses {
				if q := c.quota(u.container); q < u.allocation || q > u.ceiling || q <= 0 {
					t.Fatalf("%s: quota %dm is not from %dm to %dm", what, q, u.allocation, u.ceiling)
				}
				if got := c.levels[u.container].credit; got < 0 || got > fullCredit(u.allocation) {
					t.Fatalf("%s: credit is %v of %v", what, got, fullCredit(u.allocation))
				}
			}
		}
		wasIdle := true
		for range rapid.IntRange(1, 60).Draw(t, "ticks") {
			now = now.Add(time.Duration(rapid.SampledFrom([]int{0, 1, 20, 20, 20, 35, 100, 5000}).Draw(t, "ms")) * time.Millisecond)
			waited := rapid.Bool().Draw(t, "waited")
			levels, held := map[string]int64{}, map[string]bool{}
			for i := range uses {
				u := &uses[i]
				u.used = rapid.Int64Range(0, 16_000).Draw(t, "used")
				if rapid.IntRange(0, 9).Draw(t, "resized") == 0 {
					u.allocation = rapid.Int64Range(1, 4000).Draw(t, "allocation")
					u.ceiling = u.allocation + rapid.Int64Range(0, 8000).Draw(t, "above")
				} else if l := c.levels[u.container]; l != nil {
					levels[u.container], held[u.container] = l.milli, l.held
				}
			}
			c.tick(now, waited, uses)
			check("a tick")
			wasIdle = wasIdle && !waited
			for i := range uses {
				u := &uses[i]
				before, known := levels[u.container]
				l := c.levels[u.container]
				switch {
				case wasIdle && c.quota(u.container) != u.ceiling:
					t.Fatalf("quota is %dm though nobody ever waited, want the ceiling %dm", c.quota(u.container), u.ceiling)
				case known && c.waiting() && l.milli > before:
					t.Fatalf("a level grew from %dm to %dm while bystanders wait", before, l.milli)
				case known && waited && held[u.container] && !u.rests() && l.milli > before-(before-u.allocation)/2:
					t.Fatalf("a level of %dm was not halved towards %dm while bystanders wait: %dm", before, u.allocation, l.milli)
				case known && !held[u.container] && u.over() == 0 && l.milli < before:
					t.Fatalf("a function that uses no more than its allocation went from %dm to %dm", before, l.milli)
				}
				if rapid.IntRange(0, 9).Draw(t, "overwritten") == 0 {
					u.inForce = rapid.Int64Range(0, 16_000).Draw(t, "inForce")
				} else {
					u.inForce = c.quota(u.container)
				}
			}
		}
		// Functions recover even if rounds do not come on time.
		for until := now.Add(calmMost + regainEvery*regainShares); now.Before(until); {
			now = now.Add(time.Duration(rapid.IntRange(1, 120).Draw(t, "rest")) * time.Millisecond)
			c.tick(now, false, uses)
			check("recovery")
		}
		for _, u := range uses {
			if !c.whole(u.container) || c.quota(u.container) != u.ceiling {
				t.Fatalf("quota is %dm, %v after bystanders waited last, want the ceiling %dm", c.quota(u.container), now.Sub(c.waitedAt), u.ceiling)
			}
		}
	})
}

// The log says how long bystanders waited in this episode, not since the agent started.
func TestClampLogsEachEpisode(t *testing.T) {
	g := newTestClampRig(t)
	var lines []string
	g.clamps.log = funcr.New(func(_, line string) { lines = append(lines, line) }, funcr.Options{})
	g.add("c", 2000)
	var before time.Duration
	for range 2 {
		before = g.street.total.Waited
		g.street.waiting = true
		g.pass(200*time.Millisecond, 2000)
		g.street.waiting = false
		g.pass(clampLogEvery, 2000)
	}
	waited := fmt.Sprintf(`"waited"=%q`, g.street.total.Waited-before)
	if len(lines) != 4 || lines[2] != lines[0] || !strings.Contains(lines[3], waited) {
		t.Errorf("the log says of the second episode, want that it began like the first and %s in all:\n%s", waited, strings.Join(lines, "\n"))
	}
}
