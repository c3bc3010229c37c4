// Package cgrouptest makes directories that look like a node's cgroups, for tests
// that need no kernel: what is written is what is read, and nothing is refused.
package cgrouptest

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

// V1 returns the files of a v1 container in dir, below where its controllers are mounted: 500m and
// 256 MiB, of which 100,000,000 bytes are in use, in a pod without limits.
func V1(cpu, cpuacct, memory, dir string) map[string]string {
	pod := filepath.Dir(dir)
	return map[string]string{
		filepath.Join(cpu, pod, "cpu.cfs_quota_us"):         "-1\n",
		filepath.Join(cpu, pod, "cpu.cfs_period_us"):        "100000\n",
		filepath.Join(cpu, pod, "cpu.shares"):               "102\n",
		filepath.Join(memory, pod, "memory.limit_in_bytes"): "9223372036854771712\n",
		filepath.Join(cpu, dir, "cpu.stat"):                 "nr_periods 10\nnr_throttled 3\nthrottled_time 70000000\n",
		filepath.Join(cpu, dir, "cpu.cfs_quota_us"):         "50000\n",
		filepath.Join(cpu, dir, "cpu.cfs_period_us"):        "100000\n",
		filepath.Join(cpuacct, dir, "cpuacct.usage"):        "1500000000\n",
		filepath.Join(memory, dir, "memory.usage_in_bytes"): "104857600\n",
		filepath.Join(memory, dir, "memory.limit_in_bytes"): "268435456\n",
		filepath.Join(memory, dir, "memory.stat"):           "cache 5\ninactive_file 7\ntotal_inactive_file 4857600\n",
	}
}

// V2 returns the files of the same container on v2.
func V2(dir string) map[string]string {
	pod := filepath.Dir(dir)
	return map[string]string{
		"cgroup.controllers":                      "cpu memory\n",
		filepath.Join(pod, "cpu.max"):             "max 100000\n",
		filepath.Join(pod, "cpu.weight"):          "4\n",
		filepath.Join(pod, "memory.high"):         "max\n",
		filepath.Join(pod, "memory.max"):          "max\n",
		filepath.Join(dir, "cpu.stat"):            "usage_usec 1500000\nuser_usec 1\nnr_throttled 3\nthrottled_usec 70000\n",
		filepath.Join(dir, "cpu.max"):             "50000 100000\n",
		filepath.Join(dir, "memory.current"):      "104857600\n",
		filepath.Join(dir, "memory.high"):         "max\n",
		filepath.Join(dir, "memory.max"):          "268435456\n",
		filepath.Join(dir, "memory.pressure"):     "some avg10=0.00 avg60=0.00 avg300=0.00 total=2500\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=7\n",
		filepath.Join(dir, "memory.reclaim"):      "",
		filepath.Join(dir, "memory.events.local"): "low 0\nhigh 4\nmax 0\noom 0\noom_kill 0\n",
		filepath.Join(dir, "memory.stat"):         "anon 5\ninactive_file 4857600\n",
	}
}

// V2Inner returns the files of the same container where crun has made an inner cgroup for it.
func V2Inner(dir string) map[string]string {
	all := V2(dir)
	all[filepath.Join(dir, "container", "cpu.max")] = "50000 100000\n"
	all[filepath.Join(dir, "container", "cpu.stat")] = "usage_usec 1500000\nuser_usec 1\nnr_throttled 2\nthrottled_usec 5000\n"
	all[filepath.Join(dir, "container", "memory.max")] = "268435456\n"
	return all
}

// Tree writes files, named by their path below the root that it returns.
func Tree(t testing.TB, content map[string]string) (root string) {
	t.Helper()
	root = t.TempDir()
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

// Line returns the first line of a file. In the kernel that is the whole file; in a directory, the
// rest of a longer text may follow.
func Line(t testing.TB, path ...string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(path...))
	if err != nil {
		t.Fatal(err)
	}
	line, _, _ := bytes.Cut(text, []byte("\n"))
	return string(line)
}
