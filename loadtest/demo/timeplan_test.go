package main

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"libra.dev/libra/loadtest/demo/evaluation"
)

// ranks are those of a plan's turns.
func ranks(p timePlan) []int {
	var found []int
	for _, ph := range p {
		for _, c := range ph.combinations {
			for _, turn := range c.arms {
				found = append(found, turn.rank)
			}
		}
	}
	return found
}

func TestAFittedPlanFitsAndKeepsWhatMatters(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		whole := plan(rapid.SampledFrom([]lengths{full, quick}).Draw(t, "lengths"))
		budget := time.Duration(rapid.IntRange(0, 300).Draw(t, "minutes")) * time.Minute
		fitted := whole.fit(budget)
		if fitted.takes() > budget {
			t.Fatalf("%v in %v", fitted.takes(), budget)
		}
		if again := fitted.fit(budget); len(ranks(again)) != len(ranks(fitted)) {
			t.Errorf("what fits was fitted again, and %d of %d turns left", len(ranks(again)), len(ranks(fitted)))
		}
		for i, ph := range whole {
			if complete := len(ranks(timePlan{ph})) == len(ranks(timePlan{fitted[i]})); complete != (len(ph.leftOut(fitted[i])) == 0) {
				t.Errorf("%s: complete is %v, and left out %q", ph.name, complete, ph.leftOut(fitted[i]))
			}
		}
	})
}

// What the goals are about has time in a full run: each load and number of pods under
// stock, Libra and no limits in four blocks of 40 s, with the bystanders and the memory.
func TestAFullRunHasTimeForTheGoals(t *testing.T) {
	fitted := plan(full).fit(fullTime - openingTime - closingTime)
	var said strings.Builder
	fitted.write(&said)
	t.Logf("%v\n%s", fitted.takes(), said.String())
	found := map[string][]string{}
	for _, ph := range fitted {
		for _, c := range ph.combinations {
			for _, turn := range c.arms {
				found[c.String()] = append(found[c.String()], turn.arm)
				if core := slices.Contains([]string{evaluation.Stock, evaluation.Libra, evaluation.NoLimits}, turn.arm); core && c.part == evaluation.PartRequests && (turn.blocks < 4 || c.length < 40*time.Second) {
					t.Errorf("%s has %d blocks of %v under %s", c, turn.blocks, c.length, turn.arm)
				}
			}
		}
	}
	for _, c := range []string{
		"requests at 15 % with 10 pods", "requests at 40 % with 10 pods", "requests at 90 % with 10 pods", "requests at 120 % with 10 pods",
		"requests at 90 % with 40 pods", "requests at 120 % with 40 pods",
		"bystanders at 40 % with 10 pods", "bystanders at 90 % with 10 pods", "memory at 15 % with 1 pods",
	} {
		for _, want := range []string{evaluation.Stock, evaluation.Libra, evaluation.NoLimits} {
			if !slices.Contains(found[c], want) {
				t.Errorf("%s is not measured under %s", c, want)
			}
		}
	}
	for _, want := range []string{"requests at 90 % with 10 pods", "requests at 40 % with 10 pods"} {
		if !slices.Contains(found[want], evaluation.Again) {
			t.Errorf("%s has no noise", want)
		}
	}
}

func TestAQuickRunHasTimeForABusyNode(t *testing.T) {
	fitted := plan(quick).fit(quickTime - quickOpeningTime - quickClosingTime)
	var said strings.Builder
	fitted.write(&said)
	t.Logf("%v\n%s", fitted.takes(), said.String())
	if !strings.Contains(said.String(), "requests at 90 % with 10 pods, blocks of 20s: stock 2, libra 2, no_limits 2, again 2") {
		t.Error("the busy node is not measured")
	}
}

func TestOnlyKeepsTheNamedParts(t *testing.T) {
	p := plan(quick).only([]string{evaluation.PartMemory}, []string{evaluation.VPA})
	if len(p) != 1 || p[0].name != phaseMemory || len(p.arms()) != 4 {
		t.Errorf("got %+v", p)
	}
}

// Stock again has the functions of stock.
func TestPlacesAreThoseOfFunctions(t *testing.T) {
	ph := plan(full)[0]
	places, all := ph.places(), ph.arms()
	if len(places) != len(all)-1 || slices.Contains(places, evaluation.Again) {
		t.Errorf("%d arms have functions at %q", len(all), places)
	}
}

// Each combination's blocks are all there, each number once under each of its arms, and
// what was done takes no more time.
func TestTheRestOfAPhaseIsWhatWasNotDone(t *testing.T) {
	ph := plan(full)[0]
	whole := ph.takes() - ph.prepares()
	for number := 2; number <= ph.most(); number++ {
		rest := ph.from(number)
		done := time.Duration(0)
		for _, c := range ph.combinations {
			for _, turn := range c.arms {
				done += time.Duration(min(turn.blocks, number-1)) * (c.length + c.gap)
			}
		}
		if got := rest.takes(); got != whole-done {
			t.Errorf("from block %d on it takes %v, want %v", number, got, whole-done)
		}
	}
	rng := rand.New(rand.NewPCG(1, 1))
	seen := map[string]int{}
	for number := 1; number <= ph.most(); number++ {
		bystanders := false
		for _, c := range ph.inOrder(rng, number) {
			if bystanders = bystanders || c.part == evaluation.PartBystanders; bystanders && c.part != evaluation.PartBystanders {
				t.Errorf("block %d of %s is among those with bystanders", number, c)
			}
			for _, a := range shuffled(rng, c, number) {
				seen[c.String()+a.Name]++
			}
		}
	}
	for _, c := range ph.combinations {
		for _, turn := range c.arms {
			if got := seen[c.String()+turn.arm]; got != turn.blocks {
				t.Errorf("%s has %d blocks under %s, want %d", c, got, turn.arm, turn.blocks)
			}
		}
	}
}
