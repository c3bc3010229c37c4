package agent

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

// The ring has all samples of the last two minutes, or the newest of them, in order, whatever the
// times between them, and room for not many more.
func TestRing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var r ring
		var all []sample
		now := epoch
		for _, gap := range rapid.SliceOfN(rapid.SampledFrom([]time.Duration{0, sampleEvery, restEvery, sleepEvery, 20 * time.Second, 2 * keptFor}), 1, 300).Draw(t, "gaps") {
			for range rapid.IntRange(1, 50).Draw(t, "samples") {
				now = now.Add(gap)
				s := sample{at: now}
				s.CPU = time.Duration(len(all))
				r.add(s)
				all = append(all, s)
			}
			kept := all
			for len(kept) > mostKept || now.Sub(kept[0].at) > keptFor {
				kept = kept[1:]
			}
			if r.len() != len(kept) || *r.last() != kept[len(kept)-1] {
				t.Fatalf("%d samples are kept and the last is %+v, want %d and %+v", r.len(), *r.last(), len(kept), kept[len(kept)-1])
			}
			for i, want := range kept {
				if got := *r.at(i); got != want {
					t.Fatalf("sample %d of %d is %+v, want %+v", i, r.len(), got, want)
				}
			}
		}
		for range 10 { // for what is kept it needs no more room
			now = now.Add(keptFor)
			r.add(sample{at: now})
		}
		if len(r.room) > 4*leastRoom {
			t.Errorf("there is room for %d samples, and there are %d", len(r.room), r.len())
		}
	})
}
