package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

var compareTrials = cmp.AllowUnexported(trial{}, fault{}, kind{})

func TestPlanOfASeed(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		seed := rapid.Uint64().Draw(t, "seed")
		pairs := rapid.IntRange(0, 30).Draw(t, "pairs")
		libra, stock, err := makePlan(seed, pairs, nil)
		if err != nil {
			t.Fatal(err)
		}
		if len(libra) != len(kinds)+pairs {
			t.Fatalf("%d trials of %d kinds and %d pairs", len(libra), len(kinds), pairs)
		}
		again, stockAgain, _ := makePlan(seed, pairs, nil)
		if diff := cmp.Diff([][]trial{libra, stock}, [][]trial{again, stockAgain}, compareTrials); diff != "" {
			t.Fatalf("the same seed makes another plan:\n%s", diff)
		}
		for _, all := range libra {
			checkTrial(t, all)
		}
		for _, s := range stock {
			// Compared is the same load, the same moment and the same length.
			want := libra[slices.IndexFunc(libra, func(l trial) bool { return l.name == s.name })]
			want.stock = true
			want.faults = slices.DeleteFunc(slices.Clone(want.faults), func(f fault) bool { return !f.onStock })
			if diff := cmp.Diff(want, s, compareTrials); diff != "" || len(s.faults) == 0 {
				t.Fatalf("stock has another fault:\n%s", diff)
			}
		}
		if len(libra) == 0 {
			return
		}
		only := rapid.SampledFrom(libra).Draw(t, "only")
		alone, _, err := makePlan(seed, pairs, []string{only.name})
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]trial{only}, alone, compareTrials); diff != "" {
			t.Fatalf("a fault alone is another one:\n%s", diff)
		}
	})
}

func checkTrial(t *rapid.T, all trial) {
	if all.lead < leastLead || all.lead > mostLead {
		t.Fatalf("%s begins after %v", all.name, all.lead)
	}
	for i, f := range all.faults {
		lasts := slices.Contains([]string{pause, fill, flush}, f.action)
		if lasts != (f.length > 0) || lasts && (f.length < leastPause || f.length > mostPause) {
			t.Fatalf("%s lasts %v", all.what(), f.length)
		}
		if f.after < 0 || f.after > mostApart || i == 0 && f.after != 0 {
			t.Fatalf("%s begins after %v", all.what(), f.after)
		}
	}
	if strings.HasPrefix(all.name, "pair-") != (len(all.faults) == 2) {
		t.Fatalf("%s has %d faults", all.name, len(all.faults))
	}
	if len(all.faults) == 2 && (all.faults[0].part == all.faults[1].part || !all.faults[0].inPairs || !all.faults[1].inPairs) {
		t.Fatalf("%s is a pair", all.what())
	}
}

func TestPlanNamesWhatItDoesNotKnow(t *testing.T) {
	_, _, err := makePlan(1, 1, []string{"redis-kill", "redis-explode"})
	if err == nil || !strings.Contains(err.Error(), `"redis-explode"`) || !strings.Contains(err.Error(), "pair-01") {
		t.Errorf("got %v, want an error that names the fault and those there are", err)
	}
}

func TestEveryPartIsBrokenAlone(t *testing.T) {
	libra, stock, err := makePlan(1, 0, nil)
	if err != nil {
		t.Fatal(err)
	}
	broken, compared := map[part]bool{}, map[part]bool{}
	for _, all := range libra {
		broken[all.faults[0].part] = true
	}
	for _, all := range stock {
		compared[all.faults[0].part] = true
	}
	for _, p := range []part{activator, predictor, redisPart, controller, agent, kubelet, apiServer, pod} {
		if !broken[p] {
			t.Errorf("%s is not broken", p)
		}
	}
	if diff := cmp.Diff(map[part]bool{activator: true, kubelet: true, apiServer: true}, compared); diff != "" {
		t.Errorf("compared with stock (-want +got):\n%s", diff)
	}
}
