package evaluation

import (
	"math"
	"strings"
	"testing"
	"time"

	"libra.dev/libra/pkg/api"
)

func TestOverheads(t *testing.T) {
	with := func(policy, workload string, round int, activator, agent float64) Run {
		r := run(policy, workload, round, 100)
		r.Parts = map[string]Part{PartActivator: {Cores: activator, Memory: int64(activator * 100 * mebibyte)}}
		if policy == Libra {
			r.Parts["agent"] = Part{Cores: agent, Memory: int64(agent * 1000 * mebibyte)}
		}
		return r
	}
	mixed := []Run{
		with(Stock, Mixed, 1, 0.5, 0), with(Libra, Mixed, 1, 0.75, 0.125),
		with(Stock, Mixed, 2, 0.25, 0), with(Libra, Mixed, 2, 1.25, 0.25),
		with(Stock, Mixed, 3, 0.25, 0), with(Libra, Mixed, 3, 0.75, 0.5),
	}
	other := []Run{with(Stock, Related, 1, 1, 0), with(Libra, Related, 1, 9, 9)}
	check(t, dataOf(append(mixed, other...)...), map[string]float64{
		"overhead_cpu_activator": 0.5, "overhead_mem_mib_activator": 50, "overhead_cpu_agent": 0.25, "overhead_mem_mib_agent": 250,
	})
	check(t, dataOf(other...), map[string]float64{"overhead_cpu_activator": 8, "overhead_cpu_agent": 9})
	check(t, dataOf(with(Libra, Mixed, 1, 1, 1)), map[string]float64{"overhead_cpu_activator": none, "overhead_cpu_agent": 1})
}

func TestStagesAreMediansOverLibrasRuns(t *testing.T) {
	var runs []Run
	for i, p50 := range []float64{0.001, 0.003, none, 0.002} {
		r := run(Libra, Mixed, i+1, 100)
		r.Stages = []Stage{{"predict", 10, p50, 2 * p50}}
		runs = append(runs, r)
	}
	stock := run(Stock, Mixed, 1, 100)
	stock.Stages = []Stage{{"predict", 1000, 1, 1}}
	got := Compare(dataOf(append(runs, stock)...)).Stages
	if len(got) != 1 || got[0].Count != 40 || got[0].P50 != 0.002 || got[0].P99 != 0.004 {
		t.Errorf("got %v", got)
	}
}

func TestWhatIsOutsideThePod(t *testing.T) {
	r := run(Libra, Mixed, 1, 1500, 400)
	r.Outcomes = map[string]Outcome{
		r.Results[0].RequestID: {Duration: 1400 * time.Millisecond, ThrottledShare: 0.5},
		r.Results[1].RequestID: {Duration: 100 * time.Millisecond, ThrottledShare: 0.2},
	}
	got := Compare(dataOf(r)).Outside[0]
	if got.Function != "" || got.P50 != 100 || got.P99 != 300 {
		t.Errorf("got %+v", got)
	}
	// The second was sent at 1 s, while the first was in flight.
	want := Facts{Requests: 2, Observed: 2, Outside: 400.0 / 1900, Throttled: 0.72 / 1.5, Queued: 0.5}
	if f := got.Facts; f.Requests != 2 || f.Observed != 2 || !approximately(f.Outside, want.Outside) || !approximately(f.Throttled, want.Throttled) || f.Queued != want.Queued {
		t.Errorf("got %+v, want %+v", f, want)
	}
}

func TestReassignedByKind(t *testing.T) {
	for name, c := range map[string]struct {
		outcome     Outcome
		cpu, memory string
		coreSeconds float64
	}{
		"nothing":     {Outcome{}, Default, Default, 0},
		"lent CPU":    {Outcome{Lent: api.Resources{CPUMilli: 500}}, Harvested, Default, -1},
		"lent memory": {Outcome{Lent: api.Resources{MemoryBytes: 1}}, Default, Harvested, 0},
		"lent memory and borrowed CPU": {
			Outcome{Lent: api.Resources{MemoryBytes: 1}, Borrowed: api.Resources{CPUMilli: 500}}, Accelerated, Harvested, 1,
		},
		"safeguarded": {Outcome{Lent: api.Resources{CPUMilli: 500}, Safeguarded: true}, Safeguarded, Safeguarded, -1},
	} {
		r := run(Libra, Mixed, 1, 2000)
		c.outcome.Duration = 2 * time.Second
		r.Outcomes = map[string]Outcome{r.Results[0].RequestID: c.outcome}
		got := Compare(dataOf(run(Stock, Mixed, 1, 4000), r)).Moved
		if len(got) != 1 || got[0].CPUKind != c.cpu || got[0].MemoryKind != c.memory || got[0].CoreSeconds != c.coreSeconds || got[0].Speedup != 0.5 {
			t.Errorf("%s: got %+v", name, got)
		}
	}
}

func TestOthersAreWhatOtherFunctionsUseMeanwhile(t *testing.T) {
	r := run(Stock, Mixed, 1, 1000, 1000) // of big, at 0 and at 1 s
	for i, seconds := range []time.Duration{0, 0, 1, 2} {
		r.Samples = append(r.Samples, Sample{
			// Half a second before each of them begins.
			At:        start.Add(time.Duration(i)*time.Second - 500*time.Millisecond),
			Functions: map[string]Usage{"big": {CPU: 10 * seconds * time.Second}, "small": {CPU: seconds * time.Second}},
		})
	}
	// Small has used nothing until 0.5 s, and one core from then on.
	for n, want := range []float64{0.5, 1} {
		seconds, used := r.others(r.Results[n])
		if !approximately(seconds, 1) || !approximately(used, want) {
			t.Errorf("request %d: %v core-seconds in %v s, want %v in 1", n, used, seconds, want)
		}
	}
	if seconds, used := (Run{}).others(r.Results[0]); seconds != 0 || used != 0 {
		t.Errorf("without samples: %v in %v s", used, seconds)
	}
}

func TestWhereItDoesNotHold(t *testing.T) {
	for name, c := range map[string]struct {
		runs []Run
		want []string // what the findings say, one each
	}{
		"all as it should be": {
			[]Run{run(Stock, Related, 1, 100), run(Libra, Related, 1, 60), run(Stock, Mixed, 1, 100), run(Libra, Mixed, 1, 50), run(NoBoth, Mixed, 1, 80)}, nil,
		},
		"P99 of the related": {
			[]Run{run(Stock, Related, 1, 100), lending(run(Libra, Related, 1, 61))}, []string{"0.61 of stock's"},
		},
		"P99 of others": {[]Run{run(Stock, Unrelated, 1, 100), run(Libra, Unrelated, 1, 90)}, nil},
		"slowed down":   {[]Run{run(Stock, Mixed, 1, 100, 500), run(Again, Mixed, 1, 100, 500), lending(run(Libra, Mixed, 1, 103, 200), 0)}, []string{"+3.0 %"}},
		"slowed down as much as noise": {
			[]Run{run(Stock, Mixed, 1, 100, 500), run(Again, Mixed, 1, 102, 500), lending(run(Libra, Mixed, 1, 103, 200), 0)}, nil,
		},
		"noise unknown": {[]Run{run(Stock, Mixed, 1, 100, 500), lending(run(Libra, Mixed, 1, 103, 200), 0)}, []string{"not known, as neither"}},
		"another order": {
			[]Run{run(Stock, Mixed, 1, 100), run(Again, Mixed, 1, 101), run(NoSafeguard, Mixed, 1, 40), run(Libra, Mixed, 1, 50)},
			[]string{"no_safeguard (0.40), libra (0.50), stock (1.00); in the paper, in the order libra, no_safeguard, stock. Stock again has 1.01"},
		},
		"nothing was run": {nil, nil},
	} {
		got := Compare(dataOf(c.runs...)).Findings
		if len(got) != len(c.want) {
			t.Errorf("%s: got %q", name, got)
			continue
		}
		for i := range got {
			if !strings.Contains(got[i], c.want[i]) || strings.Contains(got[i], "NaN") {
				t.Errorf("%s: got %q, want in it %q", name, got[i], c.want[i])
			}
		}
	}
}

func TestWhatHeldTheSlowedUpIsSaidOnlyWhenNothingElseDid(t *testing.T) {
	stock := Facts{Queued: 0.1, Others: 0.4}
	for name, c := range map[string]struct {
		libra Facts
		said  bool
	}{
		"a busier machine": {Facts{Outside: 0.01, Queued: 0.1, Others: 0.9}, true},
		"an idle machine":  {Facts{Outside: 0.01, Queued: 0.1, Others: 0.3}, false},
		"throttled":        {Facts{Throttled: 0.1, Queued: 0.1, Others: 0.9}, false},
		"outside the pod":  {Facts{Outside: 0.1, Queued: 0.1, Others: 0.9}, false},
		"queued":           {Facts{Queued: 0.2, Others: 0.9}, false},
		"no samples":       {Facts{Queued: 0.1, Others: math.NaN()}, false},
	} {
		if said := c.libra.becauseOf(stock); (said != "") != c.said {
			t.Errorf("%s: %q", name, said)
		}
	}
}
