package main

import (
	"bytes"
	"strings"
	"testing"
)

func TestRefused(t *testing.T) {
	for _, args := range []string{
		"--only=everything", "--nodes=0", "--pods=50001", "--pods=1000", "--opted-in=95", "--loans=0", "--length=1s", "--agent-length=2h",
		"--takeovers=0", "--agent-pods=0", "--in-flight=111", "--kubelite=/nowhere", "--kwok=/nowhere", "--controller=/nowhere", "--agent=/nowhere", "--colour=red",
	} {
		cmd := newRoot()
		cmd.SetArgs([]string{args, "--out", t.TempDir()})
		cmd.SetOut(&bytes.Buffer{})
		flag, _, _ := strings.Cut(args, "=")
		if flag == "--pods" && args == "--pods=1000" {
			flag = "--opted-in" // with one pod on each node, none can opt in
		}
		if err := cmd.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), flag) {
			t.Errorf("%s: got error %v, want one that names the flag", args, err)
		}
	}
}

// Bad values are reported at once, and good ones are not.
func TestDefaultsAreAccepted(t *testing.T) {
	for _, quick := range []string{"--quick=false", "--quick"} {
		cmd := newRoot()
		cmd.SetArgs([]string{quick, "--out", t.TempDir(), "--kubelite=/nowhere"})
		err := cmd.ExecuteContext(t.Context())
		if err == nil || !strings.Contains(err.Error(), "box path kubelite") {
			t.Errorf("got error %v, want one that says where the binary comes from", err)
		}
		for _, flag := range []string{"--nodes", "--pods", "--opted-in", "--loans", "--length", "--takeovers", "--agent-pods", "--in-flight", "--agent-length"} {
			if strings.Contains(err.Error(), flag+" is") {
				t.Errorf("the default of %s is refused: %v", flag, err)
			}
		}
	}
}

func TestHelp(t *testing.T) {
	cmd := newRoot()
	cmd.SetArgs([]string{"--help"})
	var out bytes.Buffer
	cmd.SetOut(&out)
	if err := cmd.ExecuteContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"--quick", "--seed", "--commit", "KWOK", "root"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the help does not tell of %s:\n%s", want, out.String())
		}
	}
}
