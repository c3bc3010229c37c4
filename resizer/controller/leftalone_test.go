package controller

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"knative.dev/serving/pkg/apis/serving"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/resizer/backoff"
)

func TestLeftAlone(t *testing.T) {
	tests := map[string]struct {
		owed   api.Resources
		change func(*corev1.Pod)
		says   string // the Event's note; empty when there is none
	}{
		"queue-proxy has limits": {
			owed:   owed,
			change: func(p *corev1.Pod) { p.Spec.Containers[1].Resources.Limits = res(1000, 0).List() },
			says:   "queue-proxy",
		},
		"all containers have limits together": {
			owed:   owed,
			change: func(p *corev1.Pod) { p.Spec.Resources = &corev1.ResourceRequirements{Limits: res(1000, 0).List()} },
			says:   "spec.resources",
		},
		"no limits in the Revision": {
			change: func(p *corev1.Pod) {},
			says:   "neither a CPU nor a memory limit",
		},
		"restarts to be resized": {
			owed: owed,
			change: func(p *corev1.Pod) {
				p.Spec.Containers[0].ResizePolicy = []corev1.ContainerResizePolicy{{ResourceName: corev1.ResourceMemory, RestartPolicy: corev1.RestartContainer}}
			},
			says: "resizePolicy",
		},
		"no such container": {
			owed:   owed,
			change: func(p *corev1.Pod) { p.Spec.Containers[0].Name = "other" },
			says:   "no container",
		},
		"not opted in":  {owed: owed, change: func(p *corev1.Pod) { delete(p.Labels, api.EnabledLabel) }},
		"another node":  {owed: owed, change: func(p *corev1.Pod) { p.Spec.NodeName = "n2" }},
		"no Revision":   {owed: owed, change: func(p *corev1.Pod) { p.Labels[serving.RevisionLabelKey] = "gone" }},
		"has ended":     {owed: owed, change: func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }},
		"is going away": {owed: res(300, 192), change: goingAway},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, testRevision(tc.owed), testPod("p", res(300, 192), byLibra, tc.change))
			h.pool.pods = lends(64, "p")
			h.expect()
			h.expect()
			told := ""
			if len(h.events.Events) > 0 {
				told = <-h.events.Events
			}
			if tc.says == "" && told != "" || tc.says != "" && !(strings.Contains(told, "LibraLeftAlone") && strings.Contains(told, tc.says)) || len(h.events.Events) > 0 {
				t.Errorf("the Event is %q, and %d more; want one that says %q", told, len(h.events.Events), tc.says)
			}
		})
	}
}

func TestOptsOutWhileOnLoan(t *testing.T) {
	pods := schema.GroupResource{Resource: "pods"}
	replaced := apierrors.NewInvalid(schema.GroupKind{Kind: "Pod"}, "p", field.ErrorList{field.Invalid(field.NewPath("metadata", "uid"), "x", "field is immutable")})
	tests := map[string]struct {
		first error    // the answer to the first patch
		later []string // what is sent after it
	}{
		"given back":          {},
		"tried until it is":   {first: apierrors.NewInternalError(errors.New("etcd")), later: []string{"p 500m/256Mi"}},
		"gone":                {first: apierrors.NewNotFound(pods, "p")},
		"conflict":            {first: apierrors.NewConflict(pods, "p", errors.New("uid"))},
		"another of its name": {first: replaced},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, testRevision(owed), testPod("p", owed))
			h.pool.pods = lends(64, "p")
			h.expect("p 500m/320Mi")
			h.change("p", func(p *corev1.Pod) { delete(p.Labels, api.EnabledLabel) })
			h.patchErr = tc.first
			if tc.first == nil {
				h.expect("p 500m/256Mi") // whatever its balance is by now
			} else {
				h.expect()
			}
			h.patchErr = nil
			h.clock.Step(backoff.Min)
			h.expect(tc.later...)
			h.clock.Step(tick)
			h.expect()
			if len(h.nodes) != 0 {
				t.Errorf("the pod is still known")
			}
		})
	}
}

// A pod that is gone before its end was seen no longer matters.
func TestGoneWhileGoingAway(t *testing.T) {
	h := withCeilings(t, testPod("p", res(2000, 256), ready, byLibra, goingAway))
	h.expect()
	if err := h.tracker.Delete(corev1.SchemeGroupVersion.WithResource("pods"), "default", "p"); err != nil {
		t.Fatal(err)
	}
	if _, again := h.reconcileResult(); again != 0 || len(h.nodes) != 0 {
		t.Errorf("again after %v with %d nodes known, want never and none", again, len(h.nodes))
	}
}

// The outcome of the patch can no longer be known, so what is owed is set in any case.
func TestOptsOutWhileAPatchIsUnanswered(t *testing.T) {
	h := newHarness(t, testRevision(owed), testPod("p", owed))
	h.pool.pods = lends(64, "p")
	h.patchErr = errors.New("timed out")
	h.expect()
	h.patchErr = nil
	h.change("p", func(p *corev1.Pod) { delete(p.Labels, api.EnabledLabel) })
	h.clock.Step(backoff.Min)
	h.expect("p 500m/256Mi")
}

func TestLeavesPodsToOtherManagers(t *testing.T) {
	tests := map[string]func(*corev1.Pod){
		"set at admission":           func(*corev1.Pod) {},
		"resized by another manager": resizedBy("vpa-updater"),
	}
	for name, by := range tests {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, testRevision(owed), testPod("other", res(900, 1024), by))
			h.pool.pods = lends(64, "other")
			h.expect()
			if diff := cmp.Diff([]string{"LibraLeftAlone"}, h.reasons()); diff != "" {
				t.Errorf("events (-want +got):\n%s", diff)
			}
			h.pool.pods = nil
			h.expect()
			if got := h.reasons(); got != nil {
				t.Errorf("events %v, want the one", got)
			}
		})
	}
}

// Another manager sets the CPU of a pod of which Libra raised the memory.
func TestPutsBackItsOwnBeforeItLeavesAPod(t *testing.T) {
	h := newHarness(t, testRevision(owed), testPod("p", res(900, 320), byLibra, func(p *corev1.Pod) {
		p.ManagedFields[0].FieldsV1.Raw = bytes.Replace(p.ManagedFields[0].FieldsV1.Raw, []byte(`"f:cpu":{},`), nil, 1)
	}))
	h.keepOwner = true
	h.pool.needs = map[string]int64{"default/p": 320 << 20}
	if got := h.follow(2 * memoryStands); got != nil {
		t.Errorf("patches %v while it uses what it has, want none", got)
	}
	h.pool.needs = map[string]int64{"default/p": 400 << 20}
	h.expect() // it gets nothing more
	h.pool.needs = nil
	if diff := cmp.Diff([]string{"p 900m/256Mi"}, h.follow(memoryStands+time.Second)); diff != "" {
		t.Errorf("patches (-want +got):\n%s", diff)
	}
	h.expect()
	if diff := cmp.Diff([]string{"LibraLeftAlone"}, h.reasons()); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}

func TestRevisionStaysAway(t *testing.T) {
	tests := map[string]struct {
		change []func(*corev1.Pod)
		stuck  bool // whether the Event says that a loan may be left
	}{
		"of a pod that Libra resized": {change: []func(*corev1.Pod){byLibra}, stuck: true},
		"of a pod that it never did":  {},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, testPod("low", res(300, 256), tc.change...))
			h.expect()
			if got := h.reasons(); got != nil {
				t.Errorf("events %v before the cache had time, want none", got)
			}
			h.clock.Step(revisionGrace)
			h.expect()
			h.expect()
			if len(h.events.Events) != 1 {
				t.Fatalf("%d events, want one", len(h.events.Events))
			}
			got := <-h.events.Events
			if !strings.Contains(got, "LibraLeftAlone") || strings.Contains(got, "delete the pod") != tc.stuck {
				t.Errorf("event %q; to be deleted: want %v", got, tc.stuck)
			}
		})
	}
}
