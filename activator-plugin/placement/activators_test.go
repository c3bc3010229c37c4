package placement

import (
	"fmt"
	"testing"
	"testing/synctest"

	"pgregory.net/rapid"

	"libra.dev/libra/activator-plugin/knativetest"
)

// inOrder returns pods on nodes, in the order in which activators deal them out.
func inOrder(perNode []int) (all []*pod) {
	for node, n := range perNode {
		for i := range n {
			all = append(all, &pod{Pod: Pod{Name: fmt.Sprintf("ns/pod-%02d-%02d", node, i), Node: fmt.Sprintf("node-%02d", node)}})
		}
	}
	return all
}

// ofKnative returns how many pods Knative's throttler assigns to an activator.
func ofKnative(pods, index, activators int) int {
	n := pods / activators
	if index < pods%activators {
		n++
	}
	return n
}

// Each pod belongs to one activator. Each activator has as many pods as Knative has slots for it, and of each
// node as many as the others, give or take one.
func TestShares(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		perNode := rapid.SliceOfN(rapid.IntRange(0, 12), 1, 6).Draw(t, "pods per node")
		count := rapid.SampledFrom([]int{1, 2, 3, 4, 10}).Draw(t, "activators")
		ready := inOrder(perNode)
		owner := map[*pod]int{}
		for index := range count {
			mine := activators{index, count}.share(ready)
			if count > 1 && len(ready) <= count {
				if mine != nil {
					t.Fatalf("%d pods for %d activators are dealt", len(ready), count)
				}
				continue
			}
			if want := ofKnative(len(ready), index, count); len(mine) != want {
				t.Fatalf("activator %d of %d has %d of %d pods, want %d", index, count, len(mine), len(ready), want)
			}
			onNode := map[string]int{}
			for _, p := range mine {
				if other, taken := owner[p]; taken {
					t.Fatalf("%s is of activators %d and %d", p.Name, other, index)
				}
				owner[p] = index
				onNode[p.Node]++
			}
			for node, n := range perNode {
				if got := onNode[fmt.Sprintf("node-%02d", node)]; got < n/count || got > n/count+1 {
					t.Fatalf("activator %d of %d has %d of %d pods on a node", index, count, got, n)
				}
			}
		}
		if (count == 1 || len(ready) > count) && len(owner) != len(ready) {
			t.Fatalf("%d of %d pods are anybody's", len(owner), len(ready))
		}
	})
}

// The slots learn of activators as Knative's throttler does.
func TestActivatorsAreFollowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := knativetest.New(t, revID, 1, 0)
		slots := NewSlots(nil, nil)
		if err := slots.FollowActivators(k.Endpoints(), knativetest.ActivatorIP(2)); err != nil {
			t.Fatal(err)
		}
		for _, step := range []struct {
			activators int
			want       activators
		}{
			{1, alone}, {4, activators{2, 4}}, {3, activators{2, 3}},
			// This activator is no longer in the path, and keeps what it had.
			{2, activators{2, 3}}, {10, activators{2, 10}},
		} {
			k.Activators(t, step.activators)
			// The revision's pods are not activators.
			k.Scale(t, "10.0.0.1")
			synctest.Wait()
			r := slots.Of(revID, 1)
			if r.among != step.want {
				t.Errorf("with %d activators it is %v, want %v", step.activators, r.among, step.want)
			}
		}
	})
}
