package once_test

import (
	"testing"

	"libra.dev/libra/pkg/once"
)

func TestFirst(t *testing.T) {
	var said once.Set[int]
	for _, c := range []struct {
		key  int
		want bool
	}{{1, true}, {2, true}, {1, false}, {2, false}} {
		if got := said.First(c.key); got != c.want {
			t.Errorf("First(%d) is %v, want %v", c.key, got, c.want)
		}
	}
}

// Ever new keys must not fill the memory.
func TestSetIsBounded(t *testing.T) {
	var said once.Set[int]
	for key := range once.Most + 1 {
		if !said.First(key) {
			t.Fatalf("%d is new, and was said", key)
		}
	}
	if !said.First(0) {
		t.Error("the first of more than a Set remembers is remembered")
	}
	if said.First(once.Most) {
		t.Error("the last of more than a Set remembers is forgotten")
	}
}
