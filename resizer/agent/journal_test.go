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
