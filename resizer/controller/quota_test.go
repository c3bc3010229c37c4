package controller

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"pgregory.net/rapid"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"libra.dev/libra/pkg/api"
)

// cpuQuota is a quota of the pods' namespace with much room for CPU limits.
func cpuQuota(name string, change ...func(*corev1.ResourceQuota)) *corev1.ResourceQuota {
	q := &corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: "uid", Labels: map[string]string{"a": "b"}},
		Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{
			corev1.ResourceLimitsCPU: resource.MustParse("100"), corev1.ResourcePods: resource.MustParse("100")}},
		Status: corev1.ResourceQuotaStatus{Used: corev1.ResourceList{corev1.ResourceLimitsCPU: resource.MustParse("1")}},
	}
	for _, f := range change {
		f(q)
	}
	return q
}

func scoped(scopes ...corev1.ResourceQuotaScope) func(*corev1.ResourceQuota) {
	return func(q *corev1.ResourceQuota) { q.Spec.Scopes = scopes }
}

func selecting(requirements ...corev1.ScopedResourceSelectorRequirement) func(*corev1.ResourceQuota) {
	return func(q *corev1.ResourceQuota) {
		q.Spec.ScopeSelector = &corev1.ScopeSelector{MatchExpressions: requirements}
	}
}

func ofClass(operator corev1.ScopeSelectorOperator, values ...string) corev1.ScopedResourceSelectorRequirement {
	return corev1.ScopedResourceSelectorRequirement{ScopeName: corev1.ResourceQuotaScopePriorityClass, Operator: operator, Values: values}
}

func (h *harness) create(objects ...client.Object) {
	h.t.Helper()
	for _, o := range objects {
		if err := h.kube.Create(h.t.Context(), o); err != nil {
			h.t.Fatal(err)
		}
	}
}

func (h *harness) delete(o client.Object) {
	h.t.Helper()
	if err := h.kube.Delete(h.t.Context(), o); err != nil {
		h.t.Fatal(err)
	}
}

// A quota that counts CPU limits keeps ceilings out of specs, however much room it has. When it
// appears, a ceiling in a spec goes back; when it is gone, the ceiling is there again.
func TestQuotaKeepsCeilingsOutOfSpecs(t *testing.T) {
	for _, agent := range []bool{false, true} {
		t.Run(fmt.Sprint("agent ", agent), func(t *testing.T) {
			h := withCeilings(t, testPod("p", owed, ready), testPod("q", owed))
			h.agent(agent)
			h.expect("p 2000m/256Mi")
			h.kubelet()
			h.create(cpuQuota("b"), cpuQuota("a"))
			h.expect("p 500m/256Mi")
			h.kubelet()
			h.change("q", ready)
			if got := h.follow(time.Minute); got != nil {
				t.Errorf("patches %v while there is a quota, want none", got)
			}
			if diff := cmp.Diff([]string{"LibraCeilingRefused", "LibraCeilingRefused"}, h.reasons()); diff != "" {
				t.Errorf("events (-want +got):\n%s", diff)
			}
			if got := h.total("libra.resizer.ceilings.withheld"); got != 2 {
				t.Errorf("%v ceilings withheld, want 2", got)
			}
			if got := h.total("libra.resizer.resizes", resultKey.String(resultRefused)); got != 0 {
				t.Errorf("%v patches refused, want none to be tried", got)
			}
			h.delete(cpuQuota("a"))
			h.expect()
			h.delete(cpuQuota("b"))
			h.expect("p 2000m/256Mi", "q 2000m/256Mi")
			if got := h.total("libra.resizer.ceilings.withheld"); got != 0 {
				t.Errorf("%v ceilings withheld, want none", got)
			}
		})
	}
}

func TestQuotaEventNamesIt(t *testing.T) {
	h := withCeilings(t, cpuQuota("team"), testPod("p", owed, ready))
	h.expect()
	got := <-h.events.Events
	for _, want := range []string{"LibraCeilingRefused", `"user-container"`, "500m", "2000m", "node agent", `ResourceQuota "team"`, "limits.cpu"} {
		if !strings.Contains(got, want) {
			t.Errorf("event %q does not say %q", got, want)
		}
	}
	// It says so once, whatever the pod's readiness does.
	h.change("p", func(p *corev1.Pod) { p.Status.Conditions = nil })
	h.expect()
	h.change("p", ready)
	h.expect()
	if got := h.reasons(); got != nil {
		t.Errorf("events %v, want no more", got)
	}
}

// A quota that counts other things, other pods, or other namespaces is in no ceiling's way.
func TestQuotasThatDoNotCount(t *testing.T) {
	elsewhere := func(q *corev1.ResourceQuota) { q.Namespace = "elsewhere" }
	requests := func(q *corev1.ResourceQuota) {
		q.Spec.Hard = corev1.ResourceList{corev1.ResourceRequestsCPU: resource.MustParse("1"), corev1.ResourceLimitsMemory: resource.MustParse("1")}
	}
	h := withCeilings(t, cpuQuota("a", elsewhere), cpuQuota("b", requests), cpuQuota("c", scoped(corev1.ResourceQuotaScopeTerminating)),
		testPod("p", owed, ready))
	h.expect("p 2000m/256Mi")
	if got := h.reasons(); got != nil {
		t.Errorf("events %v, want none", got)
	}
}

func TestCountsCPULimit(t *testing.T) {
	deadline := func(p *corev1.Pod) { p.Spec.ActiveDeadlineSeconds = new(int64) }
	high := func(p *corev1.Pod) { p.Spec.PriorityClassName = "high" }
	plain := func(*corev1.Pod) {}
	for name, tc := range map[string]struct {
		quota *corev1.ResourceQuota
		pod   func(*corev1.Pod)
		want  bool
	}{
		"no scope":                       {cpuQuota("q"), plain, true},
		"not best effort":                {cpuQuota("q", scoped(corev1.ResourceQuotaScopeNotBestEffort)), plain, true},
		"best effort":                    {cpuQuota("q", scoped(corev1.ResourceQuotaScopeBestEffort)), plain, false},
		"terminating":                    {cpuQuota("q", scoped(corev1.ResourceQuotaScopeTerminating)), plain, false},
		"terminating, with a deadline":   {cpuQuota("q", scoped(corev1.ResourceQuotaScopeTerminating)), deadline, true},
		"lasting":                        {cpuQuota("q", scoped(corev1.ResourceQuotaScopeNotTerminating)), plain, true},
		"lasting, with a deadline":       {cpuQuota("q", scoped(corev1.ResourceQuotaScopeNotTerminating)), deadline, false},
		"one of two scopes":              {cpuQuota("q", scoped(corev1.ResourceQuotaScopeNotBestEffort, corev1.ResourceQuotaScopeTerminating)), plain, false},
		"a scope of a newer Kubernetes":  {cpuQuota("q", scoped("Weekend")), plain, true},
		"a class as a scope, none":       {cpuQuota("q", scoped(corev1.ResourceQuotaScopePriorityClass)), plain, false},
		"a class as a scope":             {cpuQuota("q", scoped(corev1.ResourceQuotaScopePriorityClass)), high, true},
		"class in":                       {cpuQuota("q", selecting(ofClass(corev1.ScopeSelectorOpIn, "low", "high"))), high, true},
		"class in, another":              {cpuQuota("q", selecting(ofClass(corev1.ScopeSelectorOpIn, "low"))), high, false},
		"class in, none":                 {cpuQuota("q", selecting(ofClass(corev1.ScopeSelectorOpIn, ""))), plain, false},
		"class not in":                   {cpuQuota("q", selecting(ofClass(corev1.ScopeSelectorOpNotIn, "high"))), high, false},
		"class not in, none":             {cpuQuota("q", selecting(ofClass(corev1.ScopeSelectorOpNotIn, "high"))), plain, true},
		"no class":                       {cpuQuota("q", selecting(ofClass(corev1.ScopeSelectorOpDoesNotExist))), plain, true},
		"no class, and one":              {cpuQuota("q", selecting(ofClass(corev1.ScopeSelectorOpDoesNotExist))), high, false},
		"an operator that is not known":  {cpuQuota("q", selecting(ofClass("Near", "high"))), plain, true},
		"a scope and a selector, of two": {cpuQuota("q", scoped(corev1.ResourceQuotaScopeNotBestEffort), selecting(ofClass(corev1.ScopeSelectorOpExists))), plain, false},
		"an empty selector":              {cpuQuota("q", selecting()), plain, true},
	} {
		t.Run(name, func(t *testing.T) {
			if got := countsCPULimit(tc.quota, testPod("p", owed, tc.pod)); got != tc.want {
				t.Errorf("it counts: %v, want %v", got, tc.want)
			}
			if got := countsCPULimit(keepCPULimitQuota(tc.quota), testPod("p", owed, tc.pod)); got != tc.want {
				t.Errorf("as it is cached it counts: %v, want %v", got, tc.want)
			}
		})
	}
}

func TestKeptOfAQuota(t *testing.T) {
	got := keepCPULimitQuota(cpuQuota("q"))
	want := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "q", UID: "uid"},
		Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{corev1.ResourceLimitsCPU: resource.MustParse("100")}}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("kept (-want +got):\n%s", diff)
	}
	got = keepCPULimitQuota(cpuQuota("q", scoped(corev1.ResourceQuotaScopeNotBestEffort), func(q *corev1.ResourceQuota) { q.Spec.Hard = nil }))
	want.Spec = corev1.ResourceQuotaSpec{}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("kept of one that counts no CPU limits (-want +got):\n%s", diff)
	}
}

// brokenQuotas cannot list quotas.
type brokenQuotas struct{ client.Reader }

func (b brokenQuotas) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	if _, ok := list.(*corev1.ResourceQuotaList); ok {
		return errors.New("broken")
	}
	return b.Reader.List(ctx, list, opts...)
}

// While quotas cannot be listed, ceilings in specs stay, and none is added.
func TestQuotasThatCannotBeRead(t *testing.T) {
	h := withCeilings(t, testPod("p", owed, ready), testPod("q", owed))
	h.expect("p 2000m/256Mi")
	h.kubelet()
	reader := h.Controller.kube
	h.Controller.kube = brokenQuotas{reader}
	h.change("q", ready)
	h.expect()
	h.Controller.kube = reader
	h.expect("q 2000m/256Mi")
}

// Kubernetes refuses every resize of a pod in a namespace with such a quota while one of its
// containers has no CPU limit, including the one back from the ceiling. The refusal is reported,
// and the resize is tried again and in nobody's way.
func TestQuotaThatRefusesTheWayBack(t *testing.T) {
	h := withCeilings(t, testPod("p", owed, ready))
	h.expect("p 2000m/256Mi")
	h.kubelet()
	h.create(cpuQuota("team"))
	h.forbid = func(pod string) error {
		return apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, pod, errors.New("failed quota: team: must specify limits.cpu for: queue-proxy"))
	}
	h.attempts = 0
	if got := h.follow(time.Hour); got != nil {
		t.Errorf("patches %v, want none", got)
	}
	if most := int(time.Hour/backOffMax) + 10; h.attempts > most {
		t.Errorf("%d attempts in an hour, want at most %d", h.attempts, most)
	}
	if diff := cmp.Diff([]string{"LibraCeilingRefused", "LibraResizeRefused"}, h.reasons()); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
	h.forbid = nil
	if diff := cmp.Diff([]string{"p 500m/256Mi"}, h.follow(2*backOffMax)); diff != "" {
		t.Errorf("patches when it is accepted (-want +got):\n%s", diff)
	}
}

// The most that a LimitRange allows binds through the API server alone: a ceiling that it refuses
// stays out of the spec, and one that it accepts is there.
func TestLimitRangeBoundsCeilings(t *testing.T) {
	h := withCeilings(t, testPod("p", owed, ready), testPod("q", owed, ready, annotated(api.MaxCPUAnnotation, "900m")))
	h.forbidLimits = func(pod string, limits api.Resources) error {
		if limits.CPUMilli <= 1000 {
			return nil
		}
		return apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, pod,
			errors.New("maximum cpu usage per Container is 1, but limit is 2"))
	}
	h.expect("q 900m/256Mi")
	if diff := cmp.Diff([]string{"LibraCeilingRefused"}, h.reasons()); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
	h.kubelet()
	if got := h.follow(time.Hour); got != nil {
		t.Errorf("patches %v, want none", got)
	}
}

// However quotas come and go beside all else that happens, once the world stands still no
// pod that a quota counts has more in its spec than its owner configured, and no quota that
// does not count a pod keeps its ceiling from it.
func TestNoCeilingIsCountedByAQuota(t *testing.T) {
	kinds := map[string]func(*corev1.ResourceQuota){
		"all": func(*corev1.ResourceQuota) {}, "lasting": scoped(corev1.ResourceQuotaScopeNotTerminating),
		"terminating": scoped(corev1.ResourceQuotaScopeTerminating), "high": selecting(ofClass(corev1.ScopeSelectorOpIn, "high")),
	}
	counts := func(kind string) bool { return kind == "all" || kind == "lasting" }
	rapid.Check(t, func(rt *rapid.T) {
		w := drawWorld(t, rt)
		there := map[string]*corev1.ResourceQuota{}
		change := func() {
			kind := rapid.SampledFrom([]string{"all", "lasting", "terminating", "high"}).Draw(rt, "quota")
			if quota, ok := there[kind]; ok {
				w.delete(quota)
				delete(there, kind)
				return
			}
			there[kind] = cpuQuota(kind, kinds[kind])
			w.create(there[kind].DeepCopy())
		}
		for range rapid.IntRange(1, 15).Draw(rt, "steps") {
			if rapid.Bool().Draw(rt, "a quota") {
				change()
			} else {
				w.step(rt)
			}
		}
		w.api, w.pool.pods = nil, nil
		w.kubelet()
		w.follow(2*refusalMax + repairAfter + memoryBlind + 2*backOffMax)
		counted := false
		for kind := range there {
			counted = counted || counts(kind)
		}
		for _, name := range w.pods {
			pod := w.get(name)
			got, want := specLimits(pod).CPUMilli, w.ceiling(pod)
			switch {
			case counted && got > owed.CPUMilli:
				rt.Errorf("%s has %dm in its spec, with the quotas %v, want what is owed", name, got, fmt.Sprint(there))
			case !counted && want > 0 && api.PodReady(pod) && got != want:
				rt.Errorf("%s has %dm in its spec, with the quotas %v, want its ceiling of %dm", name, got, fmt.Sprint(there), want)
			}
		}
	})
}
