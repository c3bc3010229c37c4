package evaluation

import (
	"math"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

var (
	halfBusy = combination{PartDemo, 40, 10}
	demoBusy = combination{PartDemo, 90, 10}
)

// demoOf returns a demo in which requests take libra times as long as stock's with
// Libra, and again times as long when stock is measured again.
func demoOf(libra, again, noise float64) Data {
	return synthetic{seed: 5, blocks: 2, requests: 120, noise: noise,
		arms: map[string]float64{Stock: 1, Again: again, Libra: libra, NoLimits: 0.8}}.data(halfBusy, demoBusy)
}

func TestWhatCanBeTold(t *testing.T) {
	for name, c := range map[string]struct {
		data Data
		want string
	}{
		"clearly faster":                 {demoOf(0.6, 1, 0.05), faster},
		"clearly slower":                 {demoOf(1.5, 1, 0.05), slower},
		"exactly as fast":                {demoOf(1, 1, 0), theSame},
		"hardly different":               {demoOf(1.01, 1.02, 0), theSame},
		"noise is greater than the gain": {demoOf(0.8, 0.6, 0.05), notKnown},
		"noise is greater than the harm": {demoOf(1.3, 0.6, 0.05), notKnown},
		"not measured":                   {without(demoOf(0.6, 1, 0), Libra), notKnown},
		"nothing to compare with":        {without(demoOf(0.6, 1, 0), Stock), notKnown},
	} {
		if got := compared(t, c.data).told(demoBusy, Libra, Stock, Again, p50Computing); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

// Nothing is called faster or slower if it may as well be the other.
func TestWhatIsToldIsWhatTheWholeIntervalSays(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := compared(t, demoOf(rapid.Float64Range(0.5, 2).Draw(t, "libra"), rapid.Float64Range(0.8, 1.25).Draw(t, "again"), rapid.Float64Range(0, 0.9).Draw(t, "noise")))
		for _, row := range demoRows {
			r, noise := c.ratio(demoBusy, Libra, Stock, row.figure), c.ratio(demoBusy, Again, Stock, row.figure)
			beyond := math.Abs(math.Log(r.value)) > math.Abs(math.Log(noise.value))
			switch told := c.told(demoBusy, Libra, Stock, Again, row.figure); {
			case told == faster && (r.high >= 1 || !beyond), told == slower && (r.low <= 1 || !beyond):
				t.Errorf("%s is %s: %v, stock again %v", row.figure.name, told, r, noise)
			case told == theSame && (r.low < 0.95 || r.high > 1.05):
				t.Errorf("%s is %s: %v", row.figure.name, told, r)
			}
		}
	})
}

func TestResultsOfTheDemo(t *testing.T) {
	d := demoOf(0.5, 1, 0.05)
	d.Restarts = 3
	d.Blocks[0].Bystander.Requests[0].Error = "status 503"
	w := writeBy(t, WriteDemo, d)
	for name, want := range map[string]float64{
		"failed_requests": 1, "container_restarts": 3, "seconds_total": 5400, "not_known": 0, "requests_90": 240, "libra_cores_40": 0.02,
		"p50_computing_libra_40": 0.5, "p95_computing_libra_90": 0.5, "p95_waiting_libra_90": 0.5, "bystander_p95_libra_90": 0.5, "p50_computing_no_limits_40": 0.8,
		// The slowest of five inputs takes 170 ms, and up to four times that: one
		// request in twenty takes more than 552 ms.
		"p95_computing_stock_90_ms": 552, "p95_computing_libra_90_ms": 276,
		"p95_computing_libra_90_low": 0.5, "p95_computing_libra_90_high": 0.5, "bystander_p95_again_40": 1,
	} {
		if got, ok := w.metrics[name]; !ok || math.Abs(got-want) > 0.1*want {
			t.Errorf("%s is %v (there: %v), want about %v", name, got, ok, want)
		}
	}
	low, ratio, high := w.metrics["p95_computing_libra_90_low"], w.metrics["p95_computing_libra_90"], w.metrics["p95_computing_libra_90_high"]
	if low >= ratio || ratio >= high {
		t.Errorf("p95_computing_libra_90 is %v, its interval from %v to %v", ratio, low, high)
	}
	if !strings.Contains(w.text, "1 under The stock") || !strings.Contains(w.markdown, "status 503") {
		t.Errorf("the failure is missing:\n%s", w.text)
	}
}

// The table fits a terminal.
func TestTheDemosTableIsNotTooWide(t *testing.T) {
	d := demoOf(0.6, 1, 0.9)
	for i := range d.Arms {
		d.Arms[i].Title = map[string]string{Stock: "stock", Again: "stock again", Libra: "Libra", NoLimits: "no limits"}[d.Arms[i].Name]
	}
	for _, b := range d.Blocks {
		for n := range b.Requests {
			b.Requests[n].Milliseconds *= 100
		}
	}
	table, _, _ := strings.Cut(writeBy(t, WriteDemo, d).text, "With the node")
	for l := range strings.Lines(table) {
		if columns := len([]rune(strings.TrimRight(l, "\n"))); columns > 150 {
			t.Errorf("%d columns: %s", columns, l)
		}
	}
}

func TestDemosOfMuchLittleAndNothing(t *testing.T) {
	// As on another cluster.
	unread := demoOf(0.6, 1, 0.1)
	unread.Machine.Cores = 0
	for i := range unread.Blocks {
		unread.Blocks[i].CPU = Usage{}
	}
	for i := range unread.Alone {
		unread.Alone[i].CPUMilliseconds = 0
	}
	for name, c := range map[string]struct {
		data  Data
		plots int
		want  string
	}{
		"all":                {demoOf(0.6, 1, 0.1), 4, "40 % busy"},
		"nothing":            {Data{}, 0, "Nothing was measured."},
		"without Libra":      {without(demoOf(0.6, 1, 0.1), Libra), 4, notKnown},
		"no CPU was read":    {unread, 2, "CPU of Libra's own parts"},
		"without no limits":  {without(demoOf(0.6, 1, 0.1), NoLimits), 4, "faster"},
		"stock's only once":  {without(demoOf(0.6, 1, 0.1), Again), 4, "faster"},
		"one load only":      {synthetic{seed: 1, blocks: 1, requests: 50, arms: allArms()}.data(halfBusy), 2, "faster"},
		"the shortest there": {synthetic{seed: 1, blocks: 1, requests: 1, arms: allArms()}.data(halfBusy), 1, "No request failed."},
	} {
		w := writeBy(t, WriteDemo, c.data)
		if got := strings.Count(w.page, "<svg"); got != c.plots {
			t.Errorf("%s: %d plots, want %d", name, got, c.plots)
		}
		if !strings.Contains(w.text, c.want) {
			t.Errorf("%s: %q is not in:\n%s", name, c.want, w.text)
		}
		for _, text := range []string{w.page, w.markdown, w.text} {
			for _, unwanted := range []string{"NaN", "Inf", "%!", "the part about memory"} {
				if at := strings.Index(text, unwanted); at >= 0 {
					t.Errorf("%s: has %q: %s", name, unwanted, text[max(0, at-100):at])
				}
			}
		}
	}
}
