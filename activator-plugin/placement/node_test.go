package placement

import (
	"fmt"
	"sync"
	"testing"
)

func TestNodeIDsAreNamesOwn(t *testing.T) {
	var nodes nodeNames
	if got := nodes.id(""); got != 0 {
		t.Errorf("no name has the ID %d, want 0", got)
	}
	const names, callers = 1000, 4
	var ids [callers][names]NodeID
	var asking sync.WaitGroup
	for i := range callers {
		asking.Go(func() {
			for j := range names {
				ids[i][j] = nodes.id(fmt.Sprintf("of-the-test-%d", j))
			}
		})
	}
	asking.Wait()
	seen := map[NodeID]int{}
	for j := range names {
		id := ids[0][j]
		if other, taken := seen[id]; taken || id == 0 {
			t.Fatalf("names %d and %d have the ID %d", other, j, id)
		}
		seen[id] = j
		for i := range callers {
			if ids[i][j] != id {
				t.Errorf("name %d has the IDs %d and %d", j, id, ids[i][j])
			}
		}
	}
}

func TestNodeIDsAreBounded(t *testing.T) {
	var nodes nodeNames
	first := nodes.id("the-first")
	for i := range maxNodeIDs + 10 {
		nodes.id(fmt.Sprintf("many-%d", i))
	}
	if got := nodes.id("one-more"); got != 0 {
		t.Errorf("one more has the ID %d, want none", got)
	}
	if got := nodes.id("the-first"); got != first {
		t.Errorf("the first has the ID %d, and had %d", got, first)
	}
	if len(nodes.of) != maxNodeIDs {
		t.Errorf("%d names have an ID, want at most %d", len(nodes.of), maxNodeIDs)
	}
}
