package cluster

import (
	"context"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

const (
	mountsV1 = `23 1 0:21 / /proc rw,relatime - proc proc rw
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:12 - cgroup cgroup rw,cpu,cpuacct
34 31 0:31 / /sys/fs/cgroup/cpuset rw,relatime - cgroup cgroup rw,cpuset
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,xattr,release_agent=/lib/agent,name=systemd
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
`
	mountsV2 = "31 23 0:28 / /sys/fs/cgroup rw,nosuid,nodev shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"
)

func TestCgroupSystem(t *testing.T) {
	tests := []struct {
		name          string
		mounts        string
		v2Controllers string
		wantUnified   bool
		wantOurs      []string
		wantMissing   []string
	}{{
		name:   "v1 without some controllers",
		mounts: mountsV1,
		wantOurs: []string{
			"/sys/fs/cgroup/cpu,cpuacct/libra-box", "/sys/fs/cgroup/cpuset/libra-box", "/sys/fs/cgroup/memory/libra-box",
			"/sys/fs/cgroup/systemd/libra-box", "/sys/fs/cgroup/unified/libra-box",
		},
		wantMissing: []string{"pids", "devices", "freezer"},
	}, {
		name:          "v2",
		mounts:        mountsV2,
		v2Controllers: "cpuset cpu io memory hugetlb pids\n",
		wantUnified:   true,
		wantOurs:      []string{"/sys/fs/cgroup/libra-box"},
	}, {
		name:          "v2 without the memory controller",
		mounts:        mountsV2,
		v2Controllers: "cpuset cpu pids",
		wantUnified:   true,
		wantOurs:      []string{"/sys/fs/cgroup/libra-box"},
		wantMissing:   []string{"memory"},
	}, {
		name:        "none mounted",
		wantUnified: true,
		wantMissing: []string{"cpu", "cpuset", "memory", "pids"},
	}}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s, err := parseCgroupMounts(strings.NewReader(tt.mounts))
			if err != nil {
				t.Fatal(err)
			}
			if s.unified != tt.wantUnified {
				t.Errorf("unified = %t, want %t", s.unified, tt.wantUnified)
			}
			if diff := cmp.Diff(tt.wantOurs, s.ours()); diff != "" {
				t.Errorf("ours() (-want +got):\n%s", diff)
			}
			got := s.missing(tt.v2Controllers)
			if len(got) == 0 {
				got = nil
			}
			if diff := cmp.Diff(tt.wantMissing, got); diff != "" {
				t.Errorf("missing() (-want +got):\n%s", diff)
			}
		})
	}
}

// A process outside weighs 1,024 on v1 and 100 on v2, on the processor that it is on.
func TestWeighAsMuchAsAProcessOnEachProcessor(t *testing.T) {
	for file, process := range map[string]int{"cpu.shares": 1024, "cpu.weight": 100} {
		dir := t.TempDir()
		path := filepath.Join(dir, file)
		if err := os.WriteFile(path, []byte("1"), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := weigh(dir, runtime.NumCPU()); err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if got, want := string(text), strconv.Itoa(process*runtime.NumCPU()); got != want {
			t.Errorf("%s is %q, want %q", file, got, want)
		}
		files, err := os.ReadDir(dir)
		if err != nil || len(files) != 1 {
			t.Errorf("%d files (%v) where there was %s alone: the other version's was made", len(files), err, file)
		}
	}
}

func TestDelegate(t *testing.T) {
	dir := t.TempDir()
	if err := delegate(dir); err == nil || !strings.Contains(err.Error(), dir) {
		t.Errorf("delegate() = %v where no controllers are listed, want an error that names %s", err, dir)
	}
	if err := os.WriteFile(filepath.Join(dir, "cgroup.controllers"), []byte("cpuset cpu io memory hugetlb pids\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := delegate(dir); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(filepath.Join(dir, "cgroup.subtree_control"))
	if err != nil {
		t.Fatal(err)
	}
	if want := "+cpuset +cpu +io +memory +hugetlb +pids"; string(got) != want {
		t.Errorf("delegated %q, want %q", got, want)
	}
}

func TestRemoveCgroups(t *testing.T) {
	mount := t.TempDir()
	s := cgroupSystem{hierarchies: []hierarchy{{mount: mount}}}
	if err := os.MkdirAll(filepath.Join(mount, cgroupName, "kubepods", "pod1", "container"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(mount, "somebody-else"), 0o755); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for range 2 { // there, and gone already
		if err := s.remove(ctx); err != nil {
			t.Fatal(err)
		}
	}
	left, err := os.ReadDir(mount)
	if err != nil {
		t.Fatal(err)
	}
	if len(left) != 1 || left[0].Name() != "somebody-else" {
		t.Errorf("left: %v, want somebody-else's only", left)
	}
}

func TestRemoveCgroupsInUse(t *testing.T) {
	mount := t.TempDir()
	dir := filepath.Join(mount, cgroupName)
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	// An ordinary file keeps the folder from being removed, as a process keeps a cgroup.
	if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte("4711\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	err := cgroupSystem{hierarchies: []hierarchy{{mount: mount}}}.remove(ctx)
	if err == nil || !strings.Contains(err.Error(), "4711") {
		t.Errorf("remove() = %v, want an error that names the process", err)
	}
}

// Each of several nodes is in a folder of its own, with its CPUs, and sees it as the root.
func TestNodesHaveCgroupsOfTheirOwn(t *testing.T) {
	mount := t.TempDir()
	s := cgroupSystem{hierarchies: []hierarchy{{mount: mount}}}
	members := membersOf(testLayout, 3)
	for _, m := range members[1:] {
		// The kernel has these files there.
		dir := filepath.Join(mount, m.cgroup())
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		for _, file := range []string{"cpuset.cpus", "cpu.shares"} {
			if err := os.WriteFile(filepath.Join(dir, file), nil, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.createAmong(m, m.cpus([]int{0, 1}), 4711); err != nil {
			t.Fatal(err)
		}
		for file, want := range map[string]string{"cpuset.cpus": strconv.Itoa(m.number - 1), "cpu.shares": "1024", "cgroup.procs": "4711"} {
			if got, err := os.ReadFile(filepath.Join(dir, file)); err != nil || string(got) != want {
				t.Errorf("%s of %s is %q (%v), want %q", file, m.name(), got, err, want)
			}
		}
	}
	own := cgroupSystem{hierarchies: []hierarchy{{mount: filepath.Join(mount, members[2].cgroup())}}}
	if err := own.occupy(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(mount, "libra-box", "w2", "node", "cgroup.procs")); err != nil {
		t.Error(err)
	}
}
