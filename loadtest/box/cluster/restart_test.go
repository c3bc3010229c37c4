package cluster

import (
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"libra.dev/libra/loadtest/box/layout"
)

func TestRestartNamesWhatCanBe(t *testing.T) {
	for _, name := range []string{"", "kubelets", initName} {
		err := Cluster{}.Restart(t.Context(), "", name)
		if err == nil || !strings.Contains(err.Error(), "kubelet, ") && !strings.Contains(err.Error(), ", kubelet") {
			t.Errorf("%q: got %v, want an error that names the components", name, err)
		}
	}
}

func TestWhatEndedIsStartedAgain(t *testing.T) {
	l := layout.Layout{State: t.TempDir()}
	for _, dir := range []string{l.Run(), l.Logs()} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	n := newNode(alone(l))
	sleep := func(name string) component { return component{name: name, path: "/bin/sleep", args: []string{"60"}} }
	if err := n.start(sleep("first"), sleep("second")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for pid := range n.states {
			_ = unix.Kill(pid, unix.SIGKILL)
			_, _ = unix.Wait4(pid, nil, 0, nil)
		}
	})
	if again := n.takeEnded(false); len(again) != 0 {
		t.Fatalf("%v is to be started again, and nothing has ended", again)
	}

	killed := n.order[0].PID
	if err := unix.Kill(killed, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	var status unix.WaitStatus
	if _, err := unix.Wait4(killed, &status, 0, nil); err != nil {
		t.Fatal(err)
	}
	n.exited(killed, status)
	if err := n.start(n.takeEnded(false)...); err != nil {
		t.Fatal(err)
	}

	states, err := readStates(l)
	if err != nil {
		t.Fatal(err)
	}
	pids := map[string]int{}
	for _, s := range states {
		if s.Exit != "" || time.Since(s.Started) > time.Minute {
			t.Errorf("%+v is not running", s)
		}
		pids[s.Name] = s.PID
	}
	if len(states) != 2 || pids["first"] == killed || pids["first"] == 0 || pids["second"] == 0 {
		t.Errorf("init tells of %+v, want both, and the first with another pid than %d", states, killed)
	}
}
