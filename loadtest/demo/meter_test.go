package main

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"libra.dev/libra/loadtest/demo/evaluation"
	"libra.dev/libra/resizer/cgroup"
)

func TestBusyIsAllButIdleAndWaiting(t *testing.T) {
	got, err := parseNodeCPU("cpu  100 20 300 4000 50 6 7 800 9 10\ncpu0 1 2 3 4 5 6 7 8 9 10\n")
	if want := (nodeCPU{4330 * time.Millisecond, 8 * time.Second}); err != nil || got != want {
		t.Errorf("got %v, %v; want %v: user, nice, system and interrupts, and what the hypervisor took", got, err, want)
	}
	for _, stat := range []string{"", "cpu 1 2 3\n", "cpu 1 2 3 4 5 6 7\n", "intr 1 2 3 4 5 6 7 8\n", "cpu a b c d e f g h\n"} {
		if _, err := parseNodeCPU(stat); err == nil || !strings.Contains(err.Error(), procStat) {
			t.Errorf("%q: got %v, want an error that names the file", stat, err)
		}
	}
}

func TestThePlatformIsWhatIsNobodyElses(t *testing.T) {
	at := func(node, stolen, functions, libra time.Duration) counters {
		return counters{nodeCPU{node, stolen}, functions, libra, libra / 2}
	}
	got := at(10*time.Second, 3*time.Second, 6*time.Second, time.Second).since(at(2*time.Second, time.Second, time.Second, 500*time.Millisecond))
	if diff := cmp.Diff(evaluation.Usage{Node: 8, Functions: 5, Libra: 0.5, Agents: 0.25, Platform: 2.5, Stolen: 2}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	got = at(time.Second, time.Second, 0, 0).since(at(2*time.Second, 3*time.Second, 0, 0))
	if diff := cmp.Diff(evaluation.Usage{}, got); diff != "" {
		t.Errorf("counters of the node that went back (-want +got):\n%s", diff)
	}
}

// container has used some CPU, or has ended.
type container struct {
	cgroup.Container
	cpu   time.Duration
	ended bool
}

func (c *container) CPU() (time.Duration, error) {
	if c.ended {
		return 0, cgroup.ErrNotFound
	}
	return c.cpu, nil
}

func TestAContainerThatEndsTakesNoneOfTheOthersUse(t *testing.T) {
	ends, stays := &container{cpu: 40 * time.Second}, &container{cpu: 5 * time.Second}
	all := []*metered{{Container: ends}, {Container: stays}}
	if got := used(all); got != 45*time.Second {
		t.Fatalf("got %s at first, want 45s", got)
	}
	ends.ended, stays.cpu = true, 8*time.Second
	if got := used(all); got != 48*time.Second {
		t.Errorf("got %s, want 48s: 40s of the one that ended and 8s of the other", got)
	}
}
