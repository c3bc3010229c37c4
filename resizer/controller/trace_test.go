package controller

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/codes"
)

// resized are the spans of resizes since it was last called, sorted: those of one rank
// may be sent in any order.
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
			attributes["libra.cpu.from"], attributes["libra.cpu.to"], status, s.Parent().SpanID()))
	}
	h.spans.Reset()
	slices.Sort(spans)
	return spans
}

func TestResizesAreInTheTraceOfTheirLoan(t *testing.T) {
	h := newHarness(t, testRevision(owed), testPod("donor", owed), testPod("borrower", owed))
	h.reconcile()
	lend := func(traceparent string) {
		h.pool.pods = loan(res(200, 0))
		for pod, b := range h.pool.pods {
			b.Trace = traceparent
			h.pool.pods[pod] = b
		}
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
	expect("libra.resize api: default/donor user-container lower 500 to 300 accepted, parent " + parent)
	h.kubelet()
	h.patchErr = errors.New("no leader")
	expect("libra.resize api: default/borrower user-container raise 500 to 700 failed with an error, parent " + parent)
	h.patchErr = nil
	h.clock.Step(time.Minute)
	expect("libra.resize api: default/borrower user-container raise 500 to 700 accepted, parent " + parent)
	h.kubelet()
	h.pool.pods = nil
	expect("libra.resize api: default/borrower user-container lower 700 to 500 accepted, parent " + parent)
	h.kubelet()
	expect("libra.resize api: default/donor user-container restore 300 to 500 accepted, parent " + parent)
	h.kubelet()
	expect()

	lend("")
	expect()
	if got := specLimits(h.get("donor")); got != res(300, 256) {
		t.Errorf("the donor's limits are %v: nothing was resized that could have had a span", got)
	}
}
