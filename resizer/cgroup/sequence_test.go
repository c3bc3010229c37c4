package cgroup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"pgregory.net/rapid"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/resizer/cgroup/cgrouptest"
)

const fakeInUse = 100_000_000 // of which none can be reclaimed at once

// layouts are roots with one container each, whose directory is dir.
func layouts(t testing.TB) map[string]string {
	return map[string]string{
		"v1": cgrouptest.Tree(t, cgrouptest.V1("cpu", "cpuacct", "memory", dir)),
		"v2": cgrouptest.Tree(t, cgrouptest.V2(dir)),
	}
}

var dir = filepath.Join("kubepods", "pod7", id)

func mustOpen(t testing.TB, root string) Container {
	t.Helper()
	c, err := Open(root, id)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() }) //nolint:errcheck // some tests have closed it
	return c
}

func write(t testing.TB, text string, path ...string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(path...), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// After any sequence of changes, of the kubelet's among them, a reading has the last
// limits set, and lowering below the allocation leaves memory.max alone.
func TestSequences(t *testing.T) {
	const allocation = 256 << 20
	for layout, root := range layouts(t) {
		t.Run(layout, func(t *testing.T) {
			c := mustOpen(t, root)
			rapid.Check(t, func(rt *rapid.T) {
				want, err := c.Read()
				if err != nil {
					rt.Fatal(err)
				}
				limits := want.Limit
				for range rapid.IntRange(1, 30).Draw(rt, "steps") {
					switch rapid.SampledFrom([]string{"cpu", "memory", "memory", "period", "kubelet"}).Draw(rt, "step") {
					case "cpu":
						milli := rapid.Int64Range(0, 256_000).Draw(rt, "milli")
						if err := c.SetCPU(milli); err != nil {
							rt.Fatal(err)
						}
						limits.CPUMilli = c.Attainable(api.Resources{CPUMilli: milli}).CPUMilli
						if milli >= 1000 && limits.CPUMilli != milli {
							rt.Fatalf("%dm is said to be attainable as %dm", milli, limits.CPUMilli)
						}
					case "memory":
						bytes := rapid.Int64Range(4096, 4*allocation).Draw(rt, "bytes")
						err := c.SetMemory(bytes, allocation)
						if err != nil && !errors.Is(err, ErrInUse) {
							rt.Fatal(err)
						}
						if fits := layout == "v1" || max(bytes, allocation) >= fakeInUse; fits != (err == nil) {
							rt.Fatalf("setting %d bytes: %v", bytes, err)
						}
						limits.MemoryBytes = c.Attainable(api.Resources{MemoryBytes: bytes}).MemoryBytes
					case "period":
						// The kernel scales nothing when the period changes, so neither do we.
						limits.CPUMilli = setPeriod(t, rt, root, layout, rapid.Int64Range(1000, 1_000_000).Draw(rt, "period"))
						if err := c.SetCPU(limits.CPUMilli); err != nil {
							rt.Fatal(err)
						}
						if _, err := c.Read(); err != nil {
							rt.Fatal(err)
						}
						limits = c.Attainable(limits)
					case "kubelet":
						limits.MemoryBytes = kubeletResets(t, root, layout, allocation)
					}
					got, err := c.Read()
					if err != nil {
						rt.Fatal(err)
					}
					if got.Limit != limits {
						rt.Fatalf("read %v, set %v", got.Limit, limits)
					}
					if layout == "v2" {
						var most int64
						fmt.Sscan(cgrouptest.Line(t, root, dir, "memory.max"), &most) //nolint:errcheck // 0 fails below
						if most < allocation {
							rt.Fatalf("memory.max is %d, below the allocation", most)
						}
					}
				}
			})
		})
	}
}

func setPeriod(t *testing.T, rt *rapid.T, root, layout string, micros int64) int64 {
	if layout == "v1" {
		write(t, fmt.Sprintln(micros), root, "cpu", dir, "cpu.cfs_period_us")
	} else {
		write(t, fmt.Sprintln("max", micros), root, dir, "cpu.max")
	}
	return rapid.Int64Range(1000, 256_000).Draw(rt, "milli")
}

// kubeletResets writes what the runtime does when a pod is patched: its limit, and on
// v2 nothing to memory.high.
func kubeletResets(t *testing.T, root, layout string, allocation int64) int64 {
	if layout == "v1" {
		write(t, fmt.Sprintln(allocation), root, "memory", dir, "memory.limit_in_bytes")
		return allocation
	}
	write(t, fmt.Sprintln(allocation), root, dir, "memory.max")
	var high int64
	if _, err := fmt.Sscan(cgrouptest.Line(t, root, dir, "memory.high"), &high); err != nil {
		return allocation // "max"
	}
	return min(high, allocation)
}

// What is closed to writing shows which writes there are, and in which order.
func TestV2MemoryOrder(t *testing.T) {
	refused := errors.New("refused")
	const allocation, mib = 256 << 20, 1 << 20
	tests := map[string]struct {
		high, most string // before
		bytes      int64
		refuse     int // file
		err        bool
		wantHigh   string
		wantMax    string
	}{
		"lowering leaves memory.max":           {"max", "268435456", 200 * mib, v2MemoryMax, false, "209715200", "268435456"},
		"lowering more leaves memory.max":      {"209715200", "268435456", 120 * mib, v2MemoryMax, false, "125829120", "268435456"},
		"restoring leaves memory.max":          {"125829120", "268435456", allocation, v2MemoryMax, false, "max", "268435456"},
		"going above raises memory.max first":  {"max", "268435456", 512 * mib, v2MemoryHigh, true, "max", "536870912"},
		"coming down lets go when it fails":    {"max", "536870912", allocation, v2MemoryMax, true, "max", "536870912"},
		"coming down does not do without high": {"max", "536870912", allocation, v2MemoryHigh, true, "max", "536870912"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			root := cgrouptest.Tree(t, cgrouptest.V2(dir))
			write(t, tc.high+"\n", root, dir, "memory.high")
			write(t, tc.most+"\n", root, dir, "memory.max")
			c := mustOpen(t, root)
			c.(*v2).open[tc.refuse].readOnly = refused
			if err := c.SetMemory(tc.bytes, allocation); errors.Is(err, refused) != tc.err || err != nil && !tc.err {
				t.Errorf("SetMemory = %v", err)
			}
			if high, most := cgrouptest.Line(t, root, dir, "memory.high"), cgrouptest.Line(t, root, dir, "memory.max"); high != tc.wantHigh || most != tc.wantMax {
				t.Errorf("memory.high %s and memory.max %s, want %s and %s", high, most, tc.wantHigh, tc.wantMax)
			}
		})
	}
}

// memory.max below what is in use would kill, so it is never written.
func TestV2InUse(t *testing.T) {
	root := cgrouptest.Tree(t, cgrouptest.V2(dir))
	c := mustOpen(t, root)
	err := c.SetMemory(64<<20, 64<<20)
	if !errors.Is(err, ErrInUse) || !strings.Contains(err.Error(), "67108864") || !strings.Contains(err.Error(), "100000000") {
		t.Errorf("SetMemory = %v, want ErrInUse that names both sizes", err)
	}
	if got := cgrouptest.Line(t, root, dir, "memory.max"); got != "268435456" {
		t.Errorf("memory.max is %s, want what it was", got)
	}
	if got := cgrouptest.Line(t, root, dir, "memory.high"); got != "max" {
		t.Errorf("memory.high is %s, want max", got)
	}
}

func TestOutOfRange(t *testing.T) {
	for layout, root := range layouts(t) {
		t.Run(layout, func(t *testing.T) {
			c := mustOpen(t, root)
			before, err := c.Read()
			if err != nil {
				t.Fatal(err)
			}
			for name, err := range map[string]error{
				"-1m":                  c.SetCPU(-1),
				"9223372036854775807m": c.SetCPU(1<<63 - 1),
				"of 0 bytes":           c.SetMemory(0, 1<<20),
				"of -4096 bytes":       c.SetMemory(-4096, 1<<20),
				"allocation of 0":      c.SetMemory(1<<20, 0),
				"1152921504606846976":  c.SetMemory(1<<60, 1<<20),
			} {
				if err == nil || !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), "accepted") {
					t.Errorf("error %v, want one that has %q and says what is accepted", err, name)
				}
			}
			if after, err := c.Read(); err != nil || after.Limit != before.Limit {
				t.Errorf("limits %v, %v afterwards, want %v", after.Limit, err, before.Limit)
			}
		})
	}
}

func TestPodLimit(t *testing.T) {
	for layout, root := range layouts(t) {
		t.Run(layout, func(t *testing.T) {
			c := mustOpen(t, root)
			check := func(want api.Resources) {
				t.Helper()
				if got, err := c.PodLimit(); err != nil || got != want {
					t.Errorf("PodLimit = %v, %v; want %v", got, err, want)
				}
			}
			check(api.Resources{})
			pod := filepath.Dir(dir)
			if layout == "v1" {
				write(t, "150000\n", root, "cpu", pod, "cpu.cfs_quota_us")
				write(t, "536870912\n", root, "memory", pod, "memory.limit_in_bytes")
			} else {
				write(t, "150000 100000\n", root, pod, "cpu.max")
				write(t, "536870912\n", root, pod, "memory.max")
			}
			check(api.Resources{CPUMilli: 1500, MemoryBytes: 512 << 20})
		})
	}
}

func TestClosed(t *testing.T) {
	for layout, root := range layouts(t) {
		t.Run(layout, func(t *testing.T) {
			c := mustOpen(t, root)
			if err := c.Close(); err != nil {
				t.Fatal(err)
			}
			_, err := c.Read()
			for name, err := range map[string]error{"Read": err, "SetCPU": c.SetCPU(1), "SetMemory": c.SetMemory(1<<20, 1<<20), "Close": c.Close()} {
				if !errors.Is(err, os.ErrClosed) {
					t.Errorf("%s after Close = %v", name, err)
				}
			}
		})
	}
}

// A container whose cgroup is mounted read-only is observed all the same.
func TestReadOnly(t *testing.T) {
	for layout, root := range layouts(t) {
		t.Run(layout, func(t *testing.T) {
			c := mustOpen(t, root)
			var all *files
			switch c := c.(type) {
			case *v1:
				all = &c.files
			case *v2:
				all = &c.files
			}
			for i := range all.open {
				all.open[i].readOnly = syscall.EROFS
			}
			if _, err := c.Read(); err != nil {
				t.Error(err)
			}
			if err := c.SetCPU(100); !errors.Is(err, syscall.EROFS) || !strings.Contains(err.Error(), "mounted read-only") {
				t.Errorf("SetCPU = %v", err)
			}
		})
	}
}

func TestNothingIsAllocated(t *testing.T) {
	for layout, root := range layouts(t) {
		t.Run(layout, func(t *testing.T) {
			c := mustOpen(t, root)
			var errs [3]error
			bytes := int64(200 << 20)
			allocated := testing.AllocsPerRun(100, func() {
				bytes ^= 1 << 20
				_, errs[0] = c.Read()
				errs[1] = c.SetCPU(bytes >> 20)
				errs[2] = c.SetMemory(bytes, 256<<20)
			})
			if err := errors.Join(errs[:]...); err != nil || allocated != 0 {
				t.Errorf("%v allocations, %v", allocated, err)
			}
		})
	}
}
