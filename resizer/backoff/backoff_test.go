package backoff

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestDelayDoublesUpToItsMaximum(t *testing.T) {
	d := Delay{Min: 100 * time.Millisecond, Max: 500 * time.Millisecond}
	if d.Failing() {
		t.Error("failing before the first failure")
	}
	var got []time.Duration
	for range 4 {
		got = append(got, d.Next())
	}
	if !d.Failing() {
		t.Error("not failing after failures")
	}
	d.Reset()
	got = append(got, d.Next())
	want := []time.Duration{100, 200, 400, 500, 100}
	for i := range want {
		want[i] *= time.Millisecond
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("delays (-want +got):\n%s", diff)
	}
}
