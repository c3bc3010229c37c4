package invocation

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"knative.dev/serving/pkg/apis/autoscaling"
	v1 "knative.dev/serving/pkg/apis/serving/v1"

	"libra.dev/libra/activator-plugin/predict"
	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/settings"
)

func TestExplain(t *testing.T) {
	donor := &predict.Prediction{Demand: res(300, 100), Duration: time.Second, CPUTime: 300 * time.Millisecond}
	borrower := &predict.Prediction{Demand: res(1500, 100), Duration: time.Second, CPUTime: 1500 * time.Millisecond}
	for name, tc := range map[string]struct {
		mode, source  string
		concurrency   int64
		capacity      string
		prediction    *predict.Prediction
		unlimited     bool
		surplus, want api.Resources
		role, reason  string
		bypass        string
		quick         bool
	}{
		"observe": {mode: "observe", source: "owners", concurrency: 1, capacity: "-1", prediction: donor,
			surplus: res(600, 384), role: "observed", reason: "mode"},
		"a donor": {mode: "lend", source: "owners", concurrency: 1, capacity: "-1", prediction: donor,
			surplus: res(600, 384), role: "donor"},
		"a borrower that may only lend": {mode: "lend", source: "owners", concurrency: 1, capacity: "-1", prediction: borrower,
			surplus: res(0, 384), want: res(500, 0), role: "donor", reason: "mode"},
		"a borrower": {mode: "full", source: "owners", concurrency: 1, capacity: "-1", prediction: borrower,
			surplus: res(0, 384), want: res(500, 0), role: "donor_and_borrower"},
		"under node no CPU moves": {mode: "full", source: "node", concurrency: 1, capacity: "-1", prediction: borrower,
			surplus: res(0, 384), want: res(500, 0), role: "donor"},
		"past the activator": {mode: "full", source: "owners", concurrency: 1, capacity: "211", prediction: donor,
			surplus: res(600, 384), role: "neither", bypass: `target-burst-capacity is "211", want "-1"`},
		"over soon": {mode: "full", source: "node", concurrency: 1, capacity: "-1",
			prediction: &predict.Prediction{Demand: res(300, 100), Duration: time.Second, CPUTime: 10 * time.Millisecond},
			surplus:    res(600, 384), role: "neither", quick: true},
		"no prediction": {mode: "full", source: "owners", concurrency: 1, capacity: "-1", role: "observed", reason: "no_prediction"},
		"no bound of concurrency": {mode: "full", source: "owners", capacity: "-1", prediction: donor,
			role: "observed", reason: "concurrency"},
		"no bound of concurrency, over soon": {mode: "full", source: "node", capacity: "-1",
			prediction: &predict.Prediction{Demand: res(300, 100), Duration: time.Second, CPUTime: 10 * time.Millisecond},
			role:       "observed", reason: "concurrency", quick: true},
		"nothing is owed": {mode: "full", source: "owners", concurrency: 1, capacity: "-1", prediction: donor, unlimited: true,
			role: "observed", reason: "no_limits"},
		"nothing is owed and no bound of concurrency, over soon": {mode: "full", source: "node", capacity: "-1", unlimited: true,
			prediction: &predict.Prediction{Demand: res(300, 100), Duration: time.Second, CPUTime: 10 * time.Millisecond},
			role:       "observed", reason: "no_limits", quick: true},
	} {
		t.Run(name, func(t *testing.T) {
			rev := &v1.Revision{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{
				api.ModeAnnotation: tc.mode, autoscaling.TargetBurstCapacityKey: tc.capacity,
			}}}
			rev.Spec.ContainerConcurrency = ptr.To(tc.concurrency)
			owed := res(1000, 512)
			if tc.unlimited {
				owed = api.Resources{}
			}
			rev.Spec.Containers = []corev1.Container{{Resources: corev1.ResourceRequirements{
				Limits: owed.List(), Requests: res(100, 64).List(),
			}}}
			e, err := Explain(rev, settings.Default, api.Source(tc.source), &corev1.ConfigMap{}, tc.prediction, time.Now())
			if err != nil {
				t.Fatal(err)
			}
			if e.Allocation != owed || e.Surplus != tc.surplus || e.Want != tc.want || e.Quick != tc.quick {
				t.Errorf("it is %+v, want the surplus %v, the want %v, quick %t", e, tc.surplus, tc.want, tc.quick)
			}
			if e.Role != tc.role || e.Reason != tc.reason {
				t.Errorf("the role is %q for %q, want %q for %q", e.Role, e.Reason, tc.role, tc.reason)
			}
			if (e.Bypass != nil) != (tc.bypass != "") || e.Bypass != nil && !strings.Contains(e.Bypass.Error(), tc.bypass) {
				t.Errorf("the bypass is %v, want %q", e.Bypass, tc.bypass)
			}
		})
	}
}

func TestExplainTellsOfAnnotations(t *testing.T) {
	rev := &v1.Revision{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{api.MinCPUAnnotation: "much"}}}
	rev.Spec.Containers = []corev1.Container{{}}
	e, err := Explain(rev, settings.Default, api.SourceNode, &corev1.ConfigMap{}, nil, time.Now())
	if err != nil || len(e.Refused) != 1 || !strings.Contains(e.Refused[0].Error(), api.MinCPUAnnotation) {
		t.Errorf("refused are %v (%v), want the annotation %s", e.Refused, err, api.MinCPUAnnotation)
	}
}
