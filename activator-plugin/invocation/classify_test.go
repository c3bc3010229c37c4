package invocation

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"pgregory.net/rapid"

	"libra.dev/libra/activator-plugin/predict"
	"libra.dev/libra/pkg/api"
)

const mi = 1 << 20

func res(cpuMilli, memoryMi int64) api.Resources {
	return api.Resources{CPUMilli: cpuMilli, MemoryBytes: memoryMi * mi}
}

func TestClassify(t *testing.T) {
	const minLoan = 300 * time.Millisecond
	for _, tc := range []struct {
		name           string
		limit, request api.Resources
		demand         api.Resources
		duration       time.Duration
		surplus, want  api.Resources
	}{
		{name: "donor", limit: res(1000, 512), request: res(100, 64), demand: res(300, 100), duration: time.Second,
			surplus: res(600, 384)},
		{name: "demand at the threshold of a step", limit: res(1000, 512), request: res(100, 64), demand: res(320, 100), duration: time.Second,
			surplus: res(600, 384)},
		{name: "demand past it", limit: res(1000, 512), request: res(100, 64), demand: res(321, 103), duration: time.Second,
			surplus: res(500, 320)},
		{name: "keeps its request", limit: res(1000, 512), request: res(800, 512), demand: res(100, 1), duration: time.Second,
			surplus: res(200, 0)},
		{name: "no room for the headroom", limit: res(1000, 512), request: res(100, 64), demand: res(900, 500), duration: time.Second},
		{name: "exactly its allocation", limit: res(1000, 512), request: res(100, 64), demand: res(1000, 512), duration: time.Second},
		{name: "borrower", limit: res(1000, 512), request: res(100, 64), demand: res(1700, 600), duration: time.Second,
			want: res(700, 88)},
		{name: "each resource by itself", limit: res(1000, 512), request: res(100, 64), demand: res(1700, 100), duration: time.Second,
			surplus: res(0, 384), want: res(700, 0)},
		{name: "just long enough", limit: res(1000, 512), request: res(100, 64), demand: res(300, 600), duration: minLoan,
			surplus: res(600, 0), want: res(0, 88)},
		{name: "over too soon", limit: res(1000, 512), request: res(100, 64), demand: res(300, 600), duration: minLoan - 1},
		{name: "no CPU limit", limit: res(0, 512), request: res(100, 64), demand: res(300, 100), duration: time.Second,
			surplus: res(0, 384)},
		{name: "no memory predicted", limit: res(1000, 512), request: res(100, 64), demand: res(300, 0), duration: time.Second,
			surplus: res(600, 0)},
		{name: "no prediction", limit: res(1000, 512), request: res(100, 64)},
	} {
		t.Run(tc.name, func(t *testing.T) {
			surplus, want := classify(allocation{tc.limit, tc.request}, predict.Prediction{Demand: tc.demand, Duration: tc.duration}, minLoan)
			if diff := cmp.Diff(tc.surplus, surplus); diff != "" {
				t.Error("surplus (-want, +got):\n" + diff)
			}
			if diff := cmp.Diff(tc.want, want); diff != "" {
				t.Error("want (-want, +got):\n" + diff)
			}
		})
	}
}

func TestShareProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		step := rapid.SampledFrom([]int64{cpuStepMilli, memoryStepBytes}).Draw(t, "step")
		limit := rapid.Int64Range(0, 64*step).Draw(t, "limit")
		request := rapid.Int64Range(0, limit).Draw(t, "request")
		demand := rapid.Int64Range(0, 1<<44).Draw(t, "demand")
		if rapid.Bool().Draw(t, "small") {
			demand = rapid.Int64Range(0, limit).Draw(t, "demand")
		}

		surplus, want := share(limit, request, demand, step)
		keeps := limit - surplus
		switch {
		case surplus < 0 || want < 0:
			t.Fatalf("surplus %d, want %d: below 0", surplus, want)
		case surplus > 0 && want > 0:
			t.Fatalf("lends %d and would borrow %d", surplus, want)
		case surplus > limit-request:
			t.Fatalf("surplus %d cuts into the request", surplus)
		case surplus > 0 && demand*headroomDen > keeps*headroomNum:
			t.Fatalf("a demand of %d is more than 0.8 of the %d that is kept", demand, keeps)
		case want > 0 && limit+want != demand:
			t.Fatalf("with %d more, the limit of %d is not the demand of %d", want, limit, demand)
		}
	})
}

func TestAllocationOf(t *testing.T) {
	list := func(cpu, memory string) corev1.ResourceList {
		l := corev1.ResourceList{}
		if cpu != "" {
			l[corev1.ResourceCPU] = resource.MustParse(cpu)
		}
		if memory != "" {
			l[corev1.ResourceMemory] = resource.MustParse(memory)
		}
		return l
	}
	for _, tc := range []struct {
		name             string
		limits, requests corev1.ResourceList
		want             allocation
	}{
		{"both", list("1", "512Mi"), list("100m", "64Mi"), allocation{res(1000, 512), res(100, 64)}},
		{"without a request the limit is requested", list("1", "512Mi"), list("", "64Mi"), allocation{res(1000, 512), res(1000, 64)}},
		{"a request of 0 is one", list("1", "512Mi"), list("0", "0"), allocation{limit: res(1000, 512)}},
		{"no limits", nil, list("100m", ""), allocation{request: res(100, 0)}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := allocationOf(&corev1.Container{Resources: corev1.ResourceRequirements{Limits: tc.limits, Requests: tc.requests}})
			if diff := cmp.Diff(tc.want, got, cmp.AllowUnexported(allocation{})); diff != "" {
				t.Error("allocationOf() (-want, +got):\n" + diff)
			}
		})
	}
}
