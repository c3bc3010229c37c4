package evaluation

import (
	"math"
	"slices"
	"strings"
	"testing"

	"libra.dev/libra/loadtest/bench/stats"
)

func verdictOn(t *testing.T, d Data, f figure) judged {
	t.Helper()
	for _, j := range compared(t, d).judge() {
		if j.k == busy && j.figure.name == f.name {
			return j
		}
	}
	t.Fatalf("there is no goal about %s", f.name)
	return judged{}
}

func without(d Data, arm string) Data {
	d.Blocks = slices.DeleteFunc(d.Blocks, func(b Block) bool { return b.Arm == arm })
	return d
}

// tooFew returns too few requests to tell anything. Stock again repeats stock's exactly.
func tooFew() Data {
	d := synthetic{seed: 2, blocks: 2, requests: 12, noise: 0.9, arms: map[string]float64{Stock: 1, Libra: 0.7, NoLimits: 1}}.data(busy)
	for _, b := range slices.Clone(d.Blocks) {
		if b.Arm == Stock {
			b.Arm = Again
			d.Blocks = append(d.Blocks, b)
		}
	}
	return d
}

// robbed has the hypervisor take CPU from a block of arm, in core-seconds.
func robbed(d Data, arm string, taken float64) Data {
	i := slices.IndexFunc(d.Blocks, func(b Block) bool { return b.Arm == arm })
	d.Blocks[i].CPU.Stolen = taken
	return d
}

func TestVerdicts(t *testing.T) {
	with := func(libra, again, noise float64) Data {
		return synthetic{seed: 2, blocks: 4, requests: 300, noise: noise,
			arms: map[string]float64{Stock: 1, Again: again, Libra: libra, NoLimits: 1}}.data(busy)
	}
	for name, c := range map[string]struct {
		data    Data
		verdict stats.Verdict
		why     string
	}{
		"clearly better":            {with(0.7, 1, 0.1), stats.Holds, ""},
		"not better":                {with(0.9, 1, 0.1), stats.DoesNotHold, ""},
		"stock differs from itself": {with(0.7, 1.2, 0.1), stats.NotKnown, "stock again is 1.20 of stock, more than 5 % away"},
		"its CPU was taken":         {robbed(with(0.7, 1, 0.1), Libra, 1), stats.NotKnown, "the hypervisor took too much of the CPU in 1 of the blocks"},
		"the baseline's was":        {robbed(with(0.7, 1, 0.1), NoLimits, 1), stats.NotKnown, "the hypervisor took too much of the CPU in 1 of the blocks"},
		"a little was taken":        {robbed(with(0.7, 1, 0.1), Libra, 0.15), stats.Holds, ""},
		"stock was measured once":   {without(with(0.7, 1, 0.1), Again), stats.NotKnown, "stock was not measured again"},
		"no baseline":               {without(with(0.7, 1, 0.1), NoLimits), stats.NotKnown, "not measured"},
		"too few to tell":           {tooFew(), stats.NotKnown, "the interval is wider than ±5 %"},
	} {
		if j := verdictOn(t, c.data, meanSlowdown); j.verdict != c.verdict || j.why != c.why {
			t.Errorf("%s: %s, %q (%v, noise %v); want %s, %q", name, j.verdict, j.why, j.ratio, j.noise, c.verdict, c.why)
		}
	}
}

func TestGapThatIsClosed(t *testing.T) {
	of := func(owners, noIdle, noise float64) Data {
		return synthetic{seed: 2, blocks: 4, requests: 300, noise: noise, arms: map[string]float64{
			Stock: 1.5, Again: 1.5, NoLimits: 1, OwnersNoIdle: noIdle, Owners: owners,
		}}.data(combination{PartRequests, 15, 10})
	}
	with := func(owners, noise float64) Data { return of(owners, 1.5, noise) }
	for name, c := range map[string]struct {
		data    Data
		verdict stats.Verdict
		closed  float64
	}{
		"most of it":         {with(1.1, 0.1), stats.Holds, 0.8},
		"little of it":       {with(1.4, 0.1), stats.DoesNotHold, 0.2},
		"its CPU was taken":  {robbed(with(1.1, 0.1), OwnersNoIdle, 1), stats.NotKnown, 0.8},
		"there is no gap":    {of(1.4, 0.8, 0.1), "", 0},
		"nobody lacks it":    {without(with(1.1, 0.1), OwnersNoIdle), "", 0},
		"without a baseline": {without(with(1.1, 0.1), NoLimits), "", 0},
	} {
		var got judged
		comparison := compared(t, c.data)
		for _, j := range comparison.judge() {
			if j.without != "" && j.figure.name == meanSlowdown.name {
				got = j
			}
		}
		if got.verdict != c.verdict || math.Abs(got.ratio.value-c.closed) > 0.05 {
			t.Errorf("%s: %s, closed %v; want %s, %v", name, got.verdict, got.ratio, c.verdict, c.closed)
		}
		if value, ok := comparison.results().Metrics["mean_slowdown_gap_closed_owners_15_10"]; ok != (c.verdict != "") || value != got.ratio.value {
			t.Errorf("%s: in the results it is %v", name, value)
		}
	}
}

func TestAnIntervalMayBeSoWide(t *testing.T) {
	for _, c := range []struct {
		i    interval
		f    figure
		want bool
	}{
		{interval{value: 0.8, low: 0.77, high: 0.83}, meanSlowdown, true},
		{interval{value: 0.8, low: 0.75, high: 0.85}, meanSlowdown, false},
		{interval{value: 0.8, low: 0.75, high: 0.85}, p99Computing, true},
		{interval{value: 0.8, low: 0.7, high: 0.9}, worstP99, false},
		{interval{value: 0.8, low: none, high: none}, p99Computing, false},
	} {
		if got := c.i.known(c.f.tolerance()); got != c.want {
			t.Errorf("%v of %s: %v", c.i, c.f.name, got)
		}
	}
}

func TestWhatNoiseDoesTooIsNotHarm(t *testing.T) {
	for again, want := range map[float64]bool{1: true, 1.1: true, 1.5: false, 0.7: false} {
		c := compared(t, synthetic{seed: 2, blocks: 4, requests: 300, noise: 0.05,
			arms: map[string]float64{Stock: 1, Again: again, Libra: 1.2}}.data(busy))
		if got := c.more(busy, Libra, meanSlowdown, 0.05); got != want {
			t.Errorf("1.2 of stock beside %v of stock again: harmed is %v", again, got)
		}
		if c.less(busy, Libra, meanSlowdown, 0) {
			t.Error("it is not less")
		}
		if c.more(busy, Again, meanSlowdown, 0.05) {
			t.Errorf("stock again is %v of stock, and that is said to be harm", again)
		}
	}
}

func TestTheReportSaysWhatWasSentLate(t *testing.T) {
	d := synthetic{seed: 1, blocks: 1, requests: 100, arms: map[string]float64{Stock: 1, NoLimits: 1}}.data(busy)
	said := func() string { return strings.Join(compared(t, d).measured().Text, " ") }
	d.Blocks[0].Requests[0].LateMS = 1000
	if strings.Contains(said(), "late") {
		t.Errorf("one request of a hundred was late, and the report says %q", said())
	}
	d.Blocks[0].Requests[1].LateMS = 51
	if !strings.Contains(said(), "more than 1 % of the requests were sent more than 50 ms late: 1.") {
		t.Errorf("got %q", said())
	}
}

// The report says what the hypervisor took only if that was measured.
func TestTheReportSaysWhatTheHypervisorTook(t *testing.T) {
	d := synthetic{seed: 1, blocks: 1, requests: 20, arms: map[string]float64{Stock: 1, NoLimits: 1}}.data(busy)
	head := func() []string { return compared(t, d).usageTable(busy).Head }
	if slices.Contains(head(), "taken by the hypervisor") {
		t.Errorf("nobody looked, and the report has %v", head())
	}
	robbed(d, Stock, 1)
	if !slices.Contains(head(), "taken by the hypervisor") {
		t.Errorf("the report has only %v", head())
	}
	said := strings.Join(compared(t, d).measured().Text, " ")
	if !strings.Contains(said, "the hypervisor took more than 2 % of the CPU (0.5 % at a load of 90 % or more) that this machine had use for: 1.") {
		t.Errorf("got %q", said)
	}
}
