package cgroup

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"libra.dev/libra/resizer/cgroup/cgrouptest"
)

func TestReclaimer(t *testing.T) {
	files := cgrouptest.V2(dir)
	files[filepath.Join(dir, "memory.stat")] = "anon 5\nfile 9000000\nfile_dirty 4096\nfile_writeback 8192\ninactive_file 4857600\n" +
		"workingset_refault_anon 7\nworkingset_refault_file 3\n"
	root := cgrouptest.Tree(t, files)
	r, err := mustOpen(t, root).Reclaimer()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close() //nolint:errcheck // every write was checked
	want := Cache{Used: 104857600, Inactive: 4857600, Unclean: 12288, Refaults: 3 * int64(os.Getpagesize()), Waited: 2500 * time.Microsecond}
	got, err := r.Read()
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("Read (-want +got): %v\n%s", err, diff)
	}
	if err := r.Reclaim(1 << 20); err != nil {
		t.Error(err)
	}
	if got := cgrouptest.Line(t, root, dir, "memory.reclaim"); got != "1048576 swappiness=0" {
		t.Errorf("%q was written", got)
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	_, err = r.Read()
	for name, err := range map[string]error{"Read": err, "Reclaim": r.Reclaim(1)} {
		if !errors.Is(err, os.ErrClosed) {
			t.Errorf("%s of what is closed = %v", name, err)
		}
	}
}

// Without a file that reclaims, or one that tells what that does, the error differs from that of a
// container that has ended.
func TestNoReclaimer(t *testing.T) {
	for missing, supported := range map[string]bool{"memory.reclaim": false, "memory.pressure": false, "memory.current": true} {
		root := cgrouptest.Tree(t, cgrouptest.V2(dir))
		c := mustOpen(t, root)
		if err := os.Remove(filepath.Join(root, dir, missing)); err != nil {
			t.Fatal(err)
		}
		_, err := c.Reclaimer()
		if !errors.Is(err, os.ErrNotExist) || errors.Is(err, errors.ErrUnsupported) == supported {
			t.Errorf("Reclaimer without %s = %v", missing, err)
		}
	}
	if _, err := mustOpen(t, layouts(t)["v1"]).Reclaimer(); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("Reclaimer on v1 = %v", err)
	}
}

func TestSwappable(t *testing.T) {
	const head = "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n"
	const swap = head + "/dev/vda2                               partition\t1048572\t\t0\t\t-2\n"
	for name, tc := range map[string]struct {
		most, swaps string // no such file when empty
		want        bool
	}{
		"no swap":                           {"max\n", head, false},
		"none for it":                       {"0\n", swap, false},
		"some for it":                       {"4096\n", swap, true},
		"as much as there is":               {"max\n", swap, true},
		"a kernel that does not count swap": {"", swap, true},
		"a kernel without swap":             {"", "", false},
	} {
		files := map[string]string{"swaps": tc.swaps, "memory.swap.max": tc.most}
		for file, text := range files {
			if text == "" {
				delete(files, file)
			}
		}
		root := cgrouptest.Tree(t, files)
		r := reclaimer{dir: root, swaps: filepath.Join(root, "swaps")}
		if got := r.swappable(); got != tc.want {
			t.Errorf("%s: swappable is %t", name, got)
		}
	}
}
