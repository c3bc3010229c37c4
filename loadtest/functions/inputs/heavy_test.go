package inputs

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func TestHeavyInputsGrowWithTheirNumbers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := rapid.SampledFrom(Functions).Draw(t, "function")
		scale := rapid.Float64Range(0.25, 4).Draw(t, "scale")
		before := 0
		for share := 0.0; share < 1; share += 1.0 / 64 {
			size := f.heavy.at(share, scale)
			if size < before || size < f.heavy.least || size > f.heavy.most {
				t.Fatalf("%s: the size at %v is %d, after %d; it must be %d to %d", f.Name, share, size, before, f.heavy.least, f.heavy.most)
			}
			before = size
		}
	})
}

// The middle input is near the median, and there is a tail: the largest of forty is
// about twice the median or more.
func TestHeavyInputsHaveATail(t *testing.T) {
	for _, f := range Functions {
		if middle := f.heavy.at(0.5, 1); middle < f.heavy.median*8/10 || middle > f.heavy.median {
			t.Errorf("%s: the middle of the inputs is %d, and the table says %d", f.Name, middle, f.heavy.median)
		}
		if top := f.heavy.at(79.0/80, 1); float64(top) < 1.9*float64(f.heavy.median) {
			t.Errorf("%s: the largest of 40 is %d, not twice the median of %d", f.Name, top, f.heavy.median)
		}
	}
}

func TestHeavyFollowsFromItsSeed(t *testing.T) {
	one, err := Heavy("dynamichtml", 1, 3, 8, 1)
	if err != nil {
		t.Fatal(err)
	}
	again, _ := Heavy("dynamichtml", 1, 3, 8, 1)
	other, _ := Heavy("dynamichtml", 2, 3, 8, 1)
	if !cmp.Equal(one, again) || cmp.Equal(one.Body, other.Body) {
		t.Error("the same seed made another input, or another seed the same")
	}
	if _, err := Heavy("dynamichtml", 1, 8, 8, 1); err == nil || !strings.Contains(err.Error(), "8 of 8") {
		t.Errorf("got %v, want an error that says which input", err)
	}
}
