package controller

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"pgregory.net/rapid"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/pool"
	"libra.dev/libra/pkg/settings"
)

// world is a node that a test changes at random.
type world struct {
	*harness
	pods        []string
	api         error
	allocatable int64 // milli CPU
}

func drawWorld(t *testing.T, rt *rapid.T) *world {
	w := &world{allocatable: 2000}
	objects := []client.Object{testRevision(owed), testNode(w.allocatable)}
	for i := range rapid.IntRange(1, 3).Draw(rt, "pods") {
		name := fmt.Sprint("pod", i)
		limits := rapid.SampledFrom([]api.Resources{owed, res(300, 256), res(700, 320), res(500, 192)}).Draw(rt, "limits")
		change := []func(*corev1.Pod){byLibra}
		if rapid.Bool().Draw(rt, "old") {
			change = append(change, old)
		}
		if rapid.Bool().Draw(rt, "ready") {
			change = append(change, ready)
		}
		w.pods = append(w.pods, name)
		objects = append(objects, testPod(name, limits, change...))
	}
	w.harness = newHarness(t, objects...)
	w.forbid = func(string) error { return w.api }
	w.drawSettings(rt)
	return w
}

func (w *world) drawSettings(rt *rapid.T) {
	w.following.now = settings.Settings{
		Mode:            rapid.SampledFrom([]api.Mode{api.ModeFull, api.ModeFull, api.ModeFull, api.ModeObserve}).Draw(rt, "mode"),
		MaxMode:         rapid.SampledFrom([]api.Mode{api.ModeFull, api.ModeFull, api.ModeFull, api.ModeLend}).Draw(rt, "max mode"),
		Source:          rapid.SampledFrom([]api.Source{api.SourceNode, api.SourceOwners}).Draw(rt, "source"),
		CPUReserveMilli: rapid.SampledFrom([]int64{0, 300, 5000}).Draw(rt, "reserve"),
	}
}

// ceiling returns the most that the pod's CPU limit may be under source node; 0 when it has no
// ceiling.
func (w *world) ceiling(pod *corev1.Pod) int64 {
	if s := w.following.now; s.ModeOf(nil) != api.ModeFull || s.Source != api.SourceNode {
		return 0
	}
	most := w.allocatable - w.following.now.CPUReserveMilli
	if pod.Annotations[api.MaxCPUAnnotation] != "" {
		most = min(most, 1200)
	}
	return max(owed.CPUMilli, most)
}

// look reconciles, and checks invariants 2, 5 and 8 for what was asked for: no pod gets less CPU
// than the user allocation or more than the ceiling; memory is never below the user allocation, nor
// lowered while the pool says that it is needed. And requests never change.
func (w *world) look(rt *rapid.T) (again time.Duration) {
	before, kept := map[string]api.Resources{}, map[string]int64{}
	for _, p := range w.pods {
		pod := w.get(p)
		before[p] = specLimits(pod)
		kept[p] = before[p].MemoryBytes
		for _, s := range pod.Status.ContainerStatuses {
			kept[p] = min(kept[p], s.Resources.Limits.Memory().Value()) // the kubelet may not take up more
		}
	}
	_, again = w.reconcileResult()
	for _, p := range w.pods {
		pod := w.get(p)
		if requests := api.FromList(pod.Spec.Containers[0].Resources.Requests); requests != res(100, 64) {
			rt.Fatalf("requests of %s are %v by now", p, requests)
		}
		got := specLimits(pod)
		if got == before[p] {
			continue
		}
		if most := max(owed.CPUMilli+bumpMilli, w.ceiling(pod)); got.CPUMilli != before[p].CPUMilli && (got.CPUMilli < owed.CPUMilli-bumpMilli || got.CPUMilli > most) {
			rt.Fatalf("%s is given %dm, want from %dm to %dm", p, got.CPUMilli, owed.CPUMilli, most)
		}
		if got.MemoryBytes < owed.MemoryBytes {
			rt.Fatalf("%s is given %v, less memory than it is owed", p, got)
		}
		if w.pool.err == nil && got.MemoryBytes < min(kept[p], w.dueOf(p)) {
			rt.Fatalf("%s is given %v in place of %v, and is due %d MiB", p, got, before[p], w.dueOf(p)>>20)
		}
	}
	return again
}

// drawMemory draws any memory that the pool may report.
func (w *world) drawMemory(rt *rapid.T) {
	w.pool.pods, w.pool.needs = map[string]pool.Balance{}, map[string]int64{}
	for _, p := range w.pods {
		if mi := rapid.Int64Range(0, 2).Draw(rt, "borrowed") * 32; mi > 0 {
			w.pool.pods["default/"+p] = pool.Balance{Borrowed: res(0, mi)}
		}
		if mi := rapid.SampledFrom([]int64{0, 0, 100, 300, 400}).Draw(rt, "needed"); mi > 0 {
			w.pool.needs["default/"+p] = mi << 20
		}
	}
}

// status sets the pod's status to one of the kubelet's answers.
func (w *world) status(name, answer string) {
	pod := w.get(name)
	switch answer {
	case "applied":
		w.kubelet(w.but(name)...)
		return
	case "in progress":
		if slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == corev1.PodResizeInProgress }) {
			return
		}
		pod.Status.Conditions = append(slices.DeleteFunc(pod.Status.Conditions, ofResize), corev1.PodCondition{Type: corev1.PodResizeInProgress, Status: corev1.ConditionTrue})
	case "not running":
		pod.Status.ContainerStatuses = nil
	default:
		if slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool { return c.Reason == answer }) {
			return
		}
		of := corev1.PodResizePending
		if answer == corev1.PodReasonError {
			of = corev1.PodResizeInProgress
		}
		pod.Status.Conditions = append(slices.DeleteFunc(pod.Status.Conditions, ofResize), corev1.PodCondition{Type: of, Status: corev1.ConditionTrue, Reason: answer})
	}
	w.update(pod)
}

func (w *world) but(name string) []string {
	var others []string
	for _, p := range w.pods {
		if p != name {
			others = append(others, p)
		}
	}
	return others
}

func (w *world) step(rt *rapid.T) {
	pods := schema.GroupResource{Resource: "pods"}
	switch rapid.SampledFrom([]string{"memory", "status", "agent", "redis", "api", "time", "reconcile",
		"settings", "ready", "allocatable", "max-cpu", "restart"}).Draw(rt, "step") {
	case "memory":
		w.drawMemory(rt)
	case "status":
		w.status(rapid.SampledFrom(w.pods).Draw(rt, "pod"),
			rapid.SampledFrom([]string{"applied", "in progress", "not running", corev1.PodReasonDeferred, corev1.PodReasonInfeasible, corev1.PodReasonError}).Draw(rt, "answer"))
	case "agent":
		w.agent(rapid.Bool().Draw(rt, "agent"))
	case "redis":
		w.pool.err = rapid.SampledFrom([]error{nil, errors.New("away")}).Draw(rt, "redis")
	case "api":
		w.api = rapid.SampledFrom([]error{nil, apierrors.NewForbidden(pods, "p", errors.New("quota")), apierrors.NewInternalError(errors.New("etcd"))}).Draw(rt, "api")
	case "time":
		w.clock.Step(time.Duration(rapid.IntRange(1, 6000).Draw(rt, "ms")) * time.Millisecond)
	case "settings":
		w.drawSettings(rt)
	case "ready":
		w.change(rapid.SampledFrom(w.pods).Draw(rt, "pod"), func(p *corev1.Pod) {
			if api.PodReady(p) {
				p.Status.Conditions = slices.DeleteFunc(p.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == corev1.PodReady })
			} else {
				p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionTrue})
			}
		})
	case "allocatable":
		w.allocatable = rapid.SampledFrom([]int64{400, 900, 2000}).Draw(rt, "milli")
		w.setAllocatable(w.allocatable)
	case "max-cpu":
		w.change(rapid.SampledFrom(w.pods).Draw(rt, "pod"), annotated(api.MaxCPUAnnotation, "1200m"))
	case "restart":
		w.restart()
	case "reconcile":
	}
	w.look(rt)
}

// Whatever came before, in a world that stands still, with a kubelet that applies what
// it is asked for, a few patches per pod bring each to what it should be, and then
// the controller falls silent.
func TestFallsSilent(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := drawWorld(t, rt)
		for range rapid.IntRange(0, 20).Draw(rt, "steps") {
			w.step(rt)
		}
		w.api = nil
		w.kubelet()
		w.attempts = 0
		w.follow(2*refusalMax + repairAfter + memoryBlind + pool.LeaseTTL)
		if most := 10 * len(w.pods); w.attempts > most {
			rt.Errorf("%d patches of %d pods until it fell silent, want at most %d", w.attempts, len(w.pods), most)
		}
		w.attempts = 0
		w.follow(15 * time.Second)
		if w.attempts > 0 {
			rt.Errorf("still %d patches: %v", w.attempts, w.patches)
		}
		for _, p := range w.pods {
			pod := w.get(p)
			got := specLimits(pod)
			if ceiling := w.ceiling(pod); ceiling > 0 {
				if got.CPUMilli < owed.CPUMilli || got.CPUMilli > ceiling || api.PodReady(pod) && got.CPUMilli != ceiling {
					rt.Errorf("%s is left at %v, want its ceiling of %dm", p, got, ceiling)
				}
			} else if got.CPUMilli != owed.CPUMilli {
				rt.Errorf("%s is left at %v, without a ceiling", p, got)
			}
			if due := w.dueOf(p); got.MemoryBytes < due || got.MemoryBytes >= max(due+memoryStep, owed.MemoryBytes+1) {
				rt.Errorf("%s is left at %v, and is due %d MiB", p, got, due>>20)
			}
		}
	})
}

// dueOf is in bytes.
func (w *world) dueOf(name string) int64 {
	if w.pool.err != nil {
		return owed.MemoryBytes
	}
	return max(owed.MemoryBytes+w.pool.pods["default/"+name].Borrowed.MemoryBytes, w.pool.needs["default/"+name])
}

// With an API server or a kubelet that never does what it is asked for, the controller tries ever
// more seldom.
func TestStubbornWorld(t *testing.T) {
	pods := schema.GroupResource{Resource: "pods"}
	rapid.Check(t, func(rt *rapid.T) {
		w := drawWorld(t, rt)
		w.agent(rapid.Bool().Draw(rt, "agent"))
		w.drawMemory(rt)
		w.api = rapid.SampledFrom([]error{nil, apierrors.NewForbidden(pods, "p", errors.New("quota")), apierrors.NewInternalError(errors.New("etcd"))}).Draw(rt, "api")
		answer := rapid.SampledFrom([]string{"", "in progress", corev1.PodReasonDeferred, corev1.PodReasonInfeasible, corev1.PodReasonError}).Draw(rt, "answer")
		for end := w.clock.Now().Add(time.Minute); w.clock.Now().Before(end); {
			again := w.look(rt)
			for _, p := range w.pods {
				if answer != "" {
					w.status(p, answer)
				}
			}
			w.clock.Step(max(again, time.Second))
		}
		// Restores are tried as long as it takes, once per backOffMax, and once more when a
		// quota may have room for them after the decreases.
		if most := 2 * len(w.pods) * int(time.Minute/backOffMax+10); w.attempts > most {
			rt.Errorf("%d attempts for %d pods in a minute, want at most %d", w.attempts, len(w.pods), most)
		}
	})
}
