package cgroup_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"pgregory.net/rapid"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/resizer/cgroup"
	"libra.dev/libra/resizer/cgroup/cgrouptest"
)

const mib = 1 << 20

// kernel is a container in this machine's own cgroups.
type kernel struct {
	cgroup.Container
	made *cgrouptest.Container
	t    testing.TB
}

func newKernel(t testing.TB) *kernel {
	t.Helper()
	return openKernel(t, cgrouptest.New(t))
}

func openKernel(t testing.TB, made *cgrouptest.Container) *kernel {
	t.Helper()
	k := &kernel{made: made, t: t}
	c, err := cgroup.Open(k.made.Root, k.made.ID)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() }) //nolint:errcheck // it only was to be read and written
	k.Container = c
	return k
}

func (k *kernel) read() cgroup.Reading {
	k.t.Helper()
	r, err := k.Read()
	if err != nil {
		k.t.Fatal(err)
	}
	return r
}

// until reads until ok; the test's deadline bounds it.
func (k *kernel) until(what string, ok func(cgroup.Reading) bool) {
	k.t.Helper()
	ctx, cancel := context.WithTimeout(k.t.Context(), time.Minute)
	defer cancel()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		r := k.read()
		if ok(r) {
			return
		}
		select {
		case <-ctx.Done():
			k.t.Fatalf("%s did not happen; the last reading was %+v", what, r)
		case <-tick.C:
		}
	}
}

func (k *kernel) setCPU(milli int64) {
	k.t.Helper()
	if err := k.SetCPU(milli); err != nil {
		k.t.Fatal(err)
	}
}

func TestKernelSetsAndReads(t *testing.T) {
	k := newKernel(t)
	if got := k.read().Limit; got != (api.Resources{}) {
		t.Fatalf("limits of a new cgroup are %v", got)
	}
	for _, bytes := range []int64{256 * mib, 64 * mib, 512 * mib} {
		k.made.Write(fmt.Sprint(bytes), k.made.File("memory.limit_in_bytes", "memory.max"))
		if got := k.read().Limit.MemoryBytes; got != bytes {
			t.Errorf("memory limit %d, want the runtime's %d", got, bytes)
		}
	}
	for _, tc := range []struct{ milli, want int64 }{{1, 10}, {10, 10}, {11, 11}, {333, 333}, {999, 999}, {1500, 1500}, {64_000, 64_000}, {0, 0}} {
		k.setCPU(tc.milli)
		if got := k.read().Limit.CPUMilli; got != tc.want {
			t.Errorf("CPU limit %dm, set %dm, want %dm", got, tc.milli, tc.want)
		}
	}
}

// A period that is not the usual one stays, and does not blur the limit.
func TestKernelPeriod(t *testing.T) {
	k := newKernel(t)
	path := k.made.File("cpu.cfs_period_us", "cpu.max")
	k.made.Write(map[bool]string{false: "33333", true: "max 33333"}[k.made.V2], path)
	for _, milli := range []int64{333, 1001, 0, 77} {
		k.setCPU(milli)
		if got := k.read().Limit.CPUMilli; got != milli {
			t.Errorf("CPU limit %dm, set %dm", got, milli)
		}
		if got := cgrouptest.Line(t, path); !strings.HasSuffix(got, "33333") {
			t.Errorf("the period became %s", got)
		}
	}
}

func TestKernelThrottles(t *testing.T) {
	k := newKernel(t)
	k.setCPU(50)
	l := k.made.Start(t)
	l.Do("burn")
	before := k.read()
	k.until("throttling", func(r cgroup.Reading) bool {
		return r.ThrottledPeriods >= before.ThrottledPeriods+3 && r.Throttled > before.Throttled && r.CPU > before.CPU
	})
	k.setCPU(0)
	at := k.read()
	k.until("work without a limit", func(r cgroup.Reading) bool { return r.CPU > at.CPU+50*time.Millisecond })
}

// A reading has the memory that a container holds, and not what can be reclaimed at once.
func TestKernelMemoryInUse(t *testing.T) {
	k := newKernel(t)
	l := k.made.Start(t)
	l.Do("hold %d", 96*mib)
	if got := k.read().Memory; got < 96*mib {
		t.Errorf("%d bytes are said to be in use, want 96 MiB at least", got)
	}
}

// The kernel takes memory of files that were read, and shows when they are read again afterwards.
// Where it cannot, the error says so.
func TestKernelReclaim(t *testing.T) {
	k := newKernel(t)
	r, err := k.Reclaimer()
	if !k.made.V2 {
		if !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("Reclaimer on v1 = %v", err)
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close() //nolint:errcheck // every write was checked
	read := func() (c cgroup.Cache, anonymous int64) {
		t.Helper()
		c, err := r.Read()
		if err != nil {
			t.Fatal(err)
		}
		stat, err := os.ReadFile(k.made.File("", "memory.stat"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := fmt.Sscanf(string(stat), "anon %d", &anonymous); err != nil {
			t.Fatal(err)
		}
		return c, anonymous
	}
	file := cgrouptest.Cold(t)
	l := k.made.Start(t)
	l.Do("hold %d", 32*mib)
	l.Do("read %s", file)
	before, anonymous := read()
	if before.Inactive < 100*mib || before.Used < before.Inactive+32*mib || before.Refaults != 0 {
		t.Fatalf("%+v after 128 MiB of a file were read beside 32 MiB", before)
	}
	for range 4 {
		if err := r.Reclaim(16 * mib); err != nil {
			t.Fatal(err)
		}
	}
	after, left := read()
	if taken := before.Used - after.Used; taken < 60*mib || taken > 100*mib { // Linux 6.1 takes 94
		t.Errorf("%d MiB were taken, want 64 or some more: %+v, %+v", taken/mib, before, after)
	}
	if anonymous-left > mib || after.Used-after.Inactive < 32*mib {
		t.Errorf("%d bytes are anonymous, and were %d", left, anonymous)
	}
	l.Do("read %s", file)
	if again, _ := read(); again.Refaults < 32*mib {
		t.Errorf("%d MiB are said to have been read again: %+v", again.Refaults/mib, again)
	}
	if err := r.Reclaim(1024 * mib); !errors.Is(err, syscall.EAGAIN) {
		t.Errorf("reclaiming more than there is = %v, want EAGAIN", err)
	}
	if _, left := read(); anonymous-left > mib {
		t.Errorf("%d bytes are anonymous after all files were taken, and were %d", left, anonymous)
	}
}

// A value that the kernel or Libra does not take is refused with an error that names it, and
// changes nothing; any other is read back.
func TestKernelValues(t *testing.T) {
	k := newKernel(t)
	rapid.Check(t, func(rt *rapid.T) {
		before := k.read().Limit
		value := rapid.OneOf(rapid.Int64(), rapid.Int64Range(-10, 200_000), rapid.Int64Range(0, 1<<50)).Draw(rt, "value")
		want := before
		err := k.SetCPU(value)
		want.CPUMilli = k.Attainable(value)
		if err != nil {
			want = before
			if !strings.ContainsAny(err.Error(), "0123456789") || !strings.Contains(err.Error(), "want") && !errors.Is(err, syscall.EINVAL) {
				rt.Errorf("%d was refused with %v", value, err)
			}
		}
		if got := k.read().Limit; got != want {
			rt.Errorf("limits %v after %d (%v), want %v", got, value, err, want)
		}
	})
}

func TestKernelPodLimit(t *testing.T) {
	k := newKernel(t)
	pod := func(path string) string { return filepath.Join(filepath.Dir(filepath.Dir(path)), filepath.Base(path)) }
	if got, err := k.PodLimit(); err != nil || got != (api.Resources{}) {
		t.Errorf("PodLimit = %v, %v; want none", got, err)
	}
	k.made.Write(map[bool]string{false: "150000", true: "150000 100000"}[k.made.V2], pod(k.made.File("cpu.cfs_quota_us", "cpu.max")))
	k.made.Write("536870912", pod(k.made.File("memory.limit_in_bytes", "memory.max")))
	if got, err := k.PodLimit(); err != nil || got != (api.Resources{CPUMilli: 1500, MemoryBytes: 512 * mib}) {
		t.Errorf("PodLimit = %v, %v; want 1500m and 512 MiB", got, err)
	}
	err := k.SetCPU(2000)
	if k.made.V2 && err != nil || !k.made.V2 && (!errors.Is(err, syscall.EINVAL) || !strings.Contains(err.Error(), "200000")) {
		t.Errorf("SetCPU above the pod's quota = %v: v1 refuses it, v2 does not", err)
	}
}

// A container that competes gets less for a smaller weight of its pod, and as much again once the
// weights are the same.
func TestKernelPodWeights(t *testing.T) {
	heavy := newKernel(t)
	light := openKernel(t, heavy.made.Beside())
	weights := map[*kernel]cgroup.PodWeight{}
	for _, k := range []*kernel{heavy, light} {
		w, err := k.PodWeight()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { w.Close() }) //nolint:errcheck // every write was checked
		weights[k] = w
	}
	if got, want := filepath.Dir(weights[heavy].Dir()), filepath.Dir(weights[light].Dir()); got != want {
		t.Fatalf("the pods are below %s and %s, so they do not compete", got, want)
	}
	set := func(k *kernel, weight int64) {
		t.Helper()
		w := weights[k]
		if err := w.Set(weight); err != nil {
			t.Fatal(err)
		}
		if got, err := w.Read(); err != nil || got != weight {
			t.Fatalf("a weight of %d, %v was read after %d was set", got, err, weight)
		}
		if got := cgrouptest.Line(t, k.made.PodFile("cpu.shares", "cpu.weight")); got != fmt.Sprint(weight) {
			t.Errorf("the file has %s after %d was set", got, weight)
		}
	}
	for _, weight := range []int64{weights[heavy].Least(), weights[heavy].Most(), 100} {
		set(heavy, weight)
	}
	for _, weight := range []int64{0, -1, weights[heavy].Least() - 1, weights[heavy].Most() + 1} {
		if err := weights[heavy].Set(weight); err == nil || !strings.Contains(err.Error(), "want") {
			t.Errorf("Set(%d) = %v, want an error that says what is accepted", weight, err)
		}
	}

	// Both want every CPU, so that weights decide on each.
	for _, k := range []*kernel{heavy, light} {
		l := k.made.Start(t)
		for range runtime.NumCPU() {
			l.Do("burn")
		}
	}
	// share waits until the light one has had part of what both have, in percent.
	share := func(what string, least, most int64) {
		t.Helper()
		var before, after [2]time.Duration
		read := func(into *[2]time.Duration) {
			for i, k := range []*kernel{heavy, light} {
				cpu, err := k.CPU()
				if err != nil {
					t.Fatal(err)
				}
				into[i] = cpu
			}
		}
		read(&before)
		light.until(what, func(cgroup.Reading) bool {
			read(&after)
			had, both := after[1]-before[1], after[0]-before[0]+after[1]-before[1]
			if both < 2*time.Second {
				return false
			}
			part := int64(100 * had / both)
			if part < least || part > most {
				before = after // a busy machine settles
				return false
			}
			return true
		})
	}
	set(heavy, 3000)
	set(light, 1000)
	share("a quarter of the CPU for a quarter of the weights", 15, 36)
	set(heavy, 1000)
	share("half of the CPU for half of the weights", 40, 60)
	set(light, 100)
	share("a tenth of the CPU for a tenth of the weights", 2, 20)
}

// The weight is the pod's: it is there when its container is not.
func TestKernelPodWeightWithoutContainer(t *testing.T) {
	k := newKernel(t)
	w, err := k.PodWeight()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close() //nolint:errcheck // every write was checked
	k.made.End()
	if err := w.Set(77); err != nil {
		t.Error(err)
	}
	again, err := cgroup.OpenPodWeight(w.Dir())
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close() //nolint:errcheck // nothing was written
	if got, err := again.Read(); err != nil || got != 77 {
		t.Errorf("a weight of %d, %v was read, want 77", got, err)
	}
	if _, err := cgroup.OpenPodWeight(w.Dir() + "-gone"); !errors.Is(err, cgroup.ErrNotFound) {
		t.Errorf("opening the weight of a pod that is gone = %v, want ErrNotFound", err)
	}
}

func TestKernelContainerEnded(t *testing.T) {
	k := newKernel(t)
	k.made.End()
	_, err := k.Read()
	for name, err := range map[string]error{"Read": err, "SetCPU": k.SetCPU(100)} {
		if !errors.Is(err, syscall.ENODEV) {
			t.Errorf("%s = %v, want ENODEV", name, err)
		}
	}
}

func BenchmarkKernelRead(b *testing.B) {
	k := newKernel(b)
	b.ReportAllocs()
	for b.Loop() {
		k.read()
	}
}

func BenchmarkKernelSetCPU(b *testing.B) {
	k := newKernel(b)
	milli := int64(500)
	b.ReportAllocs()
	for b.Loop() {
		milli ^= 1
		k.setCPU(milli)
	}
}

func BenchmarkKernelCPU(b *testing.B) {
	k := newKernel(b)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := k.CPU(); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkKernelSetWeight(b *testing.B) {
	w, err := newKernel(b).PodWeight()
	if err != nil {
		b.Fatal(err)
	}
	defer w.Close() //nolint:errcheck // every write was checked
	weight := int64(100)
	b.ReportAllocs()
	for b.Loop() {
		weight ^= 1
		if err := w.Set(weight); err != nil {
			b.Fatal(err)
		}
	}
}
