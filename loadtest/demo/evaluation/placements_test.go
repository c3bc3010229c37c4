package evaluation

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"libra.dev/libra/loadtest/bench/stats"
	"libra.dev/libra/pkg/api"
)

var (
	fewPods  = combination{PartPlacement, 40, 2}
	manyPods = combination{PartPlacement, 90, 4}
)

// placing is a small evaluation of placements. times has each placement's response times, relative to hash's, and
// borrows the core-seconds that it borrows in a block.
type placing struct {
	times, borrows map[string]float64
	noise          float64
}

func (p placing) data(combinations ...combination) Data {
	d := synthetic{seed: 3, blocks: 4, requests: 80, noise: p.noise, arms: map[string]float64{Stock: 1}}.data(combinations...)
	stock := d.Blocks
	d.Arms, d.Blocks = nil, nil
	for order, arm := range slices.Sorted(maps.Keys(p.times)) {
		d.Arms = append(d.Arms, Arm{Name: arm, Title: "by " + arm, About: "What " + arm + " is.", Base: "hash"})
		for _, b := range stock {
			b.Arm, b.Order = arm, order+1
			b.Requests = slices.Clone(b.Requests)
			for i := range b.Requests {
				b.Requests[i].Milliseconds *= p.times[arm]
			}
			b.Loans = &Loans{Accelerated: Volume{CoreSeconds: p.borrows[arm] * float64(b.Number)}}
			b.Placed = &Placed{Outcomes: map[string]float64{"moved": 30, "kept": 10, "no_choice": 20}, Promised: 4, Granted: 3}
			d.Blocks = append(d.Blocks, b)
		}
	}
	return d
}

func placedOver(t testing.TB, d Data) *placed {
	t.Helper()
	p, err := comparePlacements(d)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func near(got, want float64) bool { return math.Abs(got-want) <= 1e-9*math.Abs(want) }

// Each source has a schedule of its own, because the platform leaves another part of the CPU, and is compared with
// itself.
func TestPlacementsOfEachSourceHaveTheirSchedule(t *testing.T) {
	borrows := map[string]float64{"hash": 2, "coverage": 3, "node_hash": 2, "node_coverage": 3}
	d := placing{times: map[string]float64{"hash": 1, "coverage": 0.8}, borrows: borrows}.data(fewPods)
	ofNode := placing{times: map[string]float64{"node_hash": 1, "node_coverage": 0.5}, borrows: borrows}.data(fewPods)
	for i := range ofNode.Arms {
		ofNode.Arms[i].Base = "node_hash"
	}
	for i := range ofNode.Blocks {
		ofNode.Blocks[i].Requests = ofNode.Blocks[i].Requests[:70]
	}
	d.Arms, d.Blocks = append(d.Arms, ofNode.Arms...), append(d.Blocks, ofNode.Blocks...)
	m := placedOver(t, d).results().Metrics
	if over, node := m["mean_slowdown_coverage"], m["mean_slowdown_node_coverage"]; !near(over, 0.8) || !near(node, 0.5) {
		t.Errorf("coverage is %v of hash, and %v under the source node, want 0.8 and 0.5", over, node)
	}

	last := len(d.Blocks) - 1
	d.Blocks[last].Requests = d.Blocks[last].Requests[:60]
	if _, err := comparePlacements(d); err == nil || !strings.Contains(err.Error(), "same requests") {
		t.Errorf("one source's arms had other requests than one another: %v", err)
	}
}

// Each figure is over hash's, for all loads at once and for each of them.
func TestPlacementsAreOverHash(t *testing.T) {
	d := placing{times: map[string]float64{"hash": 1, "coverage": 0.8, "hash_again": 1}, borrows: map[string]float64{"hash": 2, "coverage": 3, "hash_again": 2}}.data(fewPods, manyPods)
	m := placedOver(t, d).results().Metrics
	for _, of := range []string{"", "_40_2", "_90_4"} {
		for name, want := range map[string]float64{
			"p99_computing_coverage": 0.8, "mean_slowdown_coverage": 0.8, "borrowed_core_s_coverage": 1.5, "p99_computing_hash_again": 1,
			"share_with_choice_coverage": 0.5, "share_moved_hash": 0.375, "granted_over_promised_coverage": 0.75, "borrowed_core_s_a_block_coverage": 7.5,
		} {
			if got, ok := m[name+of]; !ok || !near(got, want) {
				t.Errorf("%s is %v, want %v", name+of, got, want)
			}
		}
		// All times are the same, and all blocks, so all resamples are.
		for _, name := range []string{"p99_computing_coverage", "mean_slowdown_coverage", "borrowed_core_s_coverage"} {
			if low, high := m[name+of+"_low"], m[name+of+"_high"]; !near(low, m[name+of]) || !near(high, m[name+of]) {
				t.Errorf("%s is %v to %v, where nothing varies", name+of, low, high)
			}
		}
	}
	if m["requests_coverage"] != 2*m["requests_coverage_40_2"] || m["failed_requests"] != 0 {
		t.Errorf("%v requests, of which %v at one load, and %v failed", m["requests_coverage"], m["requests_coverage_40_2"], m["failed_requests"])
	}
	if _, ok := m["p99_computing_hash"]; ok {
		t.Error("hash is held against itself")
	}
}

// All loads at once are all blocks of all loads: borrowed core-seconds are added up.
func TestAllLoadsAtOnceAreAddedUp(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := rapid.Float64Range(0.1, 9)
		hash, coverage := a.Draw(t, "hash"), a.Draw(t, "coverage")
		d := placing{times: map[string]float64{"hash": 1, "coverage": a.Draw(t, "times")}, borrows: map[string]float64{"hash": hash, "coverage": coverage}}.data(fewPods, manyPods)
		more := a.Draw(t, "more at the higher load")
		sums := map[string]float64{}
		for i, b := range d.Blocks {
			if b.Load == manyPods.load && b.Arm == "coverage" {
				d.Blocks[i].Loans.Accelerated.CoreSeconds *= more
			}
			sums[b.Arm] += d.Blocks[i].Loans.Accelerated.CoreSeconds
		}
		p, err := comparePlacements(d)
		if err != nil {
			t.Fatal(err)
		}
		if got, want := p.whole.over(allLoads, "coverage", borrowed).value, sums["coverage"]/sums["hash"]; !near(got, want) {
			t.Errorf("%v times as much is borrowed, want %v", got, want)
		}
		if got, want := p.whole.requests(allLoads, "hash"), p.requests(fewPods, "hash")+p.requests(manyPods, "hash"); got != want {
			t.Errorf("%d requests, want %d", got, want)
		}
	})
}

func TestFailedRequestsOfPlacementsAreCounted(t *testing.T) {
	d := placing{times: map[string]float64{"hash": 1, "coverage": 1}, borrows: map[string]float64{"hash": 1, "coverage": 1}}.data(fewPods)
	d.Blocks[0].Requests[3].Error = "502"
	if got := placedOver(t, d).results().Metrics["failed_requests"]; got != 1 {
		t.Errorf("%v failed, want 1", got)
	}
	w := writeBy(t, WritePlacements, d)
	if !strings.Contains(w.markdown, "1 of 640 requests failed") || !strings.Contains(w.markdown, "502") {
		t.Errorf("the report does not say which request failed:\n%s", w.markdown)
	}
}

func TestNobodyCountsChoicesOfStock(t *testing.T) {
	d := placing{times: map[string]float64{"hash": 1, "stock_placement": 1}, borrows: map[string]float64{"hash": 1, "stock_placement": 1}}.data(fewPods)
	for i, b := range d.Blocks {
		if b.Arm == "stock_placement" {
			d.Blocks[i].Placed = &Placed{}
		}
	}
	w := writeBy(t, WritePlacements, d)
	if want := "| 40 % load, 2 pods a function | by stock_placement | 320 | - | - | - | - | 2.5 | 2.8 | - |"; !strings.Contains(w.markdown, want) {
		t.Errorf("the report does not say %q:\n%s", want, w.markdown)
	}
	if _, ok := w.metrics["share_with_choice_stock_placement"]; ok {
		t.Error("there is a share of requests with a choice where none was counted")
	}
}

// The report judges the goal by the whole interval, and says by function where a placement did not help.
func TestTheReportOfPlacements(t *testing.T) {
	for name, c := range map[string]struct {
		times, borrows float64
		want           []string
	}{
		"more and faster": {0.7, 3, []string{"1.50 (1.50 to 1.50) | 1.00 | holds", "0.70 (0.70 to 0.70) | 1.00 | holds", "compute, graph, wait |  |  |  |"}},
		"less and slower": {1.4, 1, []string{"0.50 (0.50 to 0.50) | 1.00 | does not hold", "1.40 (1.40 to 1.40) | 1.00 | does not hold", "|  | compute, graph, wait |  |  |"}},
		"the same":        {1, 2, []string{"1.00 (1.00 to 1.00) | 1.00 | does not hold", "1.00 (1.00 to 1.00) | 1.00 | holds", "|  |  | compute, graph, wait |  |"}},
	} {
		d := placing{
			times:   map[string]float64{"hash": 1, "hash_again": 1, "coverage": c.times},
			borrows: map[string]float64{"hash": 2, "hash_again": 2, "coverage": c.borrows},
		}.data(fewPods, manyPods)
		w := writeBy(t, WritePlacements, d)
		for _, want := range append(c.want, "| 40 % load, 2 pods a function | by coverage | 320 | 50 % | 38 % | 25 % | 25 % |", "all loads") {
			if !strings.Contains(w.markdown, want) {
				t.Errorf("%s: the report does not say %q:\n%s", name, want, w.markdown)
			}
		}
		for _, never := range []string{"NaN", "Inf", "%!"} {
			if strings.Contains(w.markdown+w.text+w.page, never) {
				t.Errorf("%s: the report has %s in it", name, never)
			}
		}
	}
}

// With or without noise, nothing is called faster if its interval has 1 in it.
func TestWhatIsToldOfPlacements(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := placing{
			times:   map[string]float64{"hash": 1, "hash_again": rapid.Float64Range(0.8, 1.25).Draw(t, "again"), "coverage": rapid.Float64Range(0.5, 2).Draw(t, "coverage")},
			borrows: map[string]float64{"hash": 1, "hash_again": 1, "coverage": 1},
		}.data(fewPods)
		own := rapid.Float64Range(0, 0.9).Draw(t, "noise")
		for i, b := range d.Blocks {
			for n := range b.Requests {
				d.Blocks[i].Requests[n].Milliseconds *= 1 + own*math.Sin(float64(i*1000+n))
			}
		}
		p, err := comparePlacements(d)
		if err != nil {
			t.Fatal(err)
		}
		r, noise := p.over(fewPods, "coverage", meanSlowdown), p.over(fewPods, "hash_again", meanSlowdown)
		beyond := math.Abs(math.Log(r.value)) > math.Abs(math.Log(noise.value))
		switch told := p.toldOver(fewPods, "coverage", meanSlowdown); {
		case told == faster && (r.high >= 1 || !beyond), told == slower && (r.low <= 1 || !beyond), told == theSame && (r.low < 0.95 || r.high > 1.05):
			t.Errorf("it is %s: %v, hash again %v", told, r, noise)
		}
	})
}

func TestWhatIsKnownOfTheGoal(t *testing.T) {
	atLeast, atMost := stats.Goal{Bound: 1.3, AtLeast: true}, stats.Goal{Bound: 1.05}
	exactly := func(v float64) interval { return interval{value: v, low: v, high: v} }
	for name, c := range map[string]struct {
		goal         stats.Goal
		ratio, noise interval
		want         stats.Verdict
	}{
		"more":                    {atLeast, interval{value: 1.6, low: 1.4, high: 1.9}, exactly(1.05), stats.Holds},
		"perhaps more":            {atLeast, interval{value: 1.6, low: 1.2, high: 1.9}, exactly(1.05), stats.NotKnown},
		"less":                    {atLeast, interval{value: 1.1, low: 1, high: 1.2}, exactly(1.05), stats.DoesNotHold},
		"more, and so is noise":   {atLeast, interval{value: 1.6, low: 1.4, high: 1.9}, exactly(1.3), stats.NotKnown},
		"more, and noise is less": {atLeast, interval{value: 1.6, low: 1.4, high: 1.9}, exactly(0.75), stats.NotKnown},
		"nobody knows the noise":  {atLeast, interval{value: 1.6, low: 1.4, high: 1.9}, unmeasured, stats.NotKnown},
		"one block":               {atLeast, interval{value: 1.6, low: none, high: none}, exactly(1), stats.NotKnown},
		"not slower":              {atMost, interval{value: 0.9, low: 0.8, high: 1}, exactly(0.98), stats.Holds},
		"slower":                  {atMost, interval{value: 1.3, low: 1.1, high: 1.5}, exactly(1.02), stats.DoesNotHold},
	} {
		if got, why := judgePlacement(c.goal, c.ratio, c.noise); got != c.want || (got == stats.NotKnown) != (why != "") {
			t.Errorf("%s: %s (%s), want %s", name, got, why, c.want)
		}
	}
}

func TestPlacedSince(t *testing.T) {
	before := Placed{Outcomes: map[string]float64{"moved": 3, "kept": 2}, Promised: 1, Granted: 1}
	now := Placed{Outcomes: map[string]float64{"moved": 5, "kept": 2, "no_slot": 1}, Promised: 4, Granted: 3}
	if got, want := fmt.Sprint(now.Since(before)), fmt.Sprint(Placed{map[string]float64{"moved": 2, "no_slot": 1}, 3, 2}); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// On two cores, an input that uses 300 ms of CPU in 200 ms uses 200 ms more than half a core has in that time; one
// that mostly waits uses nothing beyond its allocation.
func TestWhatCouldBeBorrowed(t *testing.T) {
	d := Data{
		Functions: []Function{{Name: "compute", Limit: api.Resources{CPUMilli: 500}}, {Name: "wait", Limit: api.Resources{CPUMilli: 1000}}},
		Alone:     []Alone{{Function: "compute", Milliseconds: 200, CPUMilliseconds: 300}, {Function: "wait", Milliseconds: 900, CPUMilliseconds: 20}},
		Blocks: []Block{{Part: PartPlacement, Load: 40, Pods: 2, Number: 1, Arm: "hash", Length: 1, Loans: &Loans{},
			Requests: []Request{{Function: "compute"}, {Function: "wait"}, {Function: "compute", Milliseconds: 9000}}}},
	}
	if got := placedOver(t, d).results().Metrics["beyond_alone_core_s_a_block_hash_40_2"]; !near(got, 0.4) {
		t.Errorf("%v core-seconds, want 0.4", got)
	}
}
