package agent

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"

	"libra.dev/libra/pkg/report"
)

var reportedFunction = reportedOf("f-00001")

func reportedOf(function string) types.NamespacedName {
	return types.NamespacedName{Namespace: "default", Name: function}
}

func TestLoansAreReported(t *testing.T) {
	g := newTestRig(t)
	g.tally = &report.Tally{}
	g.lend()
	g.tally.Drain()
	for id := range g.kernel {
		g.kernel[id].CPU += 10 * time.Millisecond
	}
	g.pass(time.Second)
	var want report.Sums
	want[report.LentCPU] = report.CPUTime(200, time.Second)
	want[report.BorrowedCPU] = want[report.LentCPU]
	if diff := cmp.Diff(report.Record{reportedFunction: &want}, g.tally.Drain()); diff != "" {
		t.Error("A second of a loan of 200m (-want, +got):\n" + diff)
	}

	// A pause in which nothing was read does not count as time of a loan.
	g.clock.Step(time.Minute)
	g.round(g.ctx)
	if got, want := g.tally.Drain()[reportedFunction][report.LentCPU], report.CPUTime(200, longestAccounted); got > want {
		t.Errorf("after a minute without a round %d is reported as lent, want %d at most", got, want)
	}

	g.end("2")
	g.end("1")
	g.exchange()
	g.pass(time.Second)
	g.tally.Drain()
	g.pass(time.Second)
	if got := g.tally.Drain(); len(got) != 0 {
		t.Errorf("without a loan %v is reported, want nothing", got[reportedFunction])
	}
}

func TestSafeguardIsReported(t *testing.T) {
	g := newTestRig(t)
	g.tally = &report.Tally{}
	g.lend()
	g.tally.Drain()
	for range 10 {
		g.kernel["donor"].CPU += cpuTime(300, 10*time.Millisecond)
		g.pass(10 * time.Millisecond)
	}
	g.want("donor", 500)
	if got := g.tally.Drain()[reportedFunction][report.Safeguards]; got != 1 {
		t.Errorf("%d safeguards are reported, want 1", got)
	}
}

// Under source node, what a function uses beyond its limit counts as borrowed.
func TestUseBeyondTheLimitIsReported(t *testing.T) {
	g := newTestClampRig(t)
	g.tally = &report.Tally{}
	g.add("c", 2000)
	g.pass(time.Second, 500)
	if got := g.tally.Drain(); len(got) != 0 {
		t.Errorf("within the limit %v is reported, want nothing", got)
	}
	g.pass(2*time.Second, 1500)
	got := g.tally.Drain()[reportedOf("f")]
	if mean := report.MeanCPUMilli(got[report.BorrowedCPU], 2*time.Second); mean < 900 || mean > 1000 {
		t.Errorf("of 1500m used with a limit of 500m, %dm are reported as borrowed, want 1000m but for the first round", mean)
	}
	counted := func() float64 {
		return (&rig{fatal: t, ctx: t.Context(), metrics: g.told}).countedSeconds("libra.agent.borrowed.cpu")
	}
	if got := counted(); got < 1.8 || got > 2 {
		t.Errorf("of 1.5 cores used for two seconds with a limit of half a core, %v core seconds are counted as borrowed, want 2 but for the first round", got)
	}

	// Use after a rest counts from the end of the rest, however long ago the round before
	// was.
	c := &g.containers[0]
	rest := func(d time.Duration) {
		for until := g.clock.Now().Add(d); g.clock.Now().Before(until); {
			c.rests, c.restAt, c.restCPU = true, g.clock.Now(), g.kernel["c"].CPU
			g.pass(10*time.Millisecond, 0)
		}
	}
	rest(6 * time.Second)
	g.tally.Drain()
	g.pass(40*time.Millisecond, 2000)
	c.rests = false
	g.stir(g.clock.Now())
	g.pass(200*time.Millisecond, 0)
	// 80 ms of CPU in a period, 50 of which are its own.
	if got, want := g.tally.Drain()[reportedOf("f")][report.BorrowedCPU], report.CPUTime(300, peakWindow); got < want/2 || got > 2*want {
		t.Errorf("a burst of 30 ms of CPU beyond the limit is reported as %d, want about %d", got, want)
	}

	k := clampedContainer{capped: capped{function: "default/f", bound: func(int64) {}}}
	before := counted()
	g.reportUse(t.Context(), &k, 1000, time.Second)
	if got := g.tally.Drain(); len(got) != 0 || counted() != before {
		t.Errorf("a container whose loan is reported has %v more, and %v core seconds; want nothing", got, counted()-before)
	}
}
