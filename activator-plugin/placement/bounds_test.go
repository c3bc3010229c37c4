package placement

import (
	"testing"
	"time"
)

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
