package cgroup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"pgregory.net/rapid"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/resizer/cgroup/cgrouptest"
)

// layouts are roots with one container each, whose directory is dir.
func layouts(t testing.TB) map[string]string {
	return map[string]string{
		"v1":                      cgrouptest.Tree(t, cgrouptest.V1("cpu", "cpuacct", "memory", dir)),
		"v2":                      cgrouptest.Tree(t, cgrouptest.V2(dir)),
		"v2 with an inner cgroup": cgrouptest.Tree(t, cgrouptest.V2Inner(dir)),
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

// After any sequence of changes, the kubelet's included, a reading has the last limits set.
func TestSequences(t *testing.T) {
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
					switch rapid.SampledFrom([]string{"cpu", "cpu", "period", "kubelet"}).Draw(rt, "step") {
					case "cpu":
						milli := rapid.Int64Range(0, 256_000).Draw(rt, "milli")
						if err := c.SetCPU(milli); err != nil {
							rt.Fatal(err)
						}
						limits.CPUMilli = c.Attainable(milli)
						if milli >= 1000 && limits.CPUMilli != milli {
							rt.Fatalf("%dm is said to be attainable as %dm", milli, limits.CPUMilli)
						}
					case "period":
						// The kernel scales nothing when the period changes, so neither do we.
						limits.CPUMilli = setPeriod(t, rt, root, layout, rapid.Int64Range(1000, 1_000_000).Draw(rt, "period"))
						if err := c.SetCPU(limits.CPUMilli); err != nil {
							rt.Fatal(err)
						}
						if _, err := c.Read(); err != nil {
							rt.Fatal(err)
						}
						limits.CPUMilli = c.Attainable(limits.CPUMilli)
					case "kubelet":
						limits.MemoryBytes = kubeletResets(t, root, layout, rapid.Int64Range(4096, 1<<30).Draw(rt, "bytes"))
					}
					got, err := c.Read()
					if err != nil {
						rt.Fatal(err)
					}
					if got.Limit != limits {
						rt.Fatalf("read %v, set %v", got.Limit, limits)
					}
				}
			})
		})
	}
}

// cpuMaxes are the files cpu.max of a container.
func cpuMaxes(t *testing.T, root string) []string {
	t.Helper()
	paths := []string{filepath.Join(root, dir, "cpu.max")}
	inner, err := filepath.Glob(filepath.Join(root, dir, "*", "cpu.max"))
	if err != nil {
		t.Fatal(err)
	}
	return append(paths, inner...)
}

func setPeriod(t *testing.T, rt *rapid.T, root, layout string, micros int64) int64 {
	if layout == "v1" {
		write(t, fmt.Sprintln(micros), root, "cpu", dir, "cpu.cfs_period_us")
	} else {
		for _, path := range cpuMaxes(t, root) {
			write(t, fmt.Sprintln("max", micros), path)
		}
	}
	return rapid.Int64Range(1000, 256_000).Draw(rt, "milli")
}

// kubeletResets writes what the runtime writes when a pod is patched: its limit.
func kubeletResets(t *testing.T, root, layout string, bytes int64) int64 {
	if layout == "v1" {
		write(t, fmt.Sprintln(bytes), root, "memory", dir, "memory.limit_in_bytes")
	} else {
		write(t, fmt.Sprintln(bytes), root, dir, "memory.max")
		if _, err := os.Stat(filepath.Join(root, dir, innerName)); err == nil {
			write(t, fmt.Sprintln(bytes), root, dir, innerName, "memory.max")
		}
	}
	return bytes
}

// The lower limit of two cgroups binds. A limit is set in both, and not written where it is there
// already. Throttling by either quota counts.
func TestInnerCgroup(t *testing.T) {
	root := cgrouptest.Tree(t, cgrouptest.V2Inner(dir))
	c := mustOpen(t, root)
	r, err := c.Read()
	if want := (api.Resources{CPUMilli: 500, MemoryBytes: 256 << 20}); err != nil || r.Limit != want || r.ThrottledPeriods != 5 || r.Throttled != 75*time.Millisecond {
		t.Fatalf("%+v, %v, want the limits %v and 75 ms throttled in 5 periods", r, err, want)
	}
	paths := cpuMaxes(t, root)
	if len(paths) != 2 {
		t.Fatalf("it has %q, want two", paths)
	}
	for i, path := range paths {
		write(t, "30000 100000\n", path)
		if got, err := c.CPULimit(); err != nil || got != 300 {
			t.Errorf("cgroup %d has 300m: the limit is %dm, %v", i, got, err)
		}
		const unwritten = "080000 100000\n" // as the kernel would not say it
		write(t, unwritten, paths[1-i])
		if err := c.SetCPU(800); err != nil {
			t.Fatal(err)
		}
		if got, err := c.CPULimit(); err != nil || got != 800 {
			t.Errorf("cgroup %d had 300m, and both were set to 800m: the limit is %dm, %v", i, got, err)
		}
		if text, err := os.ReadFile(paths[1-i]); err != nil || string(text) != unwritten {
			t.Errorf("cgroup %d was written though it had what it was to get: %q, %v", 1-i, text, err)
		}
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
			} {
				if err == nil || !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), "want 0") {
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
			for name, err := range map[string]error{"Read": err, "SetCPU": c.SetCPU(1), "Close": c.Close()} {
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
			var errs [2]error
			milli := int64(200)
			allocated := testing.AllocsPerRun(100, func() {
				milli ^= 1
				_, errs[0] = c.Read()
				errs[1] = c.SetCPU(milli)
			})
			if err := errors.Join(errs[:]...); err != nil || allocated != 0 {
				t.Errorf("%v allocations, %v", allocated, err)
			}
		})
	}
}
