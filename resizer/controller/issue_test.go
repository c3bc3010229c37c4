package controller

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/time/rate"
	"pgregory.net/rapid"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"libra.dev/libra/pkg/settings"
)

// However many ceilings have just been patched, there and back, restores that become due
// are all sent at once, up to half of what either limit lets through; and ceilings are all
// set in the end.
func TestRestoresNeverWaitBehindCeilings(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		ceilings := rapid.IntRange(1, 30).Draw(rt, "ceilings")
		objects := []client.Object{testRevision(owed), testNode(2000)}
		for i := range ceilings {
			objects = append(objects, testPod(fmt.Sprint("p", i), owed, ready))
		}
		h := newHarness(t, objects...)
		h.following.now = underNode
		h.Controller.settings.Burst = rapid.IntRange(1, 40).Draw(rt, "burst")
		h.Controller.total = rate.NewLimiter(10, rapid.IntRange(1, 40).Draw(rt, "total burst"))

		sources := []settings.Settings{underNode, {Mode: underNode.Mode, MaxMode: underNode.MaxMode, Source: "owners"}}
		for i := range rapid.SampledFrom([]int{1, 3}).Draw(rt, "changes of the source") {
			h.following.now = sources[i%2]
			for len(h.reconcile()) > 0 {
				h.kubelet()
			}
		}
		var low, want []string
		for i := range rapid.IntRange(0, min(h.Controller.settings.Burst, h.Controller.total.Burst())/2).Draw(rt, "restores") {
			name := fmt.Sprint("low", i)
			h.create(testPod(name, res(300, 256), byLibra))
			low, want = append(low, name), append(want, name+" 500m/256Mi")
		}
		got := h.reconcile()
		for _, patch := range want {
			if !slices.Contains(got, patch) {
				rt.Fatalf("patches %v of %d pods that were low, %q is not among them", got, len(low), patch)
			}
		}
		without := func() (pods []string) {
			for i := range ceilings {
				if name := fmt.Sprint("p", i); specLimits(h.get(name)).CPUMilli != 2000 {
					pods = append(pods, name)
				}
			}
			return pods
		}
		for rounds := 2 * (ceilings + len(low)); rounds > 0 && len(without()) > 0; rounds-- {
			h.kubelet()
			h.clock.Step(time.Second)
			h.reconcile()
		}
		if pods := without(); len(pods) > 0 {
			rt.Errorf("%v are left without their ceilings", pods)
		}
	})
}

// Ceilings that are held back are counted once each time, not for each pod.
func TestHeldCeilingsAreCountedOnce(t *testing.T) {
	objects := []client.Object{testRevision(owed), testNode(2000)}
	for i := range testSettings.Burst {
		objects = append(objects, testPod(fmt.Sprint("p", i), owed, ready))
	}
	h := newHarness(t, objects...)
	h.following.now = underNode
	for _, want := range []struct {
		patches int
		again   time.Duration
	}{{patientPatches, heldTick}, {testSettings.Burst/2 - patientPatches, waitTick}} {
		if got, again := h.reconcileResult(); len(got) != want.patches || again != want.again {
			t.Errorf("%d patches and again after %v, want %d and again after %v", len(got), again, want.patches, want.again)
		}
	}
	if got := h.total("libra.resizer.resizes", resultKey.String(resultLimited)); got != 1 {
		t.Errorf("%v rate-limited, want 1", got)
	}
}

// However many pods are to get their ceilings, one that must get memory does not wait until they all have.
func TestMemoryDoesNotWaitBehindCeilings(t *testing.T) {
	objects := []client.Object{testRevision(owed), testNode(2000), testPod("z", owed, ready)}
	for i := range testSettings.Burst {
		objects = append(objects, testPod(fmt.Sprint("p", i), owed, ready))
	}
	h := newHarness(t, objects...)
	h.following.now = underNode
	h.pool.pods = lends(64, "z")
	got := h.reconcile()
	if len(got) != 1+patientPatches || got[len(got)-1] != "z 500m/320Mi" {
		t.Errorf("patches %v at a time, want those of %d ceilings, and the memory of z", got, patientPatches)
	}
}

// A ceiling that the API server did not answer to puts off no memory.
func TestMemoryIsRaisedAfterACeilingFailed(t *testing.T) {
	h := newHarness(t, testRevision(owed), testNode(2000), testPod("p", owed, ready))
	h.following.now = underNode
	h.patchErr = errors.New("it does not answer")
	h.expect()
	h.patchErr = nil
	h.expect() // the ceiling waits
	h.pool.pods = lends(64, "p")
	h.expect("p 500m/320Mi")
	h.expect("p 2000m/320Mi")
}

// While as many ceilings are being sent as the API server is given at a time, for whichever nodes,
// no more are sent, but resizes that cannot wait are.
func TestNotTooManyCeilingsAtATime(t *testing.T) {
	h := newHarness(t, testRevision(owed), testNode(2000), testPod("p", owed, ready), testPod("low", res(300, 256), byLibra))
	h.following.now = underNode
	if !h.patient.TryAcquire(concurrentPatient) {
		t.Fatal("something is being sent before anything was due")
	}
	got, again := h.reconcileResult()
	if diff := cmp.Diff([]string{"low 500m/256Mi"}, got); diff != "" || again != waitTick {
		t.Errorf("again after %v, patches (-want +got):\n%s", again, diff)
	}
	h.patient.Release(concurrentPatient)
	h.expect("p 2000m/256Mi")
	if !h.patient.TryAcquire(concurrentPatient) {
		t.Error("what was sent counts as being sent yet")
	}
}
