package main

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"libra.dev/libra/loadtest/demo/evaluation"
)

// ranks returns the ranks of a plan's turns.
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
		least := func(c combination) int {
			return slices.MinFunc(c.arms, func(a, b turn) int { return a.rank - b.rank }).rank
		}
		for i, ph := range fitted {
			for _, c := range ph.combinations {
				at := slices.IndexFunc(whole[i].combinations, func(other combination) bool { return other.String() == c.String() })
				if got, want := least(c), least(whole[i].combinations[at]); got != want {
					t.Errorf("%s is without those that others are held against", c)
				}
			}
		}
		for i, ph := range whole {
			if complete := len(ranks(timePlan{ph})) == len(ranks(timePlan{fitted[i]})); complete != (len(ph.leftOut(fitted[i])) == 0) {
				t.Errorf("%s: complete is %v, and left out %q", ph.name, complete, ph.leftOut(fitted[i]))
			}
		}
	})
}

// shares returns the number of blocks of each arm in each combination of a plan.
func shares(p timePlan) map[string]map[string]int {
	found := map[string]map[string]int{}
	for _, ph := range p {
		for _, c := range ph.combinations {
			name := fmt.Sprintf("%s, blocks of %v", c, c.length)
			if found[name] == nil {
				found[name] = map[string]int{}
			}
			for _, turn := range c.arms {
				found[name][turn.arm] += turn.blocks - turn.done
			}
		}
	}
	return found
}

// A full run has time for the goals, with four blocks of 40 s at each load and number
// of pods, for the other parts, and for every arm at least on the full node.
func TestAFullRunHasTimeForTheGoalsAndEachArm(t *testing.T) {
	fitted := plan(full).fit(fullTime - openingTime - closingTime)
	var said strings.Builder
	fitted.write(&said)
	t.Logf("%v\n%s", fitted.takes(), said.String())
	if all := plan(full).takes() + openingTime + closingTime; all > 3*time.Hour {
		t.Errorf("all of it takes %v, and docs/evaluation.md says three hours", all)
	}
	found := shares(fitted)
	want := func(combination string, blocks int, arms ...string) {
		for _, arm := range arms {
			if got := found[combination][arm]; got < blocks {
				t.Errorf("%s: %d under %s, want %d", combination, got, arm, blocks)
			}
		}
	}
	for _, load := range []int{15, 40, 90, 120} {
		want(fmt.Sprintf("requests at %d %% with 10 pods, blocks of 40s", load), 4, evaluation.Stock, evaluation.Again, evaluation.Libra, evaluation.NoLimits)
	}
	for _, load := range []int{90, 120} {
		want(fmt.Sprintf("requests at %d %% with 40 pods, blocks of 40s", load), 4, evaluation.Stock, evaluation.Again, evaluation.Libra, evaluation.NoLimits)
	}
	for _, load := range []int{40, 90} {
		want(fmt.Sprintf("bystanders at %d %% with 10 pods, blocks of 20s", load), 4, evaluation.Stock, evaluation.Again, evaluation.Libra)
	}
	want("bystanders at 90 % with 10 pods, blocks of 20s", 2, evaluation.NoLimits)
	want("requests at 90 % with 10 pods, blocks of 40s", 2, evaluation.Owners, evaluation.VPA, evaluation.NoLimitsWeighted)
	want("requests at 40 % with 10 pods, blocks of 40s", 2, evaluation.Owners)
	want("memory at 15 % with 1 pod, blocks of 20s", 2, evaluation.Stock, evaluation.Libra, evaluation.NoLimits, evaluation.VPA, evaluation.Fits)
	want("cost at 40 %, blocks of 30s", 2, evaluation.Stock, evaluation.Libra, evaluation.NoLimits)
}

// Ablations have time for each of them, and for the noise.
func TestAblationsHaveTime(t *testing.T) {
	short := ablationPlan(quick)
	if left := short[0].leftOut(short.fit(quickAblationTime - quickOpeningTime - quickClosingTime)[0]); left != nil {
		t.Errorf("of a quick look, left out: %q", left)
	}
	whole := ablationPlan(full)
	fitted := whole.fit(ablationTime - openingTime - closingTime)
	var said strings.Builder
	fitted.write(&said)
	t.Logf("%v\n%s", fitted.takes(), said.String())
	if left := whole[0].leftOut(fitted[0]); left != nil {
		t.Errorf("left out: %q", left)
	}
	found := shares(fitted)
	for _, a := range ablations {
		there := false
		for _, arms := range found {
			there = there || arms[a.Name] >= 4 && arms[a.Base] >= 4 && arms[evaluation.Stock] >= 4
		}
		if !there {
			t.Errorf("%s is not measured beside %q", a.Name, a.Base)
		}
	}
	// Only bystanders show what the clamp is for.
	if arms := found["bystanders at 90 % with 10 pods, blocks of 20s"]; arms["libra_no_clamp"] < 4 || arms[evaluation.Libra] < 4 {
		t.Errorf("with bystanders: %v", arms)
	}
}

// Arms with the same settings of Libra's parts follow one another, and the settings
// change no more often than the plan has time for.
func TestPartsAreSetAsSeldomAsPlanned(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
		for _, c := range ablationPlan(full)[0].combinations {
			set, now := 0, parts{}
			for number := 1; number <= full.blocks; number++ {
				for _, a := range shuffled(rng, c, number) {
					if a.learns && a.parts != now {
						set, now = set+1, a.parts
					}
				}
			}
			if set > c.changes() {
				t.Fatalf("%s: parts are set %d times, and there is time for %d", c, set, c.changes())
			}
		}
	})
}

func TestThePlanGoesByWhatBlocksTake(t *testing.T) {
	p := plan(full)
	seen := gapsSeen{}
	c := p[0].combinations[0]
	for range gapsToKnow - 1 {
		seen.note(c, time.Minute)
	}
	if got := p.by(seen).takes(); got != p.takes() {
		t.Errorf("of few blocks, it takes %v in place of %v", got, p.takes())
	}
	seen.note(c, time.Minute)
	blocks := 0
	for _, ph := range p {
		for _, other := range ph.combinations {
			if other.part == c.part && other.load == c.load {
				for _, turn := range other.arms {
					blocks += turn.blocks
				}
			}
		}
	}
	if got, want := p.by(seen).takes(), p.takes()+time.Duration(blocks)*(time.Minute-c.gap); got != want {
		t.Errorf("it takes %v, want %v", got, want)
	}
	if p[0].combinations[0].gap != c.gap {
		t.Error("the plan itself has changed")
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
	p := plan(quick).only([]string{evaluation.PartMemory}, evaluationLoads, nil, []string{evaluation.VPA})
	if len(p) != 1 || p[0].name != phaseMemory || len(p.arms()) != 4 {
		t.Errorf("got %+v", p)
	}
}

func TestOnlyKeepsTheNamedLoads(t *testing.T) {
	for _, ph := range plan(quick).only(evaluationParts, []int{loadHigh}, evaluationPods, nil) {
		for _, c := range ph.combinations {
			if c.load != loadHigh {
				t.Errorf("got %s", c)
			}
		}
	}
}

func TestOnlyKeepsTheNamedPods(t *testing.T) {
	pods := map[int]bool{}
	for _, ph := range plan(full).only(evaluationParts, evaluationLoads, []int{40}, nil) {
		for _, c := range ph.combinations {
			pods[c.pods] = true
		}
	}
	// What has a number of its own is kept.
	if !maps.Equal(pods, map[int]bool{40: true, 1: true, 0: true}) {
		t.Errorf("got %v", pods)
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

// All blocks of a combination are there, each number once under each of its arms, and
// blocks that are done take no more time.
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
