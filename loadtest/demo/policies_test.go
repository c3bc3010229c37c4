package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"libra.dev/libra/loadtest/demo/evaluation"
)

func names(policies []policy) []string {
	var names []string
	for _, p := range policies {
		names = append(names, p.Name)
	}
	return names
}

func TestNamedHasStockAndKeepsTheOrder(t *testing.T) {
	got, err := named([]string{"freyr", "libra"})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"stock", "libra", "freyr"}, names(got)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if _, err := named([]string{"libra", "magic"}); err == nil || !strings.Contains(err.Error(), "magic") || !strings.Contains(err.Error(), "no_limits") {
		t.Errorf("got %v, want an error that names what was wrong and what is accepted", err)
	}
}

func TestOrderChangesTheActivatorAtMostOnceARound(t *testing.T) {
	for round := 1; round <= 4; round++ {
		got := order(policies, round)
		if len(got) != len(policies) {
			t.Fatalf("round %d has %d policies, not %d", round, len(got), len(policies))
		}
		changes := 0
		for i := range got[1:] {
			if got[i].libra != got[i+1].libra {
				changes++
			}
		}
		if changes != 1 {
			t.Errorf("round %d changes the activator %d times: %v", round, changes, names(got))
		}
		next := order(policies, round+1)
		if got[len(got)-1].libra != next[0].libra {
			t.Errorf("round %d ends with another activator than the next begins with", round)
		}
		if slices.Equal(names(got), names(next)) {
			t.Errorf("rounds %d and %d have one order", round, round+1)
		}
	}
}

func TestPatchesOfParts(t *testing.T) {
	if got := (parts{}).patches(); len(got) != 0 {
		t.Errorf("the default is patched: %v", got)
	}
	got := parts{unsafeguarded: true, estimator: movingWindow, unlimited: true}.patches()
	var said strings.Builder
	for _, p := range got {
		said.WriteString(p.Target.Kind + " " + p.Patch + "\n")
	}
	for _, want := range []string{"DaemonSet", "--safeguard=false", "InferenceService", "LIBRA_ESTIMATOR", "moving-window", "LIBRA_DURATIONS", "unlimited"} {
		if !strings.Contains(said.String(), want) {
			t.Errorf("nothing says %s:\n%s", want, said.String())
		}
	}
}

func TestPoliciesDifferInWhatTheySay(t *testing.T) {
	type key struct {
		field int
		said  string
	}
	seen := map[key]string{}
	for _, p := range policies {
		for field, said := range []string{p.Name, p.Title, p.About} {
			k := key{field, said}
			if said == "" || seen[k] != "" {
				t.Errorf("policy %s: %q is empty, or what policy %s says", p.Name, said, seen[k])
			}
			seen[k] = p.Name
		}
	}
	if policies[0].Name != evaluation.Stock {
		t.Errorf("the first policy is %s", policies[0].Name)
	}
}

func TestPartsThatAreNotAnsweringYet(t *testing.T) {
	const list = `{"functions":[
{"name":"default/a-1","estimators":{"cpu":"moving-window","memory":"moving-window","duration":"unlimited"}},
{"name":"default/b-1","estimators":{"cpu":"none","memory":"none","duration":"none"}}]}`
	for _, c := range []struct {
		parts parts
		ok    bool
	}{
		{parts{estimator: movingWindow, unlimited: true}, true},
		{parts{estimator: movingWindow}, false},
		{parts{}, false},
	} {
		if err := c.parts.answering([]byte(list)); (err == nil) != c.ok {
			t.Errorf("%+v: got %v", c.parts, err)
		}
	}
	if err := (parts{}).answering([]byte("<html>")); err == nil {
		t.Error("took a page for a list")
	}
}
