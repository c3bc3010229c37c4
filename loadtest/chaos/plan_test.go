package main

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"libra.dev/libra/pkg/api"
)

var compareTrials = cmp.AllowUnexported(trial{}, fault{}, kind{})

func TestPlanOfASeed(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		seed := rapid.Uint64().Draw(t, "seed")
		pairs := rapid.IntRange(0, 30).Draw(t, "pairs")
		sources := rapid.SampledFrom([][]api.Source{{api.SourceNode}, {api.SourceOwners}, allSources}).Draw(t, "sources")
		several := rapid.Bool().Draw(t, "several")
		libra, stock, err := makePlan(seed, pairs, nil, sources, several)
		if err != nil {
			t.Fatal(err)
		}
		want := 0
		for _, source := range sources {
			want += pairs
			for _, k := range kinds {
				if k.under(source) && (several || !k.several) {
					want++
				}
			}
		}
		if len(libra) != want {
			t.Fatalf("%d trials of %d pairs under %v, want %d", len(libra), pairs, sources, want)
		}
		again, stockAgain, _ := makePlan(seed, pairs, nil, sources, several)
		if diff := cmp.Diff([][]trial{libra, stock}, [][]trial{again, stockAgain}, compareTrials); diff != "" {
			t.Fatalf("the same seed makes another plan:\n%s", diff)
		}
		for _, all := range libra {
			checkTrial(t, all)
		}
		for _, s := range stock {
			// The comparison has the same load, moment and length.
			want := libra[slices.IndexFunc(libra, func(l trial) bool { return l.name == s.name })]
			want.stock, want.source = true, ""
			want.faults = slices.DeleteFunc(slices.Clone(want.faults), func(f fault) bool { return !f.onStock })
			if diff := cmp.Diff(want, s, compareTrials); diff != "" || len(s.faults) == 0 {
				t.Fatalf("stock has another fault:\n%s", diff)
			}
		}
		if len(libra) == 0 {
			return
		}
		only := rapid.SampledFrom(libra).Draw(t, "only")
		alone, _, err := makePlan(seed, pairs, []string{only.name}, []api.Source{only.source}, several)
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
		least, most := time.Duration(0), time.Duration(0)
		switch f.action {
		case pause, pauseHolding, fill, flush, flip, cut:
			least, most = leastPause, mostPause
		case gone:
			least, most = leastGone, mostGone
		}
		if f.length < least || f.length > most {
			t.Fatalf("%s lasts %v", all.what(), f.length)
		}
		if !f.under(all.source) {
			t.Fatalf("%s is under %s", all.what(), all.source)
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
	_, _, err := makePlan(1, 1, []string{"redis-kill", "redis-explode"}, allSources, false)
	if err == nil || !strings.Contains(err.Error(), `"redis-explode"`) || !strings.Contains(err.Error(), "pair-01") {
		t.Errorf("got %v, want an error that names the fault and those there are", err)
	}
}

func TestEveryPartIsBrokenAlone(t *testing.T) {
	libra, stock, err := makePlan(1, 0, nil, allSources, true)
	if err != nil {
		t.Fatal(err)
	}
	type under struct {
		part
		api.Source
	}
	broken, compared := map[under]bool{}, map[part]bool{}
	for _, all := range libra {
		broken[under{all.faults[0].part, all.source}] = true
	}
	for _, all := range stock {
		compared[all.faults[0].part] = true
	}
	for _, p := range []part{activator, predictor, redisPart, controller, agent, kubelet, apiServer, pod, sourcePart, workerNode} {
		for _, source := range allSources {
			if !broken[under{p, source}] {
				t.Errorf("%s is not broken under %s", p, source)
			}
		}
	}
	if diff := cmp.Diff(map[part]bool{activator: true, kubelet: true, apiServer: true}, compared); diff != "" {
		t.Errorf("compared with stock (-want +got):\n%s", diff)
	}
}

// Asking for a fault under the source that does not have it is an error: the fault is
// not silently left out.
func TestFaultsOfOneSource(t *testing.T) {
	both, _, err := makePlan(1, 0, []string{"agent-gone"}, allSources, false)
	if err != nil || len(both) != 1 || both[0].source != api.SourceNode || !both[0].crowded() {
		t.Errorf("under both: %+v, %v, want it under node, in a crowd", both, err)
	}
	if _, _, err := makePlan(1, 0, []string{"agent-gone"}, []api.Source{api.SourceOwners}, false); err == nil || !strings.Contains(err.Error(), "only under the source node") {
		t.Errorf("under owners: %v", err)
	}
	one, stock, err := makePlan(1, 0, []string{"kubelet-restart"}, allSources, false)
	if err != nil || len(one) != 2 || len(stock) != 1 {
		t.Errorf("%d trials and %d with stock, %v: want one with stock to compare both with", len(one), len(stock), err)
	}
}

func TestSourcesOf(t *testing.T) {
	for said, want := range map[string][]api.Source{"node": {api.SourceNode}, "owners": {api.SourceOwners}, "both": allSources} {
		if got, err := sourcesOf(said); err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: %v, %v", said, got, err)
		}
	}
	for _, said := range []string{"", "Node", "node,owners"} {
		if _, err := sourcesOf(said); err == nil || !strings.Contains(err.Error(), "node, owners or both") {
			t.Errorf("%q: %v", said, err)
		}
	}
}
