package containers

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"libra.dev/libra/pkg/api"
)

const id = "0123abcd"

func TestContainerOnBothVersions(t *testing.T) {
	const pod = "libra-box/kubepods/burstable/pod1/" + id
	for version, files := range map[string]map[string]string{
		"v1": {
			"cpu/" + filepath.Dir(pod) + "/cpu.shares": "128\n",
			"cpu/" + pod + "/cpu.cfs_quota_us":         "70000\n",
			"cpu/" + pod + "/cpu.cfs_period_us":        "100000\n",
			"memory/" + pod + "/memory.limit_in_bytes": "268435456\n",
			"memory/" + pod + "/memory.usage_in_bytes": "5000\n",
			"memory/" + pod + "/memory.stat":           "cache 7\ntotal_inactive_file 2000\n",
			"memory/" + pod + "/memory.oom_control":    "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n",
			"pids/" + pod + "/cgroup.procs":            "",
		},
		"v2": {
			"cgroup.controllers":              "cpu memory pids\n",
			filepath.Dir(pod) + "/cpu.weight": "128\n",
			pod + "/cpu.max":                  "70000 100000\n",
			pod + "/memory.max":               "max\n",
			pod + "/memory.high":              "268435456\n",
			pod + "/memory.current":           "5000\n",
			pod + "/memory.stat":              "anon 7\ninactive_file 2000\n",
			pod + "/memory.events":            "low 0\noom 9\noom_kill 3\n",
			pod + "/cgroup.procs":             "",
			pod + "-other/memory.high":        "1\n",
		},
	} {
		root := t.TempDir()
		for name, content := range files {
			path := filepath.Join(root, name)
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		c, err := findBelow(root, id)
		if err != nil {
			t.Fatalf("%s: %v", version, err)
		}
		limits, err := c.Limits()
		if want := (api.Resources{CPUMilli: 700, MemoryBytes: 256 << 20}); err != nil || limits != want {
			t.Errorf("%s: limits are %v, %v; want %v", version, limits, err, want)
		}
		if kills, err := c.OOMKills(); err != nil || kills != 3 {
			t.Errorf("%s: %d OOM kills, %v; want 3", version, kills, err)
		}
		if _, err := c.Processes(); err == nil {
			t.Errorf("%s: a container without a process is no error", version)
		}
		p := c.Pod()
		if weight, err := p.Weight(); err != nil || weight != 128 {
			t.Errorf("%s: the weight is %d, %v; want 128", version, weight, err)
		}
		if filepath.Base(p.Parent()) != "burstable" || p != c.Pod() {
			t.Errorf("%s: the parent of %v is %s", version, p, p.Parent())
		}
		if _, err := findBelow(root, "another"); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: another container: %v, want that it does not exist", version, err)
		}
	}
}

// The weights are those that the kubelet of 1.36
// writes for these requests.
func TestKubeletWeight(t *testing.T) {
	v1, v2 := Pod{}, Pod{v2: true}
	for milli, want := range map[int64]struct{ v1, v2 int64 }{
		0: {2, 1}, 1: {2, 1}, 10: {10, 1}, 125: {128, 5}, 1000: {1024, 39}, 256_000: {262_144, 10_000}, 1_000_000: {262_144, 10_000},
	} {
		if got := v1.KubeletWeight(milli); got != want.v1 {
			t.Errorf("%dm has %d shares, want %d", milli, got, want.v1)
		}
		if got := v2.KubeletWeight(milli); got != want.v2 {
			t.Errorf("%dm has the weight %d, want %d", milli, got, want.v2)
		}
	}
}
