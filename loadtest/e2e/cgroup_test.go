//go:build e2e

package e2e

import (
	"syscall"
	"testing"

	"libra.dev/libra/loadtest/containers"
	"libra.dev/libra/pkg/api"
)

// cgroups has the cgroups of one container of the box.
type cgroups struct{ container containers.Container }

func findCgroups(t *testing.T, containerID string) cgroups {
	t.Helper()
	c, err := containers.Find(containerID)
	if err != nil {
		t.Fatal(err)
	}
	return cgroups{c}
}

func (c cgroups) limits() (api.Resources, error) { return c.container.Limits() }

// signal sends sig to every process of a container of the box.
func signal(t *testing.T, containerID string, sig syscall.Signal) {
	t.Helper()
	processes, err := findCgroups(t, containerID).container.Processes()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range processes {
		if err := p.Signal(sig); err != nil {
			t.Fatalf("signal %v to process %d of container %s: %v", sig, p.Pid, containerID, err)
		}
	}
}
