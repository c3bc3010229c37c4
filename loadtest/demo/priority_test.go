package main

import (
	"errors"
	"os"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"
)

func policies(t *testing.T) map[uint32]int {
	t.Helper()
	threads, err := os.ReadDir(threadsDir)
	if err != nil {
		t.Fatal(err)
	}
	found := map[uint32]int{}
	for _, thread := range threads {
		id, err := strconv.Atoi(thread.Name())
		if err != nil {
			t.Fatal(err)
		}
		attr, err := unix.SchedGetAttr(id, 0)
		if errors.Is(err, unix.ESRCH) {
			continue
		} else if err != nil {
			t.Fatal(err)
		}
		found[attr.Policy]++
	}
	return found
}

// All threads run ahead, and none does afterwards.
func TestRunAhead(t *testing.T) {
	stop, err := runAhead()
	if errors.Is(err, unix.EPERM) {
		t.Skip("it takes root: ", err)
	} else if err != nil {
		t.Fatal(err)
	}
	ahead := policies(t)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	if ahead[unix.SCHED_RR] == 0 || ahead[unix.SCHED_NORMAL] > 0 {
		t.Errorf("threads by policy are %v, want all in round robin (%d)", ahead, unix.SCHED_RR)
	}
	if after := policies(t); after[unix.SCHED_RR] > 0 {
		t.Errorf("threads by policy are %v afterwards, want none in round robin (%d)", after, unix.SCHED_RR)
	}
}
