package schedule

import (
	"hash/crc32"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"libra.dev/libra/loadtest/functions/inputs"
)

var corpus = inputs.Corpus()

func TestGenerateFollowsFromItsSeed(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		seed := rapid.Uint64().Draw(t, "seed")
		length := time.Duration(rapid.IntRange(0, 20_000).Draw(t, "length_ms")) * time.Millisecond
		requests := Generate(seed, length, corpus)
		if diff := cmp.Diff(requests, Generate(seed, length, corpus)); diff != "" {
			t.Fatalf("the same seed made other requests (-first +again):\n%s", diff)
		}
		last := int64(0)
		for n, r := range requests {
			if r.N != n || r.AtMS < last || r.AtMS >= max(length.Milliseconds(), 1) {
				t.Fatalf("request %d is number %d, at %d ms after one at %d ms, in %v", n, r.N, r.AtMS, last, length)
			}
			last = r.AtMS
			if r.Body != "" && len(r.Body) != r.Size {
				t.Fatalf("request %d says %d bytes and has %d", n, r.Size, len(r.Body))
			}
			if r.Body == "" && int64(crc32.ChecksumIEEE(corpus[r.Offset:r.Offset+r.Size])) != r.Expect["crc32"] {
				t.Fatalf("request %d expects a checksum that its body does not have", n)
			}
		}
	})
}

func TestGenerateCallsEveryFunctionWithWidelyVaryingInput(t *testing.T) {
	smallest, largest := map[string]int{}, map[string]int{}
	for _, r := range Generate(1, time.Minute, corpus) {
		if s, ok := smallest[r.Function]; !ok || r.Size < s {
			smallest[r.Function] = r.Size
		}
		largest[r.Function] = max(largest[r.Function], r.Size)
	}
	for _, f := range All {
		switch {
		case largest[f] == 0:
			t.Errorf("%s is never called", f)
		case f == "pagerank" && largest[f] > smallest[f]*5/4:
			t.Errorf("%s has bodies of %d to %d bytes: its cost should not show in them", f, smallest[f], largest[f])
		case f != "pagerank" && largest[f] < 5*smallest[f]:
			t.Errorf("%s has bodies of %d to %d bytes only", f, smallest[f], largest[f])
		}
	}
}

func TestSeedsDiffer(t *testing.T) {
	if cmp.Equal(Generate(1, time.Minute, corpus), Generate(2, time.Minute, corpus)) {
		t.Error("two seeds made the same requests")
	}
}
