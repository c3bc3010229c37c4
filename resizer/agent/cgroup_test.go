package agent

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"libra.dev/libra/pkg/api"
)

const id = "8d3c0f5a9b"

// tree writes files, named by their path below the returned root.
func tree(t *testing.T, content map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, text := range content {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func v1Tree(cpu, cpuacct, memory, dir string) map[string]string {
	return map[string]string{
		filepath.Join(cpu, dir, "cpu.stat"):                 "nr_periods 10\nnr_throttled 3\nthrottled_time 70000000\n",
		filepath.Join(cpu, dir, "cpu.cfs_quota_us"):         "50000\n",
		filepath.Join(cpu, dir, "cpu.cfs_period_us"):        "100000\n",
		filepath.Join(cpuacct, dir, "cpuacct.usage"):        "1500000000\n",
		filepath.Join(memory, dir, "memory.usage_in_bytes"): "104857600\n",
		filepath.Join(memory, dir, "memory.limit_in_bytes"): "268435456\n",
		filepath.Join(memory, dir, "memory.stat"):           "cache 5\ninactive_file 7\ntotal_inactive_file 4857600\n",
	}
}

func v2Tree(dir string) map[string]string {
	return map[string]string{
		"cgroup.controllers":                 "cpu memory\n",
		filepath.Join(dir, "cpu.stat"):       "usage_usec 1500000\nuser_usec 1\nnr_throttled 3\nthrottled_usec 70000\n",
		filepath.Join(dir, "cpu.max"):        "50000 100000\n",
		filepath.Join(dir, "memory.current"): "104857600\n",
		filepath.Join(dir, "memory.max"):     "268435456\n",
		filepath.Join(dir, "memory.stat"):    "anon 5\ninactive_file 4857600\n",
	}
}

func TestCgroup(t *testing.T) {
	want := reading{
		cpu:       1500 * time.Millisecond,
		throttled: 70 * time.Millisecond,
		memory:    100_000_000,
		limit:     api.Resources{CPUMilli: 500, MemoryBytes: 256 << 20},
	}
	unlimited := want
	unlimited.limit = api.Resources{}
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
	crio := with(v2Tree("kubepods.slice/crio-" + id + ".scope"))
	crio["kubepods.slice/crio-conmon-"+id+".scope/cpu.stat"] = ""

	tests := map[string]struct {
		files map[string]string
		want  reading
		err   string
	}{
		"v1, cgroupfs":                       {files: v1Tree("cpu", "cpuacct", "memory", cgroupfs), want: want},
		"v1, joint hierarchy, systemd":       {files: v1Tree("cpu,cpuacct", "cpu,cpuacct", "memory", systemd), want: want},
		"v1, a cgroup root of the kubelet's": {files: v1Tree("cpu", "cpuacct", "memory", "libra-box/"+cgroupfs), want: want},
		"v1, no limits": {files: with(v1Tree("cpu", "cpuacct", "memory", cgroupfs),
			"cpu.cfs_quota_us", "-1\n", "memory.limit_in_bytes", "9223372036854771712\n"), want: unlimited},
		"v2, cgroupfs":      {files: v2Tree(cgroupfs), want: want},
		"v2, systemd":       {files: v2Tree(systemd), want: want},
		"v2, CRI-O":         {files: crio, want: want},
		"v2, no limits":     {files: with(v2Tree(cgroupfs), "cpu.max", "max 100000\n", "memory.max", "max\n"), want: unlimited},
		"no such container": {files: v2Tree("kubepods/burstable/pod7/other"), err: "container " + id + " has no cgroup below"},
		"no cgroups":        {files: map[string]string{"etc/passwd": ""}, err: "is no cgroup root"},
		"nonsense":          {files: with(v2Tree(cgroupfs), "memory.current", "much\n"), err: `"much" is no number`},
		"too deep":          {files: v2Tree(strings.Repeat("a/", searchDepth) + id), err: "has no cgroup"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := func() (reading, error) {
				c, err := openCgroup(tree(t, tc.files), id)
				if err != nil {
					return reading{}, err
				}
				defer c.Close()
				return c.read()
			}()
			if tc.err == "" && err != nil || tc.err != "" && (err == nil || !strings.Contains(err.Error(), tc.err)) {
				t.Fatalf("error %v, want one with %q", err, tc.err)
			}
			if diff := cmp.Diff(tc.want, got, cmp.AllowUnexported(reading{})); diff != "" {
				t.Errorf("reading (-want +got):\n%s", diff)
			}
		})
	}
}

func TestCgroupThroughALink(t *testing.T) {
	root := tree(t, v1Tree("cpu,cpuacct", "cpu,cpuacct", "memory", "kubepods/"+id))
	for _, link := range []string{"cpu", "cpuacct"} {
		if err := os.Symlink("cpu,cpuacct", filepath.Join(root, link)); err != nil {
			t.Fatal(err)
		}
	}
	c, err := openCgroup(root, id)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if r, err := c.read(); err != nil || r.cpu != 1500*time.Millisecond {
		t.Errorf("read = %+v, %v", r, err)
	}
}

// An open file shows what the kernel writes to it later.
func TestCgroupReadsAgain(t *testing.T) {
	root := tree(t, v2Tree("kubepods/"+id))
	c, err := openCgroup(root, id)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for _, want := range []int64{500, 900} {
		r, err := c.read()
		if err != nil {
			t.Fatal(err)
		}
		if r.limit.CPUMilli != want {
			t.Errorf("limit %v, want %dm", r.limit, want)
		}
		if err := os.WriteFile(filepath.Join(root, "kubepods", id, "cpu.max"), []byte("90000 100000\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}
