package invocation

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/tools/record"

	"libra.dev/libra/activator-plugin/predict"
	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/pool"
)

func TestModes(t *testing.T) {
	prediction := predict.Prediction{Demand: res(300, 600), Duration: 2 * time.Second}
	for _, tc := range []struct {
		name           string
		otherwise      api.Mode
		annotation     string
		count          string
		surplus, want  api.Resources // of Begin
		idle           int64         // milli CPU, of Begin
		lent, borrowed string        // kinds of volumes counted
	}{
		{"full by default", api.ModeFull, "", "donor_and_borrower", res(600, 0), res(0, 88), 900, "false", "false"},
		{"lend by default", api.ModeLend, "", "mode donor", res(600, 0), res(0, 0), 900, "false", "true"},
		{"observe by default", api.ModeObserve, "", "mode observed", res(0, 0), res(0, 0), 0, "true", "true"},
		{"the annotation says more", api.ModeObserve, "full", "donor_and_borrower", res(600, 0), res(0, 88), 900, "false", "false"},
		{"the annotation says less", api.ModeFull, "lend", "mode donor", res(600, 0), res(0, 0), 900, "false", "true"},
		{"refused", api.ModeFull, "on", "mode observed", res(0, 0), res(0, 0), 0, "true", "true"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			rec := &recorder{}
			rev := newRevision()
			if tc.annotation != "" {
				rev.Annotations[api.ModeAnnotation] = tc.annotation
			}
			c := newChain(t, chainOptions{pool: rec, rev: rev, mode: tc.otherwise, predictions: predictions{revID: prediction}})
			c.send(t, "hello")
			drain(t, c.manager.lifecycle)

			begin := rec.begins[0]
			if begin.Surplus != tc.surplus || begin.Want != tc.want || begin.IdleCPUMilli != tc.idle {
				t.Errorf("Begin has surplus %v, want %v and leaves %dm idle, want %v, %v and %dm",
					begin.Surplus, begin.Want, begin.IdleCPUMilli, tc.surplus, tc.want, tc.idle)
			}
			// The record of an invocation is the same whatever its mode.
			if begin.Predicted != prediction.Demand || begin.Duration != prediction.Duration || begin.Allocation != res(1000, 512) {
				t.Errorf("Begin is %+v, want the prediction and the allocation in it", begin)
			}
			if diff := cmp.Diff(map[string]int64{tc.count: 1}, c.counts(t, "libra.invocations")); diff != "" {
				t.Error("libra.invocations (-want, +got):\n" + diff)
			}

			ran := rec.ends[0].Duration.Seconds()
			wantCPU := map[string]float64{"surplus " + tc.lent: 0.6 * ran, "want " + tc.borrowed: 0}
			wantMemory := map[string]float64{"surplus " + tc.lent: 0, "want " + tc.borrowed: 88 * mi * ran}
			if diff := cmp.Diff(wantCPU, c.volumes(t, "libra.invocations.cpu"), nearly); diff != "" {
				t.Error("libra.invocations.cpu (-want, +got):\n" + diff)
			}
			if diff := cmp.Diff(wantMemory, c.volumes(t, "libra.invocations.memory"), nearly); diff != "" {
				t.Error("libra.invocations.memory (-want, +got):\n" + diff)
			}
		})
	}
}

var nearly = cmp.Comparer(func(a, b float64) bool { return a-b < 1e-6*(1+a) && b-a < 1e-6*(1+a) })

// The amount that a donor keeps by its annotations is no surplus in any mode.
func TestBoundsOfADonor(t *testing.T) {
	rec := &recorder{}
	rev := newRevision()
	rev.Annotations[api.MinCPUAnnotation], rev.Annotations[api.MinMemoryAnnotation] = "700m", "much"
	events := record.NewFakeRecorder(10)
	c := newChain(t, chainOptions{pool: rec, rev: rev, events: events,
		predictions: predictions{revID: {Demand: res(300, 100), Duration: time.Second}}})
	c.send(t, "hello")
	drain(t, c.manager.lifecycle)
	if got := rec.begins[0].Surplus; got != res(300, 0) {
		t.Errorf("surplus = %v, want what is above 700m, and no memory", got)
	}
}

func TestIdlePodsKeepWhatTheirRevisionSays(t *testing.T) {
	for value, refused := range map[string]bool{"keep": false, "lend": true} {
		rec := &recorder{}
		rev := newRevision()
		rev.Annotations[api.IdleAnnotation] = value
		c := newChain(t, chainOptions{pool: rec, rev: rev, predictions: predictions{revID: {Demand: res(300, 100), Duration: time.Minute}}})
		c.send(t, "hello")
		drain(t, c.manager.lifecycle)
		if begin := rec.begins[0]; begin.IdleCPUMilli != 0 || begin.Surplus != res(600, 384) {
			t.Errorf("%s: Begin leaves %dm idle and has the surplus %v, want none and %v", value, begin.IdleCPUMilli, begin.Surplus, res(600, 384))
		}
		if got := c.counts(t, "libra.annotations.refused")[api.IdleAnnotation]; (got == 1) != refused {
			t.Errorf("%s: refused %d times, want it refused: %t", value, got, refused)
		}
	}
}

// While a pod may be lent from, its next invocation takes that back, whatever its own role.
func TestIdleDonorIsToldOfWhatDoesNotLend(t *testing.T) {
	rec := &recorder{}
	rev := newRevision()
	c := newChain(t, chainOptions{pool: rec, rev: rev, predictions: predictions{revID: {Demand: res(1000, 512), Duration: time.Minute}}})
	send := func(mode api.Mode, requests int) (told []pool.Invocation) {
		before := len(rec.begins)
		rev.Annotations[api.ModeAnnotation] = string(mode)
		for range requests {
			c.send(t, "hello")
		}
		drain(t, c.manager.lifecycle)
		return rec.begins[before:]
	}
	send(api.ModeObserve, samplesFirst+10) // no more are reported for a while
	if told := send(api.ModeFull, 2); len(told) != 2 || told[1].IdleCPUMilli != 900 {
		t.Errorf("told of %+v, want two after which 900m are lent", told)
	}
	if told := send(api.ModeObserve, 10); len(told) != 1 || told[0].IdleCPUMilli != 0 {
		t.Errorf("told of %+v, want the first of 10", told)
	}
}

func TestRefusedAnnotationsAreTold(t *testing.T) {
	rev := newRevision()
	rev.Annotations[api.ModeAnnotation] = "on"
	rev.Annotations[api.MinCPUAnnotation] = strings.Repeat("\u00e9", 2000)
	rev.Annotations[api.InputSizeAnnotation] = "body"
	events := record.NewFakeRecorder(10)
	c := newChain(t, chainOptions{pool: &recorder{}, rev: rev, events: events})
	for range 3 {
		c.send(t, "hello")
	}
	drain(t, c.manager.lifecycle)

	if diff := cmp.Diff(map[string]int64{api.ModeAnnotation: 3, api.MinCPUAnnotation: 3}, c.counts(t, "libra.annotations.refused")); diff != "" {
		t.Error("libra.annotations.refused (-want, +got):\n" + diff)
	}
	close(events.Events)
	var told []string
	for e := range events.Events {
		if len(e) > api.MaxNote+100 {
			t.Errorf("an Event has %d bytes", len(e))
		}
		told = append(told, e)
	}
	slices.Sort(told)
	want := []string{
		"Warning AnnotationRefused Refused a bound; the function lends nothing of that resource: annotation libra.dev/min-cpu is ",
		`Warning AnnotationRefused Refused the mode; the function is only observed: annotation libra.dev/mode is "on", want observe, lend or full`,
		"Warning InputSizeRefused Refused an input size; the request runs as one of unknown size: annotation libra.dev/input-size",
	}
	if len(told) != len(want) {
		t.Fatalf("Events: %q, want each of %q once", told, want)
	}
	for i := range want {
		if !strings.HasPrefix(told[i], want[i]) {
			t.Errorf("Event %q, want %q", told[i], want[i])
		}
	}
}
