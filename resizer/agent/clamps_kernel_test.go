package agent

import (
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr/testr"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"k8s.io/utils/clock"

	"libra.dev/libra/resizer/cgroup"
	"libra.dev/libra/resizer/cgroup/cgrouptest"
	"libra.dev/libra/resizer/pressure"
)

// A bystander with little weight gets its CPU back from a function that uses what it can.
func TestKernelClamp(t *testing.T) {
	name := cgrouptest.Name()
	pod := func(kind string) (*cgrouptest.Container, cgroup.Container) {
		made := cgrouptest.NewIn(t, name, "kubepods", "burstable", "pod"+name+"-"+kind, name+"-"+kind+"-container")
		seen, err := cgroup.Open(made.Root, made.ID)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { seen.Close() }) //nolint:errcheck // nothing is left to write
		return made, seen
	}
	function, functionSeen := pod("function")
	bystander, bystanderSeen := pod("bystander")
	// A twentieth of the function's weight, which is the kernel's default.
	bystander.Write(map[bool]string{false: "50", true: "5"}[bystander.V2], bystander.PodFile("cpu.shares", "cpu.weight"))
	if err := functionSeen.SetCPU(2000); err != nil {
		t.Fatal(err)
	}
	// Bystander first: with so little weight, it can take minutes to begin beside busy functions.
	bystander.Start(t).Do("burn")
	for range runtime.NumCPU() {
		function.Start(t).Do("burn")
	}

	m, err := newMetrics(sdkmetric.NewMeterProvider())
	if err != nil {
		t.Fatal(err)
	}
	waits := pressure.New(function.Root, "/proc", func(uid string) bool {
		return !strings.HasPrefix(uid, name) || strings.HasSuffix(uid, "function")
	})
	t.Cleanup(waits.Close)
	c := &clamps{
		clock: clock.RealClock{}, metrics: m, waits: waits, off: true,
		open:   func(id string) (cgroup.Container, error) { return cgroup.Open(function.Root, id) },
		specOf: func(string, string) (int64, bool) { return 2000, true },
	}
	c.recall(t.Context(), testr.New(t), newTestJournal(t, t.TempDir()).journal, nil)
	containers := []capped{{
		pod: "default/function", function: "default/f", container: function.ID, quotas: functionSeen,
		allocation: 500, ceiling: 2000, spec: 2000,
	}}
	// cores returns how many cores the bystander has on average over d.
	cores := func(d time.Duration) float64 {
		t.Helper()
		before, err := bystanderSeen.CPU()
		if err != nil {
			t.Fatal(err)
		}
		begun := time.Now()
		for time.Since(begun) < d {
			c.round(t.Context(), containers)
			time.Sleep(5 * time.Millisecond)
		}
		after, err := bystanderSeen.CPU()
		if err != nil {
			t.Fatal(err)
		}
		return float64(after-before) / float64(time.Since(begun))
	}

	// The bystander may wait for something else that runs on the machine.
	for try := 1; ; try++ {
		c.off = true
		cores(2 * time.Second)
		without := cores(2 * time.Second)
		c.off = false
		cores(time.Second)
		with := cores(2 * time.Second)
		t.Logf("the bystander has %.2f cores beside a function that is not clamped, %.2f beside one that is", without, with)
		if with >= 2*without && with >= 0.1 {
			break
		}
		if try == 8 {
			t.Fatal("want at least twice as many and 0.1, once in 8 times")
		}
	}
	c.stop(t.Context())
	if reading, err := functionSeen.Read(); err != nil || reading.Limit.CPUMilli != 2000 {
		t.Errorf("the function's quota is %dm after the end (%v), want what its spec says", reading.Limit.CPUMilli, err)
	}
}
