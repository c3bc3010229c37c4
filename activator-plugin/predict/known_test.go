package predict

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestKnownNeverWaits(t *testing.T) {
	p := &predictor{takes: time.Millisecond}
	inBubble(t, p, func(t *testing.T, c bubble) {
		known := func(want bool) {
			t.Helper()
			started := time.Now()
			prediction, ok := c.Known(t.Context(), name, 1)
			if waited := time.Since(started); ok != want || waited != 0 {
				t.Errorf("Known() = %v after %v, want %v at once", ok, waited, want)
			}
			if ok && prediction.Demand.IsZero() {
				t.Error("Known() says nothing of the demand")
			}
		}
		known(false)
		synctest.Wait()
		if got := p.asked.Load(); got != 1 {
			t.Errorf("%d fetches were begun, want 1", got)
		}
		// A caller that may wait does so for the rest of the same fetch.
		time.Sleep(600 * time.Microsecond)
		if ok, waited := c.predict(t.Context(), name); !ok || waited != 400*time.Microsecond {
			t.Errorf("Predict() = %v after %v, want one after 400µs", ok, waited)
		}
		known(true)
		time.Sleep(2 * refreshAfter)
		known(true)
		time.Sleep(2 * dropAfter)
		known(false)
		synctest.Wait()
		// The first, one when the table was due, and one when it could not be used any more.
		if got := p.asked.Load(); got != 3 {
			t.Errorf("%d fetches were begun, want 3", got)
		}
		if diff := cmp.Diff(map[string]int64{"asked": 1}, counts(t, c.metrics, "libra.predict.answers")); diff != "" {
			t.Error("Answers (-want, +got):\n" + diff)
		}
	})
}

func TestKnownSaysWhatPredictDoes(t *testing.T) {
	inBubble(t, &predictor{takes: time.Millisecond}, func(t *testing.T, c bubble) {
		for _, size := range []int64{-1, 0, 1, 1 << 10, 1 << 20, 1 << 30} {
			want, wantOK := c.Predict(t.Context(), name, size)
			got, ok := c.Known(t.Context(), name, size)
			if diff := cmp.Diff(want, got); diff != "" || ok != wantOK {
				t.Errorf("Known(%d) = %v, Predict() = %v (-Predict, +Known):\n%s", size, ok, wantOK, diff)
			}
		}
	})
}
