package actuate

import (
	"errors"
	"path/filepath"
	"testing"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/resizer/cgroup"
	"libra.dev/libra/resizer/cgroup/cgrouptest"
)

func TestCgroupSetLimits(t *testing.T) {
	const id, mib = "8d3c0f5a9b", int64(1) << 20
	c, err := cgroup.Open(cgrouptest.Tree(t, cgrouptest.V2(filepath.Join("kubepods", "pod7", id))), id)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	a := Cgroup(c, 256*mib)
	set := func(limits, want api.Resources, wantErr error) {
		t.Helper()
		if err := a.SetLimits(t.Context(), limits); !errors.Is(err, wantErr) || err != nil && wantErr == nil {
			t.Errorf("SetLimits(%v) = %v, want %v", limits, err, wantErr)
		}
		r, err := c.Read()
		if err != nil {
			t.Fatal(err)
		}
		if r.Limit != want {
			t.Errorf("limits %v after setting %v, want %v", r.Limit, limits, want)
		}
	}
	set(api.Resources{CPUMilli: 300}, api.Resources{CPUMilli: 300, MemoryBytes: 256 * mib}, nil)
	set(api.Resources{MemoryBytes: 128 * mib}, api.Resources{CPUMilli: 300, MemoryBytes: 128 * mib}, nil)
	set(api.Resources{CPUMilli: 700, MemoryBytes: 512 * mib}, api.Resources{CPUMilli: 700, MemoryBytes: 512 * mib}, nil)

	// Memory that is in use does not keep CPU from being set.
	a = Cgroup(c, 64*mib)
	set(api.Resources{CPUMilli: 200, MemoryBytes: 64 * mib}, api.Resources{CPUMilli: 200, MemoryBytes: 512 * mib}, cgroup.ErrInUse)

	allocated := testing.AllocsPerRun(100, func() {
		if err := a.SetLimits(t.Context(), api.Resources{CPUMilli: 300, MemoryBytes: 512 * mib}); err != nil {
			t.Error(err)
		}
	})
	if allocated != 0 {
		t.Errorf("%v allocations", allocated)
	}
}
