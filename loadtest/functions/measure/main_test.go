package main

import (
	"bytes"
	"context"
	"math"
	"strings"
	"testing"
	"time"
)

func TestExplained(t *testing.T) {
	var related, unrelated []call
	for i := range 64 {
		size := 1000 << (i % 8)
		related = append(related, call{bytes: size, cpu: time.Duration(size) * time.Microsecond})
		unrelated = append(unrelated, call{bytes: size, cpu: time.Millisecond << (i / 8)})
	}
	if r := explained(related); math.Abs(r-1) > 1e-9 {
		t.Errorf("a cost that is the size is explained by %v of it, want 1", r)
	}
	if r := explained(unrelated); r > 1e-9 {
		t.Errorf("a cost that has nothing to do with the size is explained by %v of it, want 0", r)
	}
	if r := explained([]call{{bytes: 9}, {bytes: 9}}); r != 0 {
		t.Errorf("where all are the same: %v", r)
	}
}

// Builds and runs the programs, instead of calling their
// functions.
func TestMeasuresAProgramThatRuns(t *testing.T) {
	if testing.Short() {
		t.Skip("builds programs")
	}
	var out bytes.Buffer
	if err := run(context.Background(), &out, 3, 1, false, "dynamichtml"); err != nil {
		t.Fatal(err)
	}
	if lines := strings.Split(strings.TrimSpace(out.String()), "\n"); len(lines) != 3 || !strings.Contains(lines[2], "dynamichtml") {
		t.Errorf("printed\n%s", out.String())
	}
}

func TestRefuses(t *testing.T) {
	if err := run(context.Background(), &bytes.Buffer{}, 1, 1, false, ""); err == nil || !strings.Contains(err.Error(), "-inputs is 1") {
		t.Errorf("got %v", err)
	}
	if err := run(context.Background(), &bytes.Buffer{}, 9, 1, true, "sort"); err == nil || !strings.Contains(err.Error(), `"sort"`) {
		t.Errorf("got %v", err)
	}
}
