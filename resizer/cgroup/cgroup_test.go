package cgroup

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/resizer/cgroup/cgrouptest"
)

const id = "8d3c0f5a9b"

func TestRead(t *testing.T) {
	want := Reading{
		CPU:              1500 * time.Millisecond,
		Throttled:        70 * time.Millisecond,
		ThrottledPeriods: 3,
		Memory:           100_000_000,
		Limit:            api.Resources{CPUMilli: 500, MemoryBytes: 256 << 20},
	}
	unlimited := want
	unlimited.Limit = api.Resources{}
	with := func(files map[string]string, changes ...string) map[string]string {
		for i := 0; i < len(changes); i += 2 {
			for name := range files {
				if strings.HasSuffix(name, changes[i]) {
					files[name] = changes[i+1]
				}
			}
		}
		return files
	}
	cgroupfs := "kubepods/burstable/pod7/" + id
	systemd := "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod7.slice/cri-containerd-" + id + ".scope"
	crio := with(cgrouptest.V2("kubepods.slice/crio-" + id + ".scope"))
	crio["kubepods.slice/crio-conmon-"+id+".scope/cpu.stat"] = ""

	tests := map[string]struct {
		files map[string]string
		want  Reading
		err   string
	}{
		"v1, cgroupfs":                       {files: cgrouptest.V1("cpu", "cpuacct", "memory", cgroupfs), want: want},
		"v1, joint hierarchy, systemd":       {files: cgrouptest.V1("cpu,cpuacct", "cpu,cpuacct", "memory", systemd), want: want},
		"v1, a cgroup root of the kubelet's": {files: cgrouptest.V1("cpu", "cpuacct", "memory", "libra-box/"+cgroupfs), want: want},
		"v1, no limits": {files: with(cgrouptest.V1("cpu", "cpuacct", "memory", cgroupfs),
			"cpu.cfs_quota_us", "-1\n", "memory.limit_in_bytes", "9223372036854771712\n"), want: unlimited},
		"v2, cgroupfs":                     {files: cgrouptest.V2(cgroupfs), want: want},
		"v2, systemd":                      {files: cgrouptest.V2(systemd), want: want},
		"v2, CRI-O":                        {files: crio, want: want},
		"v2, no limits":                    {files: with(cgrouptest.V2(cgroupfs), "cpu.max", "max 100000\n", "memory.max", "max\n"), want: unlimited},
		"v2, a guard is no limit":          {files: with(cgrouptest.V2(cgroupfs), "memory.high", "134217728\n"), want: want},
		"v1, the remains of a longer line": {files: with(cgrouptest.V1("cpu", "cpuacct", "memory", cgroupfs), "limit_in_bytes", "268435456\n11\n"), want: want},
		"v2, the remains of a longer line": {files: with(cgrouptest.V2(cgroupfs), "cpu.max", "50000 100000\n00\n"), want: want},
		"no such container":                {files: cgrouptest.V2("kubepods/burstable/pod7/other"), err: "container " + id + " was not found below"},
		"no cgroups":                       {files: map[string]string{"etc/passwd": ""}, err: "is not a cgroup root"},
		"nonsense":                         {files: with(cgrouptest.V2(cgroupfs), "memory.current", "much\n"), err: `"much" is not a number`},
		"too deep":                         {files: cgrouptest.V2(strings.Repeat("a/", searchDepth) + id), err: "no such cgroup"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := func() (Reading, error) {
				c, err := Open(cgrouptest.Tree(t, tc.files), id)
				if err != nil {
					return Reading{}, err
				}
				defer c.Close()
				return c.Read()
			}()
			if tc.err == "" && err != nil || tc.err != "" && (err == nil || !strings.Contains(err.Error(), tc.err)) {
				t.Fatalf("error %v, want one with %q", err, tc.err)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("reading (-want +got):\n%s", diff)
			}
		})
	}
}

func TestThroughALink(t *testing.T) {
	root := cgrouptest.Tree(t, cgrouptest.V1("cpu,cpuacct", "cpu,cpuacct", "memory", "kubepods/"+id))
	for _, link := range []string{"cpu", "cpuacct"} {
		if err := os.Symlink("cpu,cpuacct", filepath.Join(root, link)); err != nil {
			t.Fatal(err)
		}
	}
	c, err := Open(root, id)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if r, err := c.Read(); err != nil || r.CPU != 1500*time.Millisecond {
		t.Errorf("read = %+v, %v", r, err)
	}
}

// An open file shows what the kernel writes to it later.
func TestReadsAgain(t *testing.T) {
	root := cgrouptest.Tree(t, cgrouptest.V2("kubepods/"+id))
	c, err := Open(root, id)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for _, want := range []int64{500, 900} {
		r, err := c.Read()
		if err != nil {
			t.Fatal(err)
		}
		if r.Limit.CPUMilli != want {
			t.Errorf("limit %v, want %dm", r.Limit, want)
		}
		if err := os.WriteFile(filepath.Join(root, "kubepods", id, "cpu.max"), []byte("90000 100000\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}
