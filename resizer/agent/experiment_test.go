package agent

import (
	"fmt"
	"math"
	"testing"
	"time"

	"libra.dev/libra/pkg/api"
)

func TestWithoutTheSafeguardADonorWaitsForTheEnd(t *testing.T) {
	g := newTestRig(t)
	g.settings.Unguarded = true
	g.lend()
	donor := g.kernel["donor"]
	for range 10 {
		donor.CPU += 30 * time.Millisecond
		donor.ThrottledPeriods++
		g.pass(10 * time.Millisecond)
		g.want("donor", 300)
		g.want("borrower", 700)
	}
	if n := g.counted("libra.agent.safeguards", ""); n != 0 {
		t.Errorf("%d safeguards of one that is off", n)
	}
	g.end("1")
	g.exchange()
	g.want("donor", 500)
	g.want("borrower", 500)
	if n := g.counted("libra.agent.restores", causeSafeguard); n != 0 {
		t.Errorf("%d restores by the safeguard, want none", n)
	}
	if n := g.counted("libra.agent.invariant.violations", ""); n != 0 {
		t.Errorf("%d violations", n)
	}
}

func TestThresholdOfNothing(t *testing.T) {
	g := newTestRig(t)
	g.settings.Threshold = 0
	g.run("default/d", "donor", userLimits)
	g.run("default/b", "borrower", userLimits)
	g.openPool()
	volume := api.Resources{CPUMilli: 200, MemoryBytes: 100 * mib}
	g.begin("1", "default/d", volume, api.Resources{})
	g.begin("2", "default/b", api.Resources{}, volume)
	g.exchange()
	g.want("donor", 300)
	g.pass(10 * time.Millisecond)
	g.want("donor", 500)
	g.exchange()
	g.want("borrower", 500)
}

func TestThresholdOfAll(t *testing.T) {
	g := newTestRig(t)
	g.settings.Threshold = 1
	g.lend()
	for range 10 {
		g.kernel["donor"].CPU += 2900 * time.Microsecond
		g.pass(10 * time.Millisecond)
		g.want("donor", 300)
	}
	g.kernel["donor"].ThrottledPeriods++
	g.pass(10 * time.Millisecond)
	g.want("donor", 500)
}

func TestThresholdsThatAreAccepted(t *testing.T) {
	s := Settings{Node: node, CgroupRoot: t.TempDir(), JournalDir: t.TempDir(), ProcRoot: "/proc", SampleLowered: 10 * time.Millisecond}
	for threshold, accepted := range map[float64]bool{
		0: true, 0.1: true, 0.8: true, 1: true, -0.01: false, 1.01: false, math.NaN(): false,
	} {
		s.Threshold = threshold
		if err := s.Validate(); (err == nil) != accepted {
			t.Errorf("--threshold=%v: %v, want accepted %v", threshold, err, accepted)
		}
	}
}

func TestWithoutWeightsEveryPodKeepsTheKubelets(t *testing.T) {
	k := newRankedPair(t)
	k.fly("default/p0", ms(10))
	k.fly("default/p1", ms(2000))
	k.tell()
	k.wantWeights("in flight", 148, 52)

	// An agent without them follows one with them, and gives back what that had changed.
	k.settings.Unweighted = true
	k.start()
	k.wantWeights("when it starts", 100, 100)
	writes := k.cgroups["default/p0"].writes
	for i := range 2 {
		k.add(fmt.Sprintf("default/p%d", i), fmt.Sprintf("c%d", i), 500)
	}
	for range 3 {
		k.tell()
		k.burn("c0", ms(150), ms(200))
		k.wantWeights("in flight, with weights off", 100, 100)
	}
	if n := k.weightsInJournal(); n != 0 || k.cgroups["default/p0"].writes != writes {
		t.Errorf("%d weights are in the journal, %d were written", n, k.cgroups["default/p0"].writes-writes)
	}
	if !k.weighAt.IsZero() {
		t.Error("weights are computed though they are off")
	}
}
