package controller

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/rand"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"libra.dev/libra/pkg/api"
)

// cached reads what CacheOptions leaves of objects, as the controller does outside tests.
type cached struct{ client.Client }

func (c cached) Get(ctx context.Context, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
	if err := c.Client.Get(ctx, key, obj, opts...); err != nil {
		return err
	}
	switch o := obj.(type) {
	case *corev1.Pod:
		*o = *keepPod(o)
	case *servingv1.Revision:
		*o = *keepRevision(o)
	case *corev1.Node:
		*o = *keepSize(o)
	}
	return nil
}

func (c cached) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	if err := c.Client.List(ctx, list, opts...); err != nil {
		return err
	}
	if pods, ok := list.(*corev1.PodList); ok {
		for i := range pods.Items {
			pods.Items[i] = *keepPod(&pods.Items[i])
		}
	}
	return nil
}

// readJSON reads an object of a Knative service as an API server gave it.
func readJSON[T any](t testing.TB, file string) *T {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", file))
	if err != nil {
		t.Fatal(err)
	}
	object := new(T)
	if err := json.Unmarshal(text, object); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	return object
}

// The part of a pod that is kept tells the same, and is a fraction of its size.
func TestKeptOfAPod(t *testing.T) {
	whole := readJSON[corev1.Pod](t, "pod.json")
	kept := keepPod(whole)
	if diff := cmp.Diff(kept, keepPod(kept)); diff != "" {
		t.Errorf("what is left of what is left (-once +twice):\n%s", diff)
	}
	owed := api.FromList(readJSON[servingv1.Revision](t, "revision.json").Spec.GetContainer().Resources.Limits)
	for name, got := range map[string]string{
		"as it is":  leaveAlone(whole, "user-container", owed),
		"as cached": leaveAlone(kept, "user-container", owed),
	} {
		if got != "" {
			t.Errorf("%s the pod is left alone: %s", name, got)
		}
	}
	if size, limit := len(marshal(t, kept)), len(marshal(t, whole))/4; size > limit {
		t.Errorf("%d bytes are left of a pod of %d, want %d at most", size, len(marshal(t, whole)), limit)
	}
}

// Equal lists are the same one, and others are not, however they are written.
func TestSharedLists(t *testing.T) {
	list := func(cpu, memory string) corev1.ResourceList {
		return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse(memory)}
	}
	same := func(a, b corev1.ResourceList) bool {
		return reflect.ValueOf(a).UnsafePointer() == reflect.ValueOf(b).UnsafePointer()
	}
	var s sharedLists
	first := s.of(list("500m", "256Mi"))
	for _, equal := range []corev1.ResourceList{list("500m", "256Mi"), list("0.5", "256Mi")} {
		if got := s.of(equal); !same(got, first) {
			t.Errorf("%v is kept beside %v", got, first)
		}
	}
	for _, other := range []corev1.ResourceList{list("501m", "256Mi"), list("500m", "257Mi"), {corev1.ResourceCPU: resource.MustParse("500m")}} {
		if got := s.of(other); !cmp.Equal(got, other) {
			t.Errorf("%v is kept as %v", other, got)
		}
	}
	if got := s.of(nil); got != nil {
		t.Errorf("no list is kept as %v", got)
	}
	for i := range 2 * sharedMost {
		s.of(corev1.ResourceList{corev1.ResourceCPU: *resource.NewMilliQuantity(int64(i), resource.DecimalSI)})
	}
	if len(s.byText) > sharedMost {
		t.Errorf("%d lists are known", len(s.byText))
	}
}

func marshal(t testing.TB, object any) []byte {
	t.Helper()
	text, err := json.Marshal(object)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// BenchmarkCached is how much memory a pod takes in the cache, with a Revision for each five
// of them. One iteration is a pod.
func BenchmarkCached(b *testing.B) {
	for _, bb := range []struct {
		name     string
		pod      func(*corev1.Pod) *corev1.Pod
		revision func(*servingv1.Revision) *servingv1.Revision
	}{
		{"whole", func(p *corev1.Pod) *corev1.Pod { return p }, func(r *servingv1.Revision) *servingv1.Revision { return r }},
		{"kept", keepPod, keepRevision},
	} {
		b.Run(bb.name, func(b *testing.B) {
			pod, revision := marshal(b, readJSON[corev1.Pod](b, "pod.json")), marshal(b, readJSON[servingv1.Revision](b, "revision.json"))
			var all []any
			before := heap()
			for n := 0; b.Loop(); n++ {
				var p corev1.Pod
				if err := json.Unmarshal(pod, &p); err != nil {
					b.Fatal(err)
				}
				p.Name = rand.String(40)
				all = append(all, bb.pod(&p))
				if n%5 == 0 {
					var r servingv1.Revision
					if err := json.Unmarshal(revision, &r); err != nil {
						b.Fatal(err)
					}
					all = append(all, bb.revision(&r))
				}
			}
			b.ReportMetric(float64(heap()-before)/float64(b.N)/1024, "KiB/pod")
			runtime.KeepAlive(all)
		})
	}
}

// heap returns how many bytes are in use.
func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
