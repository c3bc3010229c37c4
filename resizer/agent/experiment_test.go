package agent

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	logf "sigs.k8s.io/controller-runtime/pkg/log"
)

func TestWhatIsOffIsSaidOnce(t *testing.T) {
	g := newTestRig(t)
	g.settings.Unguarded, g.settings.Unclamped, g.settings.Unweighted = true, true, true
	g.clamps = &clamps{clock: g.clock, metrics: g.reflex.metrics, open: g.open, specOf: g.reflex.specOf, off: true}
	var said []string
	ctx, cancel := context.WithCancel(logf.IntoContext(t.Context(), funcr.New(func(_, args string) {
		if strings.Contains(args, "for experiments") {
			said = append(said, args)
		}
	}, funcr.Options{})))
	cancel()
	g.reflex.run(ctx)
	g.clamps.stop(t.Context())
	if len(said) != 3 {
		t.Errorf("of three that are off, the log says %q", said)
	}
}

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

func TestTheSafeguardIsTheSettings(t *testing.T) {
	for percent, used := range map[int64]time.Duration{50: 1600 * time.Microsecond, 80: 2500 * time.Microsecond, 95: 2900 * time.Microsecond} {
		g := newTestRig(t)
		g.safeguardPercent = percent
		g.lend()
		for range 10 {
			g.kernel["donor"].CPU += used - 200*time.Microsecond
			g.pass(10 * time.Millisecond)
			g.want("donor", 300)
		}
		for range 11 {
			g.kernel["donor"].CPU += used
			g.pass(10 * time.Millisecond)
		}
		g.want("donor", 500)
	}
}

func TestWithoutWeightsEveryPodKeepsTheKubelets(t *testing.T) {
	k := newRankedPair(t)
	k.fly("default/p0", ms(10))
	k.fly("default/p1", ms(2000))
	k.tell()
	k.wantWeights("in flight", 148, 52)

	// After an agent with weights, one without them gives back what that had changed.
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
