package cluster

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"libra.dev/libra/loadtest/box/layout"
)

func TestStateOfInit(t *testing.T) {
	const inNamespace, onMachine = "Name:\tbox\nNSpid:\t812\t1\nNSpgid:\t812\t1\n", "Name:\tbox\nNSpid:\t812\n"
	ours := layout.Layout{Cache: "/cache", State: "/state"}
	line := func(args ...string) string { return strings.Join(args, "\x00") + "\x00" }
	tests := []struct {
		name    string
		cmdline string
		status  string
		want    string
	}{
		{"the init", line(append([]string{"/repo/bin/box"}, initArgs(ours)...)...), inNamespace, "/state"},
		{"the init, run with another cache", line("box", "init", "--state", "/state", "--cache", "/other"), inNamespace, "/state"},
		{"the init of another node", line("box", "init", "--state", "/state2", "--cache", "/cache"), inNamespace, "/state2"},
		{"its command line, outside of the namespace", line("box", "init", "--state", "/state", "--cache", "/cache"), onMachine, ""},
		{"its child", line("box", "init", "--state", "/state", "--cache", "/cache"), "NSpid:\t813\t2\n", ""},
		{"an editor", line("vi", "box init --state /state --cache /cache"), onMachine, ""},
		{"another command", line("box", "up"), onMachine, ""},
		{"a zombie", "", inNamespace, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, isInit := stateOfInit([]byte(tt.cmdline), []byte(tt.status))
			if isInit != (tt.want != "") || isInit && got != tt.want {
				t.Errorf("stateOfInit() = %q, %t, want %q", got, isInit, tt.want)
			}
		})
	}
}

func TestNamespacePIDs(t *testing.T) {
	for status, want := range map[string][]int{
		"NSpid:\t7\n":              {7},
		"Pid:\t9\nNSpid:\t9\t3\t1": {9, 3, 1},
		"NSpid:\tx\n":              nil,
		"":                         nil,
	} {
		if diff := cmp.Diff(want, namespacePIDs([]byte(status))); diff != "" {
			t.Errorf("namespacePIDs(%q) (-want +got):\n%s", status, diff)
		}
	}
}

func TestChildren(t *testing.T) {
	cmd := exec.CommandContext(context.Background(), "sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	found, err := children(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if pid := found[cmd.Process.Pid]; pid != cmd.Process.Pid {
		t.Errorf("children() = %v, want one with pid %d", found, cmd.Process.Pid)
	}
}
