package duplicator

import (
	"bytes"
	"io"
	"math"
	"slices"
	"testing"
	"testing/iotest"

	"pgregory.net/rapid"
)

func TestSizesAreSpacedAndBounded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		length := rapid.Int64Range(1, maxBody).Draw(t, "length")
		n := rapid.IntRange(1, maxReplays).Draw(t, "n")
		got := sizes(length, n)
		if len(got) == 0 || len(got) > n {
			t.Fatalf("%d sizes, want 1 to %d", len(got), n)
		}
		for _, size := range got {
			if size < minSize || size > maxSize {
				t.Fatalf("size %d is not within %d and %d", size, minSize, maxSize)
			}
			if size > max(length*maxFactor, minSize) || size < min(length/maxFactor, maxSize) {
				t.Fatalf("size %d is more than %d times away from %d", size, maxFactor, length)
			}
		}
		if !slices.IsSorted(got) || len(slices.Compact(slices.Clone(got))) != len(got) {
			t.Fatalf("%v is not ascending", got)
		}
		// Unless rounding blurs it, each is the same multiple of the one before.
		if len(got) < 3 || got[1]-got[0] < 100 {
			return
		}
		want := float64(got[1]) / float64(got[0])
		for i := 2; i < len(got); i++ {
			if ratio := float64(got[i]) / float64(got[i-1]); math.Abs(ratio/want-1) > 0.02 {
				t.Fatalf("%v: %d is %v times the one before, want %v", got, got[i], ratio, want)
			}
		}
	})
}

func TestSizesReachBothEnds(t *testing.T) {
	got := sizes(16<<10, 9)
	want := []int64{1 << 10, 2 << 10, 4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10, 128 << 10, 256 << 10}
	if !slices.Equal(got, want) {
		t.Errorf("sizes() = %v, want %v", got, want)
	}
}

func TestTiledRepeatsTheBody(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		body := rapid.SliceOfN(rapid.Byte(), 1, 300).Draw(t, "body")
		size := rapid.Int64Range(0, 2000).Draw(t, "size")
		var r io.Reader = &tiled{body: body, size: size}
		if rapid.Bool().Draw(t, "byte by byte") {
			r = iotest.OneByteReader(r)
		}
		got, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		want := bytes.Repeat(body, int(size)/len(body)+1)[:size]
		if !bytes.Equal(got, want) {
			t.Fatalf("read %q, want %q", got, want)
		}
	})
}

func TestPlanIsBounded(t *testing.T) {
	for n := 1; n <= wantedInputs; n++ {
		inputs := make([]input, n)
		for i := range inputs {
			inputs[i].body = make([]byte, 1000*(i+1))
		}
		replays := plan(inputs)
		if len(replays) != maxReplays {
			t.Errorf("%d replays of %d inputs, want %d", len(replays), n, maxReplays)
		}
		if !slices.IsSortedFunc(replays, func(a, b replay) int { return int(a.size - b.size) }) {
			t.Errorf("the replays of %d inputs do not grow", n)
		}
	}
}
