package invocation

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/metric/noop"
	"go.uber.org/zap/zaptest"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/record"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	"knative.dev/serving/pkg/apis/autoscaling"

	"libra.dev/libra/activator-plugin/predict"
	"libra.dev/libra/pkg/api"
)

func configAutoscaler(data map[string]string, written ...time.Time) *corev1.ConfigMap {
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "config-autoscaler"}, Data: data}
	for _, at := range written {
		cm.ManagedFields = append(cm.ManagedFields, metav1.ManagedFieldsEntry{Time: &metav1.Time{Time: at}})
	}
	return cm
}

func TestBypass(t *testing.T) {
	const tbc = autoscaling.TargetBurstCapacityKey
	always := map[string]string{"target-burst-capacity": "-1"}
	for _, tc := range []struct {
		name        string
		config      map[string]string
		annotations map[string]string
		bypass      bool
		why         []string // parts of the error; none for no error
	}{
		{"Knative's defaults", nil, nil, true, []string{"ConfigMap config-autoscaler", `"211"`, tbc, `"-1"`}},
		{"always by the annotation", nil, map[string]string{tbc: "-1"}, false, nil},
		{"always by the annotation as a fraction", nil, map[string]string{tbc: "-1.0"}, false, nil},
		{"always by the old annotation", nil, map[string]string{"autoscaling.knative.dev/targetBurstCapacity": "-1"}, false, nil},
		{"only at scale from zero", nil, map[string]string{tbc: "0"}, true, []string{"annotation " + tbc, `"0"`, `"-1"`}},
		{"only at bursts", always, map[string]string{tbc: "200"}, true, []string{"annotation " + tbc, `"200"`, `"-1"`}},
		{"not a number", always, map[string]string{tbc: "always"}, true, []string{"annotation " + tbc, `"always"`}},
		{"always by the ConfigMap", always, nil, false, nil},
		{"never by the ConfigMap", map[string]string{"target-burst-capacity": "0"}, nil, true, []string{`"0"`}},
		{"never by the ConfigMap, always by the annotation", map[string]string{"target-burst-capacity": "0"}, map[string]string{tbc: "-1"}, false, nil},
		{"another autoscaler", always, map[string]string{autoscaling.ClassAnnotationKey: autoscaling.HPA, tbc: "-1"}, true,
			[]string{autoscaling.HPA, autoscaling.KPA}},
		{"another autoscaler by the ConfigMap", map[string]string{"pod-autoscaler-class": autoscaling.HPA}, map[string]string{tbc: "-1"}, true,
			[]string{"pod-autoscaler-class of ConfigMap config-autoscaler", autoscaling.KPA}},
		{"Knative's autoscaler by the annotation", map[string]string{"pod-autoscaler-class": autoscaling.HPA},
			map[string]string{autoscaling.ClassAnnotationKey: autoscaling.KPA, tbc: "-1"}, false, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			now := time.Now()
			a, err := autoscalerOf(configAutoscaler(tc.config, now.Add(-time.Hour)), now)
			if err != nil {
				t.Fatal("autoscalerOf() =", err)
			}
			rev := newRevision()
			rev.Annotations = tc.annotations
			bypass, why := a.bypass(rev, now)
			if bypass != tc.bypass || (why != nil) != (tc.why != nil) {
				t.Fatalf("bypass() = %t, %v, want %t with an error that has %q", bypass, why, tc.bypass, tc.why)
			}
			for _, want := range tc.why {
				if !strings.Contains(why.Error(), want) {
					t.Errorf("bypass() = %v, want an error with %q in it", why, want)
				}
			}
		})
	}
}

// A request that bypassed the activator before it was put in the path may run for as long as a request may.
func TestBypassEndsWithTheLastRequest(t *testing.T) {
	start := time.Unix(1_000_000, 0)
	clk := clocktesting.NewFakeClock(start)
	m, err := NewManager(Options{Clock: clk, Logger: zaptest.NewLogger(t).Sugar(), MeterProvider: noop.NewMeterProvider()})
	if err != nil {
		t.Fatal("NewManager() =", err)
	}
	rev := newRevision()
	delete(rev.Annotations, autoscaling.TargetBurstCapacityKey)
	rev.Spec.TimeoutSeconds = ptr.To[int64](10)
	for _, step := range []struct {
		at     time.Duration
		config *corev1.ConfigMap // none: as before
		bypass bool
	}{
		{at: 0, bypass: true},
		{at: time.Second, config: configAutoscaler(map[string]string{"target-burst-capacity": "-1"}), bypass: true},
		{at: pathSettles + 10*time.Second, bypass: true},
		{at: pathSettles + 11*time.Second},
		// Changes that do not concern the path, and one that the autoscaler does not take.
		{at: pathSettles + 12*time.Second, config: configAutoscaler(map[string]string{"target-burst-capacity": "-1", "stable-window": "30s"})},
		{at: pathSettles + 13*time.Second, config: configAutoscaler(map[string]string{"target-burst-capacity": "-2"})},
		{at: pathSettles + 14*time.Second, config: configAutoscaler(nil), bypass: true},
		// Written long ago, as an activator that starts finds it.
		{at: pathSettles + 15*time.Second, config: configAutoscaler(map[string]string{"target-burst-capacity": "-1"},
			start.Add(-time.Hour), start.Add(-2*time.Hour))},
	} {
		clk.SetTime(start.Add(step.at))
		if step.config != nil {
			m.FollowAutoscaler(step.config)
		}
		if bypass, why := m.autoscaler.Load().bypass(rev, clk.Now()); bypass != step.bypass {
			t.Errorf("bypass() at %s = %t, %v, want %t", step.at, bypass, why, step.bypass)
		}
	}
}

func TestWhatIsNotAlwaysInThePathLendsAndTeachesNothing(t *testing.T) {
	lends := predict.Prediction{Demand: res(300, 600), Duration: time.Minute, CPUTime: time.Second}
	for _, tc := range []struct {
		name          string
		capacity      string // "" for no annotation
		source        api.Source
		mode          api.Mode
		known         predictions
		concurrency   int64
		surplus, want api.Resources
		count         string
		late          bool
	}{
		{"always", "-1", api.SourceOwners, api.ModeFull, predictions{revID: lends}, 1, res(600, 0), res(0, 88), "donor_and_borrower", false},
		{"at bursts", "", api.SourceOwners, api.ModeFull, predictions{revID: lends}, 1, res(0, 0), res(0, 88), "not_in_path borrower", true},
		{"never", "0", api.SourceOwners, api.ModeFull, predictions{revID: lends}, 1, res(0, 0), res(0, 88), "not_in_path borrower", true},
		{"several at a time", "", api.SourceOwners, api.ModeFull, predictions{revID: lends}, 4, res(0, 0), res(0, 88), "not_in_path borrower", true},
		{"ranked", "", api.SourceNode, api.ModeFull, predictions{revID: {Demand: res(300, 100), Duration: time.Minute, CPUTime: time.Second}}, 1,
			res(0, 0), res(0, 0), "true not_in_path neither", true},
		{"not known", "", api.SourceOwners, api.ModeFull, nil, 1, res(0, 0), res(0, 0), "not_in_path observed", true},
		{"observed", "", api.SourceOwners, api.ModeObserve, predictions{revID: lends}, 1, res(0, 0), res(0, 0), "not_in_path observed", true},
		{"any number at a time, ranked", "", api.SourceNode, api.ModeFull, predictions{revID: lends}, 0, res(0, 0), res(0, 0), "true not_in_path observed", true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			rec := &recorder{}
			rev := newRevision()
			rev.Spec.ContainerConcurrency = &tc.concurrency
			if delete(rev.Annotations, autoscaling.TargetBurstCapacityKey); tc.capacity != "" {
				rev.Annotations[autoscaling.TargetBurstCapacityKey] = tc.capacity
			}
			events := record.NewFakeRecorder(10)
			c := newChain(t, chainOptions{pool: rec, rev: rev, mode: tc.mode, source: tc.source, predictions: tc.known, events: events})
			for range 2 {
				c.send(t, "hello")
			}
			drain(t, c.manager.lifecycle)
			if len(rec.begins) != 2 || rec.begins[0].Surplus != tc.surplus || rec.begins[0].Want != tc.want {
				t.Errorf("Begins %+v, want two with the surplus %v and the want %v", rec.begins, tc.surplus, tc.want)
			}
			// The pod may go on lending if the invocations themselves may, unless requests bypass the
			// activator.
			for _, begin := range rec.begins {
				if begin.IdleCPUMilli > 0 && (tc.late || tc.source == api.SourceNode || tc.mode == api.ModeObserve) {
					t.Errorf("Begin %+v leaves its pod to be lent of", begin)
				}
			}
			if len(rec.ends) != 2 || rec.ends[0].Late != tc.late {
				t.Errorf("Ends %+v, want two, late: %t", rec.ends, tc.late)
			}
			if diff := cmp.Diff(map[string]int64{tc.count: 2}, c.counts(t, "libra.invocations")); diff != "" {
				t.Error("libra.invocations (-want, +got):\n" + diff)
			}
			close(events.Events)
			var told []string
			for e := range events.Events {
				told = append(told, e)
			}
			if tc.late != (len(told) == 1) || tc.late && !strings.HasPrefix(told[0], "Warning ActivatorNotInPath ") {
				t.Errorf("Events %q, want one when it is not always in the path", told)
			}
		})
	}
}

// A request that began while the activator was always in the path may have another beside it when it ends.
func TestPathThatChangesWithinARequest(t *testing.T) {
	rec := &recorder{}
	m := newRankingManager(t, rec, full, predictions{revID: {Demand: res(300, 100), Duration: time.Minute}}, newPod("a", "10.0.0.1"))
	rev := newRevision()
	delete(rev.Annotations, autoscaling.TargetBurstCapacityKey)
	m.FollowAutoscaler(configAutoscaler(map[string]string{"target-burst-capacity": "-1"}, time.Now().Add(-time.Hour)))
	end := m.dispatch(t.Context(), newRequest(rev), revID, "10.0.0.1:80", false)
	m.FollowAutoscaler(configAutoscaler(nil))
	end(200)
	drain(t, m.lifecycle)
	if rec.begins[0].Surplus.IsZero() || !rec.ends[0].Late {
		t.Errorf("Begin %+v and End %+v, want one that lends and ends late", rec.begins[0], rec.ends[0])
	}
}
