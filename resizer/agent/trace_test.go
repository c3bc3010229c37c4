package agent

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/pool"
)

// written returns the spans of writes since it was last called: what was done, of
// which parent, and with what result.
func (g *rig) written() []string {
	var spans []string
	for _, s := range g.spans.Ended() {
		attributes := map[string]string{}
		for _, a := range s.Attributes() {
			attributes[string(a.Key)] = a.Value.String()
		}
		name := "libra." + attributes["libra.resource"]
		spans = append(spans, fmt.Sprintf("%s %s: %s %s %s %s to %s %s, parent %v", s.Name(), attributes["libra.way"],
			attributes["libra.pod"], attributes["libra.container"], attributes["libra.direction"],
			attributes[name+".from"], attributes[name+".to"],
			strings.TrimSpace(attributes["libra.result"]+" "+attributes["libra.cause"]), s.Parent().SpanID()))
	}
	g.spans.Reset()
	return spans
}

func (g *rig) beginTraced(id, pod string, surplus, want api.Resources, trace string) {
	g.Helper()
	_, err := g.pool.Begin(g.ctx, node, pool.Invocation{
		ID: id, Function: "default/f-00001", Pod: pod, Domain: "default", Owner: "activator",
		Duration: time.Minute, Allocation: userLimits, Surplus: surplus, Want: want, Trace: trace,
	})
	if err != nil {
		g.Fatalf("%v", err)
	}
}

func TestWritesAreInTheTraceOfTheirLoan(t *testing.T) {
	g := newTestRig(t)
	g.run("default/d", "donor", userLimits)
	g.run("default/b", "borrower", userLimits)
	g.openPool()
	volume := api.Resources{CPUMilli: 200}

	begin := func(donor, borrower, traceparent string) {
		g.begin(donor, "default/d", volume, api.Resources{})
		g.beginTraced(borrower, "default/b", api.Resources{}, volume, traceparent)
		g.exchange()
		g.want("donor", 300)
		g.want("borrower", 700)
	}
	expect := func(want ...string) {
		t.Helper()
		if diff := cmp.Diff(want, g.written()); diff != "" {
			t.Errorf("spans (-want +got):\n%s", diff)
		}
	}

	begin("1", "2", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
	expect(
		"libra.resize cgroup: default/d donor lower 500 to 300 written, parent b7ad6b7169203331",
		"libra.resize cgroup: default/b borrower raise 500 to 700 written, parent b7ad6b7169203331",
	)
	g.end("2")
	g.exchange()
	expect(
		"libra.resize cgroup: default/d donor restore 300 to 500 written ended, parent b7ad6b7169203331",
		"libra.resize cgroup: default/b borrower lower 700 to 500 written, parent b7ad6b7169203331",
	)

	// A limit that is set again when all is whole, and a change for a loan without a
	// trace, are in no trace.
	g.kernel["donor"].Limit.CPUMilli = 400
	g.pass(10 * time.Millisecond)
	g.want("donor", 500)
	expect()
	g.end("1")
	g.exchange()
	g.pass(pool.LeaseTTL)
	g.openPool()
	begin("3", "4", "")
	expect()
}

// A restore that nobody asks for any more is in the trace of the loan that it undoes.
func TestRestoreAfterRedisIsLostIsInTheTrace(t *testing.T) {
	g := newTestRig(t)
	g.run("default/d", "donor", userLimits)
	g.run("default/b", "borrower", userLimits)
	g.openPool()
	volume := api.Resources{CPUMilli: 200}
	g.beginTraced("1", "default/d", volume, api.Resources{}, "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
	g.begin("2", "default/b", api.Resources{}, volume)
	g.exchange()
	g.written()
	g.pass(pool.LeaseTTL + 10*time.Millisecond)
	want := []string{
		"libra.resize cgroup: default/d donor restore 300 to 500 written redis-lost, parent b7ad6b7169203331",
		"libra.resize cgroup: default/b borrower lower 700 to 500 written, parent b7ad6b7169203331",
	}
	if diff := cmp.Diff(want, g.written()); diff != "" {
		t.Errorf("spans (-want +got):\n%s", diff)
	}
}
