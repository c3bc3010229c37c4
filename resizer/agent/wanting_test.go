package agent

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/resizer/cgroup"
)

// period is what a container did in a period of its quota, under a limit.
type period struct {
	limit, used int64 // milli CPU
	throttled   bool
}

// live lets a container live through periods, and returns what it asked for in each; -1 is
// nothing.
func (w *wanting) live(owed int64, periods ...period) (asked []int64) {
	now, total, throttled := w.from.at, w.from.CPU, w.from.ThrottledPeriods
	for _, p := range periods {
		now = now.Add(peakWindow)
		total += time.Duration(p.used) * peakWindow / 1000
		if p.throttled {
			throttled++
		}
		milli, ask := w.add(sample{now, cgroup.Reading{CPU: total, ThrottledPeriods: throttled, Limit: api.Resources{CPUMilli: p.limit}}}, owed)
		if !ask {
			milli = -1
		}
		asked = append(asked, milli)
	}
	return asked
}

func TestWanting(t *testing.T) {
	for name, test := range map[string]struct {
		periods []period
		want    []int64
	}{
		"within its limit": {[]period{{500, 400, false}, {500, 400, false}}, []int64{-1, -1}},
		"throttled": {[]period{{500, 500, true}, {1000, 900, false}, {1000, 1000, true}, {2000, 1900, false}},
			[]int64{500, -1, 1500, -1}},
		"throttled, and there is nothing": {[]period{{500, 500, true}, {500, 500, true}, {500, 500, true}}, []int64{500, -1, -1}},
		"half of a loan is not used": {
			[]period{{1500, 700, false}, {1500, 700, false}, {1500, 700, false}, {1500, 700, false}, {1500, 700, false}, {900, 700, false}},
			[]int64{-1, -1, -1, -1, 400, -1}},
		"nothing of a loan is used": {
			[]period{{700, 100, false}, {700, 100, false}, {700, 100, false}, {700, 100, false}, {700, 100, false}}, []int64{-1, -1, -1, -1, 0}},
		"less than half is used, and then nothing": {
			[]period{{3500, 1900, false}, {3500, 1900, false}, {3500, 1900, false}, {3500, 1900, false}, {3500, 0, false}}, []int64{-1, -1, -1, -1, 1900}},
		"half of a small loan is not used": {
			[]period{{600, 540, false}, {600, 540, false}, {600, 540, false}, {600, 540, false}, {600, 540, false}}, []int64{-1, -1, -1, -1, 100}},
		"used now and then": {
			[]period{{1500, 700, false}, {1500, 700, false}, {1500, 1200, false}, {1500, 700, false}, {1500, 700, false}, {1500, 700, false}},
			[]int64{-1, -1, -1, -1, -1, -1}},
		"lends":   {[]period{{300, 300, true}, {300, 300, true}}, []int64{-1, -1}},
		"rounded": {[]period{{505, 100, false}, {505, 100, false}, {505, 100, false}, {505, 100, false}, {505, 100, false}}, []int64{-1, -1, -1, -1, -1}},
	} {
		t.Run(name, func(t *testing.T) {
			w := &wanting{from: sample{at: time.Unix(0, 0)}}
			got := w.live(500, test.periods...)
			for i := range got {
				if got[i] != test.want[i] {
					t.Errorf("asks for %v, want %v", got, test.want)
					break
				}
			}
		})
	}
}

// Loans may come and go so fast that every sample finds one.
func TestWantingJudgesEachLoanByItself(t *testing.T) {
	w := &wanting{from: sample{at: time.Unix(0, 0)}}
	unused := period{1500, 100, false}
	for _, asked := range w.live(500, unused, unused, unused, unused) {
		if asked >= 0 {
			t.Fatalf("asks for %dm already, want it to wait", asked)
		}
	}
	w.repaid()
	for i, want := range []int64{-1, -1, -1, -1, 0} {
		if asked := w.live(500, unused)[0]; asked != want {
			t.Errorf("asks for %dm in period %d of a new loan, want %d", asked, i, want)
		}
	}
}

func TestWantingAsksAgainAfterAWhile(t *testing.T) {
	w := &wanting{from: sample{at: time.Unix(0, 0)}}
	asks := 0
	for range 40 {
		for _, milli := range w.live(500, period{500, 500, true}) {
			if milli == 500 {
				asks++
			}
		}
	}
	if asks != 4 {
		t.Errorf("asked %d times in 4 s, want 4", asks)
	}
}

func TestWantingProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		owed := rapid.Int64Range(10, 4000).Draw(t, "owed")
		w := &wanting{from: sample{at: time.Unix(0, 0)}}
		for range rapid.IntRange(1, 50).Draw(t, "periods") {
			p := period{
				limit: rapid.Int64Range(10, 16000).Draw(t, "limit"), throttled: rapid.Bool().Draw(t, "throttled"),
			}
			p.used = rapid.Int64Range(0, p.limit).Draw(t, "used")
			asked := w.live(owed, p)[0]
			switch {
			case asked < 0:
			case p.limit < owed:
				t.Fatalf("asks for %dm though it lends: %+v of %dm", asked, p, owed)
			case p.throttled && owed+asked != 2*p.limit:
				t.Fatalf("asks for %dm though it was throttled at %+v of %dm", asked, p, owed)
			case !p.throttled && (owed+asked < p.used || asked > p.limit-owed+wantStep):
				t.Fatalf("asks for %dm though %+v of %dm", asked, p, owed)
			}
		}
	})
}
