package placement

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestBoundsAreRoundedUp(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var levels [boundLengths]int64
		for i := range levels {
			levels[i] = rapid.Int64Range(0, 1<<rapid.IntRange(1, 40).Draw(t, "bits")).Draw(t, "level")
		}
		var b bounds
		b.set(levels)
		for i, level := range levels {
			if got := b.of(i); got < level || float64(got) > float64(level)*(1+roundedBy)+1 {
				t.Errorf("the bound of %d is %d", level, got)
			}
		}
	})
}

func TestBoundsOfWhatIsNotKnown(t *testing.T) {
	var b bounds
	b.forget()
	for i := range boundLengths {
		if got := b.of(i); got >= 0 {
			t.Errorf("bound %d of what is not known is %d", i, got)
		}
	}
	// The most that there can be is known.
	b.set([boundLengths]int64{1 << 62})
	if got := b.of(0); got < 1<<40 {
		t.Errorf("the bound of more than all is %d", got)
	}
}

func TestBoundBefore(t *testing.T) {
	for i := range boundLengths {
		for _, lasts := range []time.Duration{boundLength[i], boundLength[i] + 1} {
			if got := boundBefore(lasts); got != i {
				t.Errorf("before %v is bound %d, want %d of %v", lasts, got, i, boundLength[i])
			}
		}
	}
	if got := boundBefore(time.Hour); got != boundLengths-1 {
		t.Errorf("before an hour is bound %d", got)
	}
}
