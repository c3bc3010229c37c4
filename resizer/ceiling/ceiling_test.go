package ceiling

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/settings"
)

func podWith(maxCPU ...string) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p"}}
	for _, value := range maxCPU {
		pod.Annotations = map[string]string{api.MaxCPUAnnotation: value}
	}
	return pod
}

func TestOf(t *testing.T) {
	tests := map[string]struct {
		pod                              *corev1.Pod
		allocation, allocatable, reserve int64
		want                             int64
		refused                          bool
	}{
		"all that the node can give":           {podWith(), 500, 4000, 0, 4000, false},
		"but for the reserve":                  {podWith(), 500, 4000, 300, 3700, false},
		"as much as the annotation says":       {podWith("1.5"), 500, 4000, 300, 1500, false},
		"more than the node can give":          {podWith("64"), 500, 4000, 0, 4000, false},
		"less than the allocation":             {podWith("100m"), 500, 4000, 0, 500, false},
		"no more than the allocation":          {podWith("0"), 500, 4000, 0, 500, false},
		"an allocation above what a node has":  {podWith(), 8000, 4000, 0, 8000, false},
		"a reserve above what the node has":    {podWith(), 500, 4000, 9000, 500, false},
		"a node that is not known":             {podWith(), 500, 0, 0, 500, false},
		"no limit of the user's":               {podWith(), 0, 4000, 0, 0, false},
		"a fraction of a milli CPU":            {podWith("1000.5m"), 500, 4000, 0, 1001, false},
		"not a quantity":                       {podWith("lots"), 500, 4000, 0, 500, true},
		"empty":                                {podWith(""), 500, 4000, 0, 500, true},
		"below 0":                              {podWith("-1"), 500, 4000, 0, 500, true},
		"more than any node has":               {podWith("8E"), 500, 4000, 0, 500, true},
		"no number is so long as to be quoted": {podWith(strings.Repeat("9", 1000)), 500, 4000, 0, 500, true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := Of(tc.pod, tc.allocation, tc.allocatable, settings.Settings{CPUReserveMilli: tc.reserve})
			if got != tc.want || (err != nil) != tc.refused {
				t.Errorf("ceiling %dm, %v; want %dm, refused: %v", got, err, tc.want, tc.refused)
			}
			if err == nil {
				return
			}
			for _, said := range []string{api.MaxCPUAnnotation, "default/p", "such as 500m or 2"} {
				if !strings.Contains(err.Error(), said) || len(err.Error()) > 300 {
					t.Errorf("error %.400q, want a short one that says %q", err, said)
				}
			}
		})
	}
}

// Invariant 2, of what is asked for: a ceiling is at least the user allocation, and above
// that no more than the node and the owner allow.
func TestCeilingIsBetweenItsBounds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		allocation := rapid.Int64Range(1, 1<<40).Draw(t, "allocation")
		allocatable := rapid.Int64().Draw(t, "allocatable")
		reserve := rapid.Int64().Draw(t, "reserve")
		annotation := rapid.SampledFrom([]string{"", "any", "milli"}).Draw(t, "annotation")
		pod, most := podWith(), int64(-1)
		switch annotation {
		case "any":
			pod = podWith(rapid.String().Draw(t, "max-cpu"))
		case "milli":
			most = rapid.Int64Range(0, 1<<20*1000).Draw(t, "milli")
			pod = podWith(fmt.Sprintf("%dm", most))
		}
		policy := rapid.Int64Range(0, 1<<30).Draw(t, "the namespace's bound")
		got, err := Of(pod, allocation, allocatable, settings.Settings{CPUReserveMilli: reserve, Bounds: settings.Bounds{MaxCPUMilli: policy}})
		spare := max(0, allocatable) - max(0, reserve)
		switch {
		case got < allocation:
			t.Fatalf("ceiling %dm is below the allocation of %dm", got, allocation)
		case got > max(allocation, spare):
			t.Fatalf("ceiling %dm of a node that can give %dm", got, spare)
		case annotation == "" && policy > 0 && got > max(allocation, policy):
			t.Fatalf("ceiling %dm in a namespace whose functions may have %dm", got, policy)
		case most >= 0 && (err != nil || got > max(allocation, most)):
			t.Fatalf("ceiling %dm, %v, of a pod that may have %dm", got, err, most)
		case err != nil && got != allocation:
			t.Fatalf("ceiling %dm with an annotation that cannot be read (%v), want the allocation of %dm", got, err, allocation)
		}
	})
}
