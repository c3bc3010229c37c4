package invocation

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	v1 "knative.dev/serving/pkg/apis/serving/v1"

	"libra.dev/libra/activator-plugin/predict"
	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/report"
)

func learned(types.NamespacedName) predict.Stage { return predict.Learned }

func TestCountsAreDrainedOnce(t *testing.T) {
	var c counts
	observed := &seen{why: reasonMode, perSlot: volumes{surplus: api.Resources{CPUMilli: 500, MemoryBytes: 64 << 20}}}
	borrower := &seen{perSlot: volumes{want: api.Resources{CPUMilli: 1000, MemoryBytes: 128 << 20}}}
	for _, s := range []*seen{observed, observed, borrower} {
		n := c.of(newRevision())
		n.began(s)
		n.ended(s, 2*time.Second)
	}
	want := report.Record{revID: &report.Sums{
		report.Requests: 3, report.Mode: 2, report.FoundLearned: 1,
		report.CouldLendCPU: 2 * 500 * 2e6, report.CouldLendMemory: 2 * 64 * 2e6,
		report.WouldBorrowCPU: 1000 * 2e6, report.WouldBorrowMemory: 128 * 2e6,
	}}
	if diff := cmp.Diff(want, c.drain(learned)); diff != "" {
		t.Errorf("Counted (-want +got):\n%s", diff)
	}
	if again := c.drain(learned); len(again) != 0 {
		t.Errorf("It is counted again: %v", again)
	}
}

func TestACopyIsNotCounted(t *testing.T) {
	var c counts
	c.of(newRevision()).began(&seen{why: reasonCopy})
	if got := c.drain(learned); len(got) != 0 {
		t.Errorf("Counted %v", got)
	}
}

func TestCountsAreBoundedAndForgotten(t *testing.T) {
	var c counts
	for i := range report.MaxFunctions {
		if c.of(&v1.Revision{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: string(rune(i + 1))}}) == nil {
			t.Fatalf("Revision %d is not counted", i)
		}
	}
	beyond := c.of(newRevision())
	beyond.began(&seen{})
	beyond.ended(&seen{perSlot: volumes{want: api.Resources{CPUMilli: 1}}}, time.Second)
	if beyond != nil {
		t.Error("A revision beyond the bound is counted.")
	}
	for range quietMost + 1 {
		c.drain(learned)
	}
	if c.of(newRevision()) == nil {
		t.Error("Revisions without requests are not forgotten.")
	}
}

// Every reason is counted, except those that do not help to tell why a function does not take part.
func TestReasonsAreReportedByTheNamesOfTheMetric(t *testing.T) {
	for why, field := range reportedAs {
		if report.Reasons[field] != string(why) {
			t.Errorf("Reason %s is reported as %q", why, report.Reasons[field])
		}
	}
	if len(reportedAs) != len(report.Reasons) {
		t.Errorf("%d reasons are counted, and %d have names", len(reportedAs), len(report.Reasons))
	}
}

func TestCountingAllocatesNothing(t *testing.T) {
	var c counts
	s := &seen{why: reasonMode, perSlot: volumes{surplus: api.Resources{CPUMilli: 500, MemoryBytes: 64 << 20}}}
	rev, observed, acting := newRevision(), ranFor(api.ModeObserve, 1000), ranFor(api.ModeFull, 1000)
	c.of(rev)
	if allocated := testing.AllocsPerRun(100, func() {
		n := c.of(rev)
		n.began(s)
		n.ended(s, time.Millisecond)
		n.took(observed, time.Millisecond)
		n.took(acting, time.Millisecond)
	}); allocated != 0 {
		t.Errorf("A request allocates %v times", allocated)
	}
}

// BenchmarkCount measures what counting adds to a request, of one function on all cores.
func BenchmarkCount(b *testing.B) {
	var c counts
	s := &seen{why: reasonMode, perSlot: volumes{surplus: api.Resources{CPUMilli: 500, MemoryBytes: 64 << 20}}}
	rev := newRevision()
	for range pastLeast {
		c.of(rev).took(ranFor(api.ModeObserve, 1000), time.Millisecond)
	}
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		acting := ranFor(api.ModeFull, 1000)
		for pb.Next() {
			n := c.of(rev)
			n.began(s)
			n.ended(s, time.Millisecond)
			n.took(acting, time.Millisecond)
		}
	})
}

// Otherwise reports would add up what each request leaves of the same pod.
func TestAPodIsCountedOnceHoweverManyRequestsItTakes(t *testing.T) {
	m := newRankingManager(t, &recorder{}, full, predictions{revID: {Demand: res(100, 40), Duration: time.Minute}}, newPod("a", "10.0.0.1"))
	rev := newRevision()
	rev.Spec.ContainerConcurrency = ptr.To[int64](10)
	req := newRequest(rev)
	m.dispatch(t.Context(), req, revID, "10.0.0.1:80", false)(200)
	drain(t, m.lifecycle)
	if all, each := req.seen.could.surplus, req.seen.perSlot.surplus; all.IsZero() || !each.IsZero() {
		t.Errorf("it leaves %v by itself, and counts with %v beside nine like it, want something and nothing", all, each)
	}
}
