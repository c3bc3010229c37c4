package main

import (
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"libra.dev/libra/pkg/api"
)

// flagsOfNodes returns the command's options without any flag.
func flagsOfNodes() nodesOptions {
	return nodesOptions{
		loads: []int{loadMiddle, loadHigh}, pods: []int{2, 4},
		placements: []string{"coverage", "round-robin", "join-shortest-queue", "minimum-worker-set", "default", "stock"},
		sources:    []string{"owners", "node"},
	}
}

func nodesEvaluation() *evaluate { return newEvaluation(newDemo(options{}, io.Discard), "") }

func TestWrongFlagsOfNodesAreNamed(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*nodesOptions)
		want   string // in the error; empty if there is none
	}{
		"defaults":           {func(*nodesOptions) {}, ""},
		"a load":             {func(n *nodesOptions) { n.loads = []int{50} }, "--loads has 50"},
		"pods":               {func(n *nodesOptions) { n.pods = []int{2, 3} }, "--pods has 3; want 2, 4 or both"},
		"one pod":            {func(n *nodesOptions) { n.pods = []int{0} }, "--pods has 0"},
		"a placement":        {func(n *nodesOptions) { n.placements = []string{"best"} }, `--placements: placement is "best", want`},
		"a source":           {func(n *nodesOptions) { n.sources = []string{"air"} }, `--sources: source is "air", want`},
		"blocks":             {func(n *nodesOptions) { n.blocks = -1 }, "--blocks is -1"},
		"draws":              {func(n *nodesOptions) { n.draws = -1 }, "--draws is -1"},
		"draws of nothing":   {func(n *nodesOptions) { n.draws = 5 }, "--draws is 5; it must be 1 to 4, the number of blocks"},
		"one block":          {func(n *nodesOptions) { n.blocks = 1 }, ""},
		"no time":            {func(n *nodesOptions) { n.limit = time.Minute }, "--limit is 1m"},
		"nothing to measure": {func(n *nodesOptions) { n.sources = nil }, "leave nothing to measure"},
		"no load":            {func(n *nodesOptions) { n.loads = nil }, "leave nothing to measure"},
	} {
		n := flagsOfNodes()
		c.change(&n)
		err := nodesEvaluation().checkNodes(n)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: got %v, want %q", name, err, c.want)
		}
	}
}

// A full run has time for all blocks of all placements under owners; a quick one for the
// blocks that the goal is about.
func TestWhatThereIsTimeForOnNodes(t *testing.T) {
	goal := []string{"hash", "coverage"}
	policies := slices.Concat(goal, []string{"round_robin", "join_shortest_queue", "minimum_worker_set"})
	for name, c := range map[string]struct {
		quick  bool
		blocks int
		arms   []string
	}{
		"full":  {false, nodesFull.blocks, slices.Concat(policies, []string{"hash_again", "default", stockPlacement})},
		"quick": {true, nodesQuick.blocks, goal},
	} {
		n := flagsOfNodes()
		n.quick = c.quick
		e := nodesEvaluation()
		if err := e.checkNodes(n); err != nil {
			t.Fatal(err)
		}
		fitted := e.plan.fit(e.limit - e.pace.opening - e.pace.closing)
		var said strings.Builder
		fitted.write(&said)
		t.Logf("%s: %v of %v\n%s", name, fitted.takes(), e.limit, said.String())
		found := shares(fitted)
		if len(found) < 4 {
			t.Errorf("%s: %d loads and numbers of pods, want 4", name, len(found))
		}
		for combination, blocks := range found {
			for _, arm := range c.arms {
				if blocks[arm] != c.blocks {
					t.Errorf("%s, %s: %d blocks of %s, want %d", name, combination, blocks[arm], arm, c.blocks)
				}
			}
		}
	}
}

func TestEachPlacementIsHeldAgainstHashOfItsSource(t *testing.T) {
	seen := map[string]bool{}
	for _, a := range placements {
		if seen[a.Name] {
			t.Errorf("two arms are %s", a.Name)
		}
		seen[a.Name] = true
		base := armNamed(a.Base)
		if base.placement != api.PlacementHash || base.source != a.source || base.place() != a.place() || a.placement == "" || !a.learns {
			t.Errorf("%s, placed by %q at %s under %s, is held against %s, placed by %q at %s under %s",
				a.Name, a.placement, a.place(), a.source, base.Name, base.placement, base.place(), base.source)
		}
	}
	for _, source := range []api.Source{api.SourceOwners, api.SourceNode} {
		for _, p := range api.Placements {
			if !seen[placementName(source, p)] {
				t.Errorf("there is no arm of %s under %s", p, source)
			}
		}
		if a := armNamed(againName(source)); a.placement != api.PlacementHash {
			t.Errorf("%s is placed by %s", a.Name, a.placement)
		}
	}
}

// Each draw has functions of its own, and the draws share the blocks: each block once, in order.
func TestDrawsShareTheBlocksOut(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := flagsOfNodes()
		n.blocks = rapid.IntRange(1, 9).Draw(t, "blocks")
		n.draws = rapid.IntRange(1, n.blocks).Draw(t, "draws")
		e := nodesEvaluation()
		if err := e.checkNodes(n); err != nil {
			t.Fatal(err)
		}
		if want := 2 * 2 * n.draws; len(e.plan) != want {
			t.Errorf("%d phases, want %d: two sources and two numbers of pods in each draw", len(e.plan), want)
		}
		namespaces, done := map[string]bool{}, map[string]int{}
		for _, ph := range e.plan {
			for _, place := range ph.places() {
				if namespace := ph.namespaceAt(place); namespaces[namespace] || !isPlace(namespace) {
					t.Errorf("%s is another's, too, or not an evaluation's", namespace)
				} else {
					namespaces[namespace] = true
				}
			}
			for number := ph.first(); number <= ph.most(); number++ {
				for _, c := range ph.inOrder(rand.New(rand.NewPCG(1, 0)), number) {
					for _, a := range shuffled(rand.New(rand.NewPCG(1, 0)), c, number) {
						arm := c.String() + a.Name
						if done[arm]++; done[arm] != number {
							t.Errorf("block %d of %s comes as number %d", number, arm, done[arm])
						}
					}
				}
			}
		}
		for arm, blocks := range done {
			if blocks != n.blocks {
				t.Errorf("%s has %d blocks, want %d", arm, blocks, n.blocks)
			}
		}
	})
}
