package main

import (
	"bytes"
	"encoding/json"
	"hash/crc32"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"libra.dev/libra/loadtest/trace"
)

func run(args ...string) (string, error) {
	var out bytes.Buffer
	cmd := newRoot()
	cmd.SetArgs(args)
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	err := cmd.Execute()
	return out.String(), err
}

func TestScheduleIsWrittenWithItsInputs(t *testing.T) {
	dir := t.TempDir()
	args := []string{"schedule", "--rpm", "60", "--length", "30s", "--inputs", "3", "--out"}
	out, err := run(append(args, dir)...)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out, "30 requests, written to") {
		t.Errorf("output:\n%s", out)
	}
	written, err := os.ReadFile(filepath.Join(dir, scheduleFile))
	if err != nil {
		t.Fatal(err)
	}
	corpus, err := os.ReadFile(filepath.Join(dir, corpusFile))
	if err != nil {
		t.Fatal(err)
	}
	var entries []trace.Entry
	if err := json.Unmarshal(written, &entries); err != nil {
		t.Fatal(err)
	}
	if len(entries) != 30 {
		t.Errorf("%d entries, want 30", len(entries))
	}
	for _, e := range entries {
		if sum, ok := e.Expect["crc32"]; ok && int64(crc32.ChecksumIEEE(corpus[e.Offset:e.Offset+e.Size])) != sum {
			t.Errorf("entry %d: its bytes in the corpus are not those that its answer must name", e.N)
		}
	}
	again := t.TempDir()
	if _, err := run(append(args, again)...); err != nil {
		t.Fatal(err)
	}
	if other, _ := os.ReadFile(filepath.Join(again, scheduleFile)); !bytes.Equal(other, written) {
		t.Error("the same options made another schedule")
	}
}

func TestFilesGoTogether(t *testing.T) {
	dir := t.TempDir()
	path := func(name, content string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	files := []string{
		"--invocations", path("i.csv", "HashOwner,HashApp,HashFunction,Trigger,1,2\na,b,c,timer,3,4\na,b,d,http,1,1\n"),
		"--durations", path("d.csv", "HashOwner,HashApp,HashFunction,Count,percentile_Average_0,percentile_Average_1,percentile_Average_25,percentile_Average_50,percentile_Average_75,percentile_Average_99,percentile_Average_100\na,b,c,7,1,2,3,4,5,6,7\n"),
		"--memory", path("m.csv", "HashOwner,HashApp,AverageAllocatedMb\na,b,10\n"),
	}
	out, err := run(append([]string{"stats"}, files...)...)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"functions left out: 1, no durations", `"functions": 1`, `"minutes": 2`} {
		if !strings.Contains(out, want) {
			t.Errorf("output does not have %q:\n%s", want, out)
		}
	}
	if _, err := run(append([]string{"stats"}, files[:4]...)...); err == nil || !strings.Contains(err.Error(), "go together") {
		t.Errorf("two of three files: %v", err)
	}
	if _, err := run("stats", "--invocations", "nowhere.csv", "--durations", "nowhere.csv", "--memory", "nowhere.csv"); err == nil || !strings.Contains(err.Error(), "nowhere.csv") {
		t.Errorf("a file that is not there: %v", err)
	}
}
