package agent

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"libra.dev/libra/pkg/api"
)

func TestJournal(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "made")
	j, err := openJournal(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := openJournal(dir); !errors.Is(err, errHeld) {
		t.Errorf("a second agent gets %v, want %v", err, errHeld)
	}
	d := debt{Version: journalVersion, Container: id, Pod: "default/p", Function: "default/f", Allocation: api.Resources{CPUMilli: 500}}
	for _, put := range []debt{{Container: id, Pod: "default/p"}, d} {
		if err := j.put(put); err != nil {
			t.Fatal(err)
		}
	}
	for _, container := range []string{"", "..", "../other", "a/b", strings.Repeat("a", 200)} {
		if err := j.put(debt{Container: container, Pod: "default/p"}); err == nil {
			t.Errorf("container %q was written down", container)
		}
	}
	for name, text := range map[string]string{
		"cut.json": `{"v":1,"conta`, "other.json": `{"v":1,"container":"id","pod":"default/p"}`,
		"newer.json": `{"v":2,"container":"newer","pod":"default/p"}`, "unfinished.json.new": "",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := j.close(); err != nil {
		t.Fatal(err)
	}
	if j, err = openJournal(dir); err != nil {
		t.Fatal(err)
	}
	defer j.close() //nolint:errcheck // the test ends
	for range 2 {
		debts, unread := j.load()
		if len(unread) != 3 {
			t.Errorf("unread are %v, want three files", unread)
		}
		if diff := cmp.Diff([]debt{d}, debts); diff != "" {
			t.Errorf("debts (-want +got):\n%s", diff)
		}
	}
	for range 2 {
		if err := j.remove(id); err != nil {
			t.Error(err)
		}
	}
	if debts, _ := j.load(); len(debts) != 0 {
		t.Errorf("debts %v after the last was removed", debts)
	}
	var left []string
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		left = append(left, e.Name())
	}
	if diff := cmp.Diff([]string{"cut.json", "lock", "newer.json", "other.json"}, left); diff != "" || err != nil {
		t.Errorf("%v; files left (-want +got):\n%s", err, diff)
	}
}

func TestJournalOfWeights(t *testing.T) {
	dir := t.TempDir()
	j, err := openJournal(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer j.close() //nolint:errcheck // the test ends
	d := weightDebt{Version: weightVersion, Container: id, Pod: "default/p", Function: "default/f", Path: "cpu/kubepods/pod7", Weight: 102}
	for _, put := range []weightDebt{{Container: id, Pod: "default/p", Path: "cpu", Weight: 7}, d} {
		if err := j.putWeight(put); err != nil {
			t.Fatal(err)
		}
	}
	for name, text := range map[string]string{
		"cut":    `{"v":1,"conta`,
		"other":  `{"v":1,"container":"id","pod":"default/p","path":"cpu/pod","weight":7}`,
		"newer":  `{"v":2,"container":"newer","pod":"default/p","path":"cpu/pod","weight":7}`,
		"away":   `{"v":1,"container":"away","pod":"default/p","path":"../pod","weight":7}`,
		"weigh0": `{"v":1,"container":"weigh0","pod":"default/p","path":"cpu/pod","weight":0}`,
	} {
		if err := os.WriteFile(filepath.Join(dir, name+weightSuffix), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	debts, unread := j.loadWeights()
	if len(debts) != 1 || debts[0] != d || len(unread) != 5 {
		t.Errorf("the journal has %+v, and %d files were not read: %v", debts, len(unread), errors.Join(unread...))
	}
	if limits, unread := j.load(); len(limits) > 0 || len(unread) > 0 {
		t.Errorf("weights are taken for limits: %+v, %v", limits, unread)
	}
	if err := j.removeWeight(id); err != nil {
		t.Fatal(err)
	}
	if debts, _ := j.loadWeights(); len(debts) > 0 {
		t.Errorf("debts are left: %+v", debts)
	}
}

// Uninstalling leaves nothing on the node, and an agent that restarts while it owes something
// finds that.
func TestAJournalThatOwesNothingLeavesNothing(t *testing.T) {
	dir := t.TempDir()
	left := func(of *journal) (names []string) {
		t.Helper()
		if err := of.close(); err != nil {
			t.Fatal(err)
		}
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			names = append(names, e.Name())
		}
		return names
	}
	open := func() *journal {
		t.Helper()
		j, err := openJournal(dir)
		if err != nil {
			t.Fatal(err)
		}
		return j
	}
	j := open()
	if err := j.put(debt{Container: id, Pod: "default/p"}); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{id + journalSuffix, journalLock}, left(j)); diff != "" {
		t.Errorf("with a debt (-want +got):\n%s", diff)
	}
	j = open()
	if err := j.remove(id); err != nil {
		t.Fatal(err)
	}
	if names := left(j); names != nil {
		t.Errorf("without one there are %v", names)
	}
}

// A lock opened before its name went away could be held beside the next one.
func TestALockWithoutItsNameLocksNothing(t *testing.T) {
	path := filepath.Join(t.TempDir(), journalLock)
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close() //nolint:errcheck // the test ends
	if !named(f) {
		t.Error("it has no name")
	}
	for _, change := range []func() error{
		func() error { return os.Remove(path) },
		func() error { return os.WriteFile(path, nil, 0o600) },
	} {
		if err := change(); err != nil {
			t.Fatal(err)
		}
		if named(f) {
			t.Error("it has a name, which is another's")
		}
	}
}
