package controller

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/codes"

	"libra.dev/libra/pkg/pool"
)

// resized returns the spans of resizes since its last call, sorted: those of one rank may be sent
// in any order.
func (h *harness) resized() []string {
	var spans []string
	for _, s := range h.spans.Ended() {
		attributes := map[string]string{}
		for _, a := range s.Attributes() {
			attributes[string(a.Key)] = a.Value.String()
		}
		status := attributes["libra.result"]
		if s.Status().Code == codes.Error {
			status += " with an error"
		}
		spans = append(spans, fmt.Sprintf("%s %s: %s %s %s %s to %s %s, parent %v", s.Name(), attributes["libra.way"],
			attributes["libra.pod"], attributes["libra.container"], attributes["libra.direction"],
			attributes["libra.memory.from"], attributes["libra.memory.to"], status, s.Parent().SpanID()))
	}
	h.spans.Reset()
	slices.Sort(spans)
	return spans
}

func TestResizesAreInTheTraceOfTheirLoan(t *testing.T) {
	h := newHarness(t, testRevision(owed), testPod("p", owed))
	h.reconcile()
	lend := func(traceparent string) {
		h.pool.pods = map[string]pool.Balance{"default/p": {Borrowed: res(200, 64), Trace: traceparent}}
	}
	expect := func(want ...string) {
		t.Helper()
		h.reconcile()
		if diff := cmp.Diff(want, h.resized()); diff != "" {
			t.Errorf("spans (-want +got):\n%s", diff)
		}
	}
	const parent = "b7ad6b7169203331"

	lend("00-0af7651916cd43dd8448eb211c80319c-" + parent + "-01")
	h.patchErr = errors.New("no leader")
	expect("libra.resize api: default/p user-container raise 268435456 to 335544320 failed with an error, parent " + parent)
	h.patchErr = nil
	h.clock.Step(time.Minute)
	expect("libra.resize api: default/p user-container raise 268435456 to 335544320 accepted, parent " + parent)
	h.kubelet()
	h.pool.pods = nil
	expect()
	h.clock.Step(memoryStands)
	expect("libra.resize api: default/p user-container lower 335544320 to 268435456 accepted, parent " + parent)
	h.kubelet()
	expect()

	lend("")
	expect()
	if got := specLimits(h.get("p")); got != res(500, 320) {
		t.Errorf("the limits are %v: nothing was resized that could have had a span", got)
	}
}
