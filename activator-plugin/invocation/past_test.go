package invocation

import (
	"fmt"
	"math"
	"net/http"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	v1 "knative.dev/serving/pkg/apis/serving/v1"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/report"
)

// ranFor is a request that has ended.
func ranFor(mode api.Mode, size int64) *request {
	return &request{size: size, kept: kept{Decision: Decision{Mode: mode}}, response: &statusWriter{status: http.StatusOK}}
}

// slowdown is a revision's slow-down in a report.
func slowdown(t *testing.T, c *counts, rev *v1.Revision) *int32 {
	t.Helper()
	record := c.drain(learned)
	for name, s := range record {
		if name.Name == rev.Name {
			return s.SlowdownPercent()
		}
	}
	return nil
}

func TestRequestsAreComparedWithThoseOfTheirSizeBefore(t *testing.T) {
	var c counts
	rev := newRevision()
	n := c.of(rev)
	for range pastLeast {
		n.took(ranFor(api.ModeObserve, 1000), 100*time.Millisecond)
		n.took(ranFor(api.ModeObserve, 1<<20), time.Second)
	}
	// Another mix of inputs is no slow-down.
	for range report.LeastCompared {
		n.took(ranFor(api.ModeFull, 900), 50*time.Millisecond)
		n.took(ranFor(api.ModeFull, 1<<20+1), 500*time.Millisecond)
		n.took(ranFor(api.ModeFull, 1<<20+1), 500*time.Millisecond)
	}
	if got := slowdown(t, &c, rev); got == nil || *got != 50 {
		t.Errorf("It is %v, want 50", got)
	}
}

func TestWithoutAPastThereIsNoSlowdown(t *testing.T) {
	var c counts
	rev := newRevision()
	n := c.of(rev)
	for range pastLeast {
		n.took(ranFor(api.ModeObserve, 1000), 100*time.Millisecond)
	}
	for range 100 {
		n.took(ranFor(api.ModeFull, 1<<20), 50*time.Millisecond)        // none of this size was seen
		n.took(ranFor(api.ModeFull, api.UnknownSize), time.Millisecond) // nor of this
	}
	for range report.LeastCompared - 1 { // too few
		n.took(ranFor(api.ModeFull, 1000), 50*time.Millisecond)
	}
	if got := slowdown(t, &c, rev); got != nil {
		t.Errorf("It is %d, want that it is not known", *got)
	}
}

// Changing the mode by annotation makes a new revision with the same spec. Another image is another function.
func TestAPastIsThatOfTheSameSpec(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*v1.Revision)
		known  bool
	}{
		"another mode":  {func(r *v1.Revision) { r.Annotations[api.ModeAnnotation] = "full" }, true},
		"another image": {func(r *v1.Revision) { r.Spec.Containers[0].Image = "other" }, false},
		"another digest": {func(r *v1.Revision) {
			r.Status.ContainerStatuses = []v1.ContainerStatus{{ImageDigest: "registry.test/f@sha256:1"}}
		}, false},
		"another limit": {func(r *v1.Revision) {
			r.Spec.Containers[0].Resources.Limits = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("3")}
		}, false},
		"another function": {func(r *v1.Revision) { r.Namespace = "other" }, false},
	} {
		t.Run(name, func(t *testing.T) {
			var c counts
			for range pastLeast {
				c.of(newRevision()).took(ranFor(api.ModeObserve, 1000), 100*time.Millisecond)
			}
			next := newRevision()
			next.Name = "rev-00002"
			tc.change(next)
			for range report.LeastCompared {
				c.of(next).took(ranFor(api.ModeFull, 1000), 100*time.Millisecond)
			}
			if got := slowdown(t, &c, next); (got != nil) != tc.known {
				t.Errorf("The slow-down is %v, want it known: %t", got, tc.known)
			}
		})
	}
}

func TestWhatSaysNothingOfTheTimeIsNotCompared(t *testing.T) {
	for name, change := range map[string]func(*request){
		"cold":  func(r *request) { r.seen.why = reasonColdStart },
		"first": func(r *request) { r.seen.why = reasonFirst },
		"cold, of a function that others reach past the activator": func(r *request) { r.seen.why, r.seen.bypassed = reasonColdStart, true },
		"a copy":      func(r *request) { r.seen.why = reasonCopy },
		"failed":      func(r *request) { r.response.status = 500 },
		"refused":     func(r *request) { r.response.status = 404 },
		"abandoned":   func(r *request) { r.abandoned = true },
		"not managed": func(r *request) { r.kept.Mode = "" },
	} {
		r := ranFor(api.ModeFull, 1)
		if change(r); r.typical() {
			t.Errorf("%s: it is compared", name)
		}
	}
}

func TestSizeClasses(t *testing.T) {
	for size, want := range map[int64]int{api.UnknownSize: 0, 0: 1, 1: 2, 1023: 11, 1024: 12, 2047: 12, math.MaxInt64: pastSizes - 1} {
		if got := sizeClass(size); got != want {
			t.Errorf("Of %d bytes it is %d, want %d", size, got, want)
		}
	}
}

func TestPastsAreBounded(t *testing.T) {
	var c counts
	served, asked := pastKey{function: "served"}, pastKey{function: "asked for"}
	kept := c.pastOf(served)
	c.byRevision = map[types.NamespacedName]*count{revID: {past: kept}}
	again := c.pastOf(asked)
	for i := range report.MaxFunctions + 10 {
		c.pastOf(pastKey{function: fmt.Sprint(i)})
		if c.pastOf(asked) != again {
			t.Fatal("The past that was asked for last is forgotten")
		}
	}
	if len(c.pasts) != report.MaxFunctions {
		t.Errorf("%d pasts are kept, want %d", len(c.pasts), report.MaxFunctions)
	}
	if c.pastOf(served) != kept {
		t.Error("The past of a revision that is counted is forgotten")
	}
}
