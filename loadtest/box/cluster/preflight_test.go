package cluster

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"libra.dev/libra/loadtest/box/layout"
)

func TestRoutesInTheWay(t *testing.T) {
	r := func(dst, device string) route { return route{netip.MustParsePrefix(dst), device} }
	tests := []struct {
		name   string
		routes []route
		want   Problems
	}{{
		name:   "neighbours",
		routes: []route{r("192.168.1.0/24", "eth0"), r("10.243.0.0/16", "eth1"), r("10.245.0.4/30", "eth2")},
	}, {
		name:   "the same range, in two tables",
		routes: []route{r("10.244.0.0/24", "cni0"), r("10.244.0.0/24", "cni0")},
		want:   Problems{"the address range 10.244.0.0/24 is in use: the machine has a route to 10.244.0.0/24 (cni0)"},
	}, {
		name:   "a part of a range",
		routes: []route{r("10.96.7.1/32", "lo")},
		want:   Problems{"the address range 10.96.0.0/16 is in use: the machine has a route to 10.96.7.1/32 (lo)"},
	}, {
		name:   "a range that holds all of ours",
		routes: []route{r("10.0.0.0/8", "tun0")},
		want: Problems{
			"the address range 10.244.0.0/24 is in use: the machine has a route to 10.0.0.0/8 (tun0)",
			"the address range 10.96.0.0/16 is in use: the machine has a route to 10.0.0.0/8 (tun0)",
			"the address range 10.245.0.0/30 is in use: the machine has a route to 10.0.0.0/8 (tun0)",
		},
	}}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, routesInTheWay(tt.routes, append(boxCIDRs(membersOf(testLayout, 1)), linkCIDR))); diff != "" {
				t.Errorf("routesInTheWay() (-want +got):\n%s", diff)
			}
		})
	}
}

func TestOtherBox(t *testing.T) {
	inits, err := runningInits()
	if err != nil {
		t.Fatal(err)
	}
	var l layout.Layout
	for _, state := range inits {
		l.State = state // a running box's, as these tests may run beside one
	}
	mount := t.TempDir()
	groups := cgroupSystem{hierarchies: []hierarchy{{mount: mount}}}
	if other, err := otherBox(l, groups); other != "" || err != nil {
		t.Errorf("otherBox() = %q, %v, want none", other, err)
	}
	pod := filepath.Join(mount, cgroupName, "kubepods", "pod1")
	if err := os.MkdirAll(pod, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(pod, "cgroup.procs"), []byte("4711\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if other, err := otherBox(l, groups); err != nil || !strings.Contains(other, "4711") {
		t.Errorf("otherBox() = %q, %v, want a sentence that names the process", other, err)
	}
}

func TestTooLittleDisk(t *testing.T) {
	notThereYet := filepath.Join(t.TempDir(), "a", "b")
	if p := tooLittleDisk(notThereYet, 1, "the box"); p != nil {
		t.Errorf("one byte is too much: %v", p)
	}
	p := tooLittleDisk(notThereYet, 1<<60, "the box")
	if len(p) != 1 || !strings.Contains(p[0], "the box needs 1073741824 GiB") {
		t.Errorf("tooLittleDisk() = %v, want one sentence with what is needed", p)
	}
}

func TestProblems(t *testing.T) {
	if err := (Problems{}).orNil(); err != nil {
		t.Errorf("no problems are the error %v", err)
	}
	err := Problems{"one.", "two."}.orNil()
	if err == nil || !strings.HasSuffix(err.Error(), "\n  - one.\n  - two.") {
		t.Errorf("error %v, want a line for each problem", err)
	}
}
