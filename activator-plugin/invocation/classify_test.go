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

// However many invocations there may be in a pod, all together are never said to leave more than they do.
func TestInFullPod(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limit := rapid.Int64Range(1, 8000).Draw(t, "limit")
		surplus := rapid.Int64Range(0, limit).Draw(t, "surplus")
		n := rapid.IntRange(0, 20).Draw(t, "concurrency")
		a, v := allocation{limit: res(limit, limit)}, volumes{surplus: res(surplus, surplus), want: res(1, 2)}
		got := v.inFullPod(a, n)
		in := int64(max(n, 1))
		left := max(0, limit-in*(limit-surplus))
		if got.want != v.want || abs(in*got.surplus.CPUMilli-left) > in || abs(in*got.surplus.MemoryBytes-left*mi) > in*in {
			t.Fatalf("each of %d with a surplus of %d of %d leaves %v, want %d of both together", n, surplus, limit, got, left)
		}
	})
}

func abs(n int64) int64 { return max(n, -n) }

func TestClassify(t *testing.T) {
	const minLoan = 300 * time.Millisecond
	for _, tc := range []struct {
		name           string
		limit, request api.Resources
		keep           api.Resources
		demand         api.Resources
		duration       time.Duration
		cpuTime        time.Duration
		beyond         bool
		concurrency    int
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
		{name: "keeps its bound", limit: res(1000, 512), request: res(100, 64), keep: res(700, 256), demand: res(100, 1), duration: time.Second,
			surplus: res(300, 256)},
		{name: "bound below what is needed", limit: res(1000, 512), request: res(100, 64), keep: res(200, 65), demand: res(300, 100), duration: time.Second,
			surplus: res(600, 384)},
		{name: "bound above the limit", limit: res(1000, 512), request: res(100, 64), keep: api.Resources{CPUMilli: keepAll, MemoryBytes: 513 * mi}, demand: res(100, 1), duration: time.Second},
		{name: "a bound is none for a borrower", limit: res(1000, 512), request: res(100, 64), keep: res(4000, 4096), demand: res(1700, 600), duration: time.Second,
			want: res(700, 88)},
		{name: "no room for the headroom", limit: res(1000, 512), request: res(100, 64), demand: res(900, 500), duration: time.Second},
		{name: "exactly its allocation", limit: res(1000, 512), request: res(100, 64), demand: res(1000, 512), duration: time.Second},
		{name: "borrower", limit: res(1000, 512), request: res(100, 64), demand: res(1700, 600), duration: time.Second,
			want: res(700, 88)},
		{name: "each resource by itself", limit: res(1000, 512), request: res(100, 64), demand: res(1700, 100), duration: time.Second,
			surplus: res(0, 384), want: res(700, 0)},
		{name: "just long enough", limit: res(1000, 512), request: res(100, 64), demand: res(300, 600), duration: minLoan,
			surplus: res(600, 0), want: res(0, 88)},
		{name: "over too soon for CPU", limit: res(1000, 512), request: res(100, 64), demand: res(1700, 600), duration: minLoan - 1,
			want: res(0, 88)},
		{name: "long enough without a loan, and too short with it", limit: res(1000, 512), request: res(100, 64), demand: res(2000, 600),
			duration: minLoan / 4, cpuTime: minLoan, want: res(1000, 88)},
		{name: "over too soon without a loan, too", limit: res(1000, 512), request: res(100, 64), demand: res(2000, 600),
			duration: minLoan / 4, cpuTime: minLoan - 1, want: res(0, 88)},
		{name: "a borrower of CPU that is over too soon to lend memory", limit: res(1000, 512), request: res(100, 64), demand: res(2000, 100),
			duration: minLoan / 4, cpuTime: minLoan, want: res(1000, 0)},
		{name: "a donor's duration is what was predicted", limit: res(1000, 512), request: res(100, 64), demand: res(300, 100),
			duration: minLoan - 1, cpuTime: time.Hour},
		{name: "over too soon to lend", limit: res(1000, 512), request: res(100, 64), demand: res(300, 100), duration: minLoan - 1},
		{name: "over too soon, but its pod may have others that last", limit: res(1000, 512), request: res(100, 64), demand: res(300, 600),
			duration: minLoan - 1, concurrency: 2, surplus: res(600, 0), want: res(0, 88)},
		{name: "no CPU limit", limit: res(0, 512), request: res(100, 64), demand: res(300, 100), duration: time.Second,
			surplus: res(0, 384)},
		{name: "no memory predicted", limit: res(1000, 512), request: res(100, 64), demand: res(300, 0), duration: time.Second,
			surplus: res(600, 0)},
		{name: "no prediction", limit: res(1000, 512), request: res(100, 64)},
		{name: "beyond what was learned from", limit: res(1000, 512), request: res(100, 64), demand: res(300, 100), duration: time.Second, beyond: true},
		{name: "beyond it, borrower", limit: res(1000, 512), request: res(100, 64), demand: res(1700, 100), duration: time.Second, beyond: true,
			want: res(700, 0)},
		{name: "beyond it, beside others", limit: res(1000, 512), request: res(100, 64), demand: res(300, 100), duration: time.Second, beyond: true,
			concurrency: 2},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := classify(allocation{tc.limit, tc.request}, terms{keep: tc.keep, safeguardPercent: 80, minLoan: minLoan},
				predict.Prediction{Demand: tc.demand, Duration: tc.duration, CPUTime: tc.cpuTime, Beyond: tc.beyond}, tc.concurrency)
			if diff := cmp.Diff(volumes{tc.surplus, tc.want}, got, cmp.AllowUnexported(volumes{})); diff != "" {
				t.Error("classify() (-want, +got):\n" + diff)
			}
		})
	}
}

func TestNeedOf(t *testing.T) {
	for _, tc := range []struct {
		name                string
		limit, demand, want api.Resources
	}{
		{"with the headroom", res(1000, 512), res(300, 100), res(400, 128)},
		{"no more than all", res(1000, 512), res(950, 5000), res(1000, 512)},
		{"no prediction of a resource", res(1000, 512), res(300, 0), res(400, 0)},
		{"no limit", res(1000, 0), res(300, 100), res(400, 0)},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := needOf(allocation{limit: tc.limit, request: res(500, 256)}, terms{safeguardPercent: 80}, predict.Prediction{Demand: tc.demand}); got != tc.want {
				t.Errorf("needOf() = %v, want %v", got, tc.want)
			}
		})
	}
}

func TestNeedOfWhatIsBeyondIsNotKnown(t *testing.T) {
	if got := needOf(allocation{limit: res(1000, 512)}, terms{safeguardPercent: 80}, predict.Prediction{Demand: res(300, 100), Beyond: true}); !got.IsZero() {
		t.Errorf("needOf() = %v, want none", got)
	}
}

func TestShareProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		step := rapid.SampledFrom([]int64{cpuStepMilli, memoryStepBytes}).Draw(t, "step")
		limit := rapid.Int64Range(0, 64*step).Draw(t, "limit")
		keep := rapid.Int64Range(0, 2*limit).Draw(t, "keep")
		demand := rapid.Int64Range(0, 1<<44).Draw(t, "demand")
		if rapid.Bool().Draw(t, "small") {
			demand = rapid.Int64Range(0, limit).Draw(t, "demand")
		}

		percent := rapid.Int64Range(50, 95).Draw(t, "percent")

		surplus, want := share(limit, keep, demand, step, percent)
		keeps := limit - surplus
		switch {
		case surplus < 0 || want < 0:
			t.Fatalf("surplus %d, want %d: below 0", surplus, want)
		case surplus > 0 && want > 0:
			t.Fatalf("lends %d and would borrow %d", surplus, want)
		case surplus > 0 && keeps < keep:
			t.Fatalf("surplus %d cuts into the %d that are kept", surplus, keep)
		case surplus > 0 && demand*100 > keeps*percent:
			t.Fatalf("a demand of %d is more than %d %% of the %d that is kept", demand, percent, keeps)
		case want > 0 && limit+want != demand:
			t.Fatalf("with %d more, the limit of %d is not the demand of %d", want, limit, demand)
		}
	})
}

func TestIdleCPU(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		amount := rapid.Int64Range(0, 4000)
		limit, request, keep := amount.Draw(t, "limit"), amount.Draw(t, "request"), amount.Draw(t, "keep")
		idle := idleCPU(allocation{limit: res(limit, 0), request: res(request, 0)}, res(keep, 0))
		if kept := limit - idle; idle < 0 || idle > 0 && kept < max(request, keep, cpuStepMilli) || idle == 0 && limit > max(request, keep, cpuStepMilli) {
			t.Fatalf("%dm are lent of %dm, of which %dm are requested and %dm to be kept", idle, limit, request, keep)
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
		{"a limit that no node reaches is none", list("2e9", "2Ti"), list("100m", "64Mi"), allocation{request: res(100, 64)}},
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
