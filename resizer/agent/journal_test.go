package agent

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"

	"libra.dev/libra/pkg/api"
)

// testJournal is a journal whose errors a test counts.
type testJournal struct {
	*journal
	testing.TB
	told *sdkmetric.ManualReader
}

func openTestJournal(t testing.TB, dir string) (*testJournal, error) {
	t.Helper()
	told := sdkmetric.NewManualReader()
	m, err := newMetrics(sdkmetric.NewMeterProvider(sdkmetric.WithReader(told)))
	if err != nil {
		t.Fatal(err)
	}
	j, err := openJournal(dir, logr.Discard(), m.journalErrors)
	return &testJournal{j, t, told}, err
}

func newTestJournal(t testing.TB, dir string) *testJournal {
	t.Helper()
	j, err := openTestJournal(t, dir)
	if err != nil {
		t.Fatal(err)
	}
	return j
}

// read loads the journal and returns how many files it could not read.
func (j *testJournal) read() (found owed, unread int64) {
	j.Helper()
	before := j.counted()
	found = j.load()
	return found, j.counted() - before
}

func (j *testJournal) counted() int64 {
	return (&rig{fatal: j, ctx: j.Context(), metrics: j.told}).counted("libra.agent.journal.errors", "")
}

func TestJournal(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "made")
	j := newTestJournal(t, dir)
	if _, err := openTestJournal(t, dir); !errors.Is(err, errHeld) {
		t.Errorf("a second agent gets %v, want %v", err, errHeld)
	}
	d := debt{Version: journalVersion, Container: id, Pod: "default/p", Function: "default/f", Allocation: api.Resources{CPUMilli: 500}}
	for _, put := range []debt{{Container: id, Pod: "default/p"}, d} {
		if err := j.put(id, limitSuffix, put); err != nil {
			t.Fatal(err)
		}
	}
	for _, container := range []string{"", "..", "../other", "a/b", strings.Repeat("a", 200)} {
		if err := j.put(container, limitSuffix, debt{Container: container, Pod: "default/p"}); err == nil {
			t.Errorf("container %q was written down", container)
		}
	}
	if n := j.counted(); n != 5 {
		t.Errorf("%d errors are counted, want those 5", n)
	}
	for name, text := range map[string]string{
		"cut.json": `{"v":1,"conta`, "other.json": `{"v":1,"container":"id","pod":"default/p"}`,
		"newer.json": `{"v":2,"container":"newer","pod":"default/p"}`, "unfinished.json.new": "", "unknown.debt": "",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := j.close(); err != nil {
		t.Fatal(err)
	}
	j = newTestJournal(t, dir)
	defer j.close() //nolint:errcheck // the test ends
	for range 2 {
		found, unread := j.read()
		if unread != 4 {
			t.Errorf("%d files were not read, want four", unread)
		}
		if diff := cmp.Diff([]debt{d}, found.limits); diff != "" {
			t.Errorf("debts (-want +got):\n%s", diff)
		}
	}
	for range 2 {
		before := j.counted()
		if j.forget(id, limitSuffix); j.counted() != before {
			t.Error("forgetting failed")
		}
	}
	if found, _ := j.read(); len(found.limits) != 0 {
		t.Errorf("debts %v after the last was removed", found.limits)
	}
	var left []string
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		left = append(left, e.Name())
	}
	if diff := cmp.Diff([]string{"cut.json", "lock", "newer.json", "other.json", "unknown.debt"}, left); diff != "" || err != nil {
		t.Errorf("%v; files left (-want +got):\n%s", err, diff)
	}
}

func TestJournalOfWeights(t *testing.T) {
	dir := t.TempDir()
	j := newTestJournal(t, dir)
	defer j.close() //nolint:errcheck // the test ends
	d := weightDebt{Version: journalVersion, Container: id, Pod: "default/p", Function: "default/f", Path: "cpu/kubepods/pod7", Weight: 102}
	for _, put := range []weightDebt{{Container: id, Pod: "default/p", Path: "cpu", Weight: 7}, d} {
		if err := j.put(id, weightSuffix, put); err != nil {
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
	found, unread := j.read()
	if len(found.weights) != 1 || found.weights[0] != d || unread != 5 {
		t.Errorf("the journal has %+v, and %d files were not read", found.weights, unread)
	}
	if len(found.limits) > 0 || len(found.ceilings) > 0 {
		t.Errorf("weights are taken for limits: %+v", found)
	}
	j.forget(id, weightSuffix)
	if found, _ := j.read(); len(found.weights) > 0 {
		t.Errorf("debts are left: %+v", found.weights)
	}
}

// What a container is owed for a loan and what for its ceiling are two debts.
func TestJournalOfCeilings(t *testing.T) {
	j := newTestJournal(t, t.TempDir())
	limit := debt{Version: journalVersion, Container: id, Pod: "default/p", Allocation: api.Resources{CPUMilli: 500}}
	ceiling := limit
	ceiling.Allocation.CPUMilli = 2000
	for suffix, d := range map[string]debt{limitSuffix: limit, ceilingSuffix: ceiling} {
		if err := j.put(id, suffix, d); err != nil {
			t.Fatal(err)
		}
	}
	want := owed{limits: []debt{limit}, ceilings: []debt{ceiling}}
	for range 2 {
		found, unread := j.read()
		if diff := cmp.Diff(want, found, cmp.AllowUnexported(owed{})); diff != "" || unread != 0 {
			t.Errorf("%d files were not read; the journal (-want +got):\n%s", unread, diff)
		}
	}
	j.forget(id, ceilingSuffix)
	if found, _ := j.read(); len(found.limits) != 1 || len(found.ceilings) != 0 {
		t.Errorf("the journal has %+v after the ceiling was forgotten", found)
	}
}

// Uninstalling leaves nothing on the node, and an agent that restarts while it owes something
// finds that.
func TestAJournalThatOwesNothingLeavesNothing(t *testing.T) {
	dir := t.TempDir()
	left := func(of *testJournal) (names []string) {
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
	j := newTestJournal(t, dir)
	if err := j.put(id, limitSuffix, debt{Container: id, Pod: "default/p"}); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{id + limitSuffix, journalLock}, left(j)); diff != "" {
		t.Errorf("with a debt (-want +got):\n%s", diff)
	}
	j = newTestJournal(t, dir)
	j.forget(id, limitSuffix)
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
