//go:build e2e

package e2e

import (
	"syscall"
	"testing"

	"libra.dev/libra/loadtest/containers"
)

// findCgroups returns the cgroups of one container of the box.
func findCgroups(t *testing.T, containerID string) containers.Container {
	t.Helper()
	c, err := containers.Find(containerID)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// signal sends sig to every process of a container of the box.
func signal(t *testing.T, containerID string, sig syscall.Signal) {
	t.Helper()
	processes, err := findCgroups(t, containerID).Processes()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range processes {
		if err := p.Signal(sig); err != nil {
			t.Fatalf("signal %v to process %d of container %s: %v", sig, p.Pid, containerID, err)
		}
	}
}
