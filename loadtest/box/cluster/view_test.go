package cluster

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const machineStat = `cpu  100 20 3 4000 5 0 60 7 0 0
cpu0 40 10 1 1000 2 0 20 3 0 0
cpu1 60 10 2 3000 3 0 40 4 0 0
intr 4711 0 0 1
ctxt 99
btime 1700000000
softirq 12 1
`

func TestStatOf(t *testing.T) {
	lines := func(stat []byte) (got []string) {
		for line := range strings.Lines(string(stat)) {
			got = append(got, strings.Join(strings.Fields(line), " "))
		}
		return got
	}
	for name, tt := range map[string]struct {
		cpus []int
		want []string
	}{
		"one":  {[]int{1}, []string{"cpu 60 10 2 3000 3 0 40 4 0 0", "cpu1 60 10 2 3000 3 0 40 4 0 0"}},
		"both": {[]int{0, 1}, []string{"cpu 100 20 3 4000 5 0 60 7 0 0", "cpu0 40 10 1 1000 2 0 20 3 0 0", "cpu1 60 10 2 3000 3 0 40 4 0 0"}},
	} {
		want := append(tt.want, "ctxt 99", "btime 1700000000")
		if diff := cmp.Diff(want, lines(statOf([]byte(machineStat), tt.cpus))); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestStatKeepsItsLength(t *testing.T) {
	later := strings.NewReplacer("60", "1000060", "3000", "99993000").Replace(machineStat)
	if before, after := len(statOf([]byte(machineStat), []int{1})), len(statOf([]byte(later), []int{1})); before != after {
		t.Errorf("it has %d bytes, and when the times have grown %d: who reads meanwhile finds halves of lines", before, after)
	}
}

func TestMeminfoOf(t *testing.T) {
	const machine = "MemTotal:       24684092 kB\nMemFree:        15759844 kB\nMemAvailable:   21018128 kB\nBuffers:          428524 kB\nSwapTotal:             0 kB\n"
	const gib = int64(1) << 30
	got := string(meminfoOf([]byte(machine), 8*gib, 3*gib, gib))
	for _, want := range []string{"MemTotal:        8388608 kB\n", "MemFree:         5242880 kB\n", "MemAvailable:    6291456 kB\n", "Buffers:          428524 kB\n", "SwapTotal:             0 kB\n"} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in:\n%s", want, got)
		}
	}
	// Memory that others on the machine use is not free either.
	if got := string(meminfoOf([]byte(machine), 24*gib, 0, 0)); !strings.Contains(got, "MemAvailable:   21018128 kB\n") || !strings.Contains(got, "MemFree:        15759844 kB\n") {
		t.Errorf("more is free than the machine has:\n%s", got)
	}
	if got := string(meminfoOf([]byte(machine), gib, 2*gib, 0)); !strings.Contains(got, "MemFree:               0 kB\n") {
		t.Errorf("a node that uses more than it has:\n%s", got)
	}
}

func TestMemoryUsed(t *testing.T) {
	for name, tt := range map[string]struct {
		v2    bool
		files map[string]string
	}{
		"v1": {false, map[string]string{"memory.usage_in_bytes": "5000\n", "memory.stat": "cache 7\ninactive_file 1\ntotal_inactive_file 2000\n"}},
		"v2": {true, map[string]string{"memory.current": "5000\n", "memory.stat": "anon 7\ninactive_file 2000\n"}},
	} {
		dir := t.TempDir()
		for file, data := range tt.files {
			if err := os.WriteFile(filepath.Join(dir, file), []byte(data), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		s := cgroupSystem{unified: tt.v2, hierarchies: []hierarchy{{mount: t.TempDir(), v2: tt.v2}, {mount: dir, v2: tt.v2}}}
		if used, inactive, err := s.memoryUsed(); err != nil || used != 5000 || inactive != 2000 {
			t.Errorf("%s: %d used, %d of it inactive, %v", name, used, inactive, err)
		}
	}
	if _, _, err := (cgroupSystem{hierarchies: []hierarchy{{mount: t.TempDir()}}}).memoryUsed(); err == nil {
		t.Error("where nothing counts memory, none is used")
	}
}
