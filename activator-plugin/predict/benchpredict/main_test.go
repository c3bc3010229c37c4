package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const answer = `{"parameters": {"version": "7"}, "outputs": [
	{"name": "cpu_milli_thresholds", "shape": [1], "datatype": "INT64", "data": [1000]},
	{"name": "cpu_milli_values", "shape": [2], "datatype": "INT64", "data": [100, 500]},
	{"name": "memory_bytes_thresholds", "shape": [0], "datatype": "INT64", "data": []},
	{"name": "memory_bytes_values", "shape": [1], "datatype": "INT64", "data": [64]},
	{"name": "duration_ms_thresholds", "shape": [0], "datatype": "INT64", "data": []},
	{"name": "duration_ms_values", "shape": [1], "datatype": "INT64", "data": [40]},
	{"name": "cpu_time_us_thresholds", "shape": [1], "datatype": "INT64", "data": [1000]},
	{"name": "cpu_time_us_values", "shape": [2], "datatype": "INT64", "data": [900, 35000]},
	{"name": "unknown", "shape": [3], "datatype": "INT64", "data": [500, 64, 5]},
	{"name": "unknown_cpu_time_us", "shape": [1], "datatype": "INT64", "data": [4000]},
	{"name": "offset", "shape": [2], "datatype": "INT64", "data": [100, 0]},
	{"name": "largest", "shape": [2], "datatype": "INT64", "data": [550, 64]},
	{"name": "largest_size", "shape": [1], "datatype": "INT64", "data": [8000]}]}`

// run runs the command and decodes what it prints.
func run(t *testing.T, result any, args ...string) error {
	t.Helper()
	var out bytes.Buffer
	root := newRoot()
	root.SetArgs(args)
	root.SetOut(&out)
	err := root.ExecuteContext(t.Context())
	if out.Len() > 0 {
		if err := json.Unmarshal(out.Bytes(), result); err != nil {
			t.Fatalf("it printed no JSON: %v\n%s", err, out.String())
		}
	}
	return err
}

func inputFile(t *testing.T, sizes, expected string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "functions.json")
	one := `{"function": "ns/%s", "answer": ` + answer + `, "sizes": ` + sizes + `, "expected": ` + expected + `}`
	if err := os.WriteFile(name, fmt.Appendf(nil, one+"\n"+one, "a", "b"), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

func TestCheck(t *testing.T) {
	var got checkResult
	file := inputFile(t, "[999, 1000, -1]", "[[200, 64, 40, 900], [550, 64, 40, 35000], [550, 64, 5, 4000]]")
	if err := run(t, &got, "check", file); err != nil {
		t.Fatal("check:", err)
	}
	if diff := cmp.Diff(checkResult{Functions: 2, Comparisons: 24, First: []mismatch{}}, got); diff != "" {
		t.Error("What agrees (-want, +got):\n" + diff)
	}

	file = inputFile(t, "[999, 1000]", "[[100, 64, 40, 900], [550, 64, 40, 35000]]")
	err := run(t, &got, "check", file)
	if err == nil || !strings.Contains(err.Error(), "2 of 16") {
		t.Errorf("check of what differs: %v, want an error", err)
	}
	first := mismatch{Function: "ns/a", Size: 999, Expected: [4]int64{100, 64, 40, 900}, Got: [4]int64{200, 64, 40, 900}}
	second := first
	second.Function = "ns/b"
	want := checkResult{Functions: 2, Comparisons: 16, Mismatches: 2, First: []mismatch{first, second}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error("What differs (-want, +got):\n" + diff)
	}

	if err := run(t, &got, "check", inputFile(t, "[1]", "[]")); err == nil || !strings.Contains(err.Error(), `object 1: function "ns/a"`) {
		t.Errorf("check of a broken file: %v, want an error that says where", err)
	}
}

func TestLookup(t *testing.T) {
	var got lookupResult
	if err := run(t, &got, "lookup", "--lookups", "2000", inputFile(t, "[999, 1000, -1]", "[]")); err != nil {
		t.Fatal("lookup:", err)
	}
	if got.Functions != 2 || got.Lookups != 2000 || got.Mean <= 0 || got.P50 <= 0 || got.P99 < got.P50 || got.Max < got.P99 {
		t.Errorf("lookup = %+v", got)
	}
	// Whichever thousand is drawn, the P99 of all lies between those of each.
	if got.P99Low == nil || got.P99High == nil || *got.P99Low > got.P99 || *got.P99High < got.P50 {
		t.Errorf("its P99 %v is from %v to %v", got.P99, got.P99Low, got.P99High)
	}
	var once lookupResult
	if err := run(t, &once, "lookup", "--lookups", "1000", inputFile(t, "[999, 1000, -1]", "[]")); err != nil {
		t.Fatal("lookup:", err)
	}
	if once.P99Low != nil || once.P99High != nil {
		t.Errorf("one thousand has an interval, from %v to %v", *once.P99Low, *once.P99High)
	}
}

func TestLoad(t *testing.T) {
	var asked atomic.Int64
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if r.URL.Path != "/v2/models/ns.a/infer" || !bytes.Contains(body, []byte(`"name":"size"`)) {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		asked.Add(1)
		io.WriteString(w, answer)
	}))
	defer s.Close()
	args := []string{"load", "--address", s.Listener.Addr().String(), "--connections", "4", "--duration", "200ms", "--timeout", "10s"}

	var open loadResult
	if err := run(t, &open, append(args, "--model", "ns.a", "--rate", "500", "--warm-up", "100ms")...); err != nil {
		t.Fatal("open loop:", err)
	}
	if open.Mode != "open" || open.Errors != 0 || open.Requests != 100 {
		t.Errorf("open loop = %+v, want 100 requests", open)
	}
	if got := asked.Load(); got != 150 {
		t.Errorf("the open loop asked %d times in all, want 150", got)
	}

	var closed loadResult
	if err := run(t, &closed, append(args, "--model", "ns.a", "--warm-up", "0s")...); err != nil {
		t.Fatal("closed loop:", err)
	}
	if closed.Mode != "closed" || closed.Errors != 0 || closed.Requests == 0 || closed.P50 <= 0 || closed.Max < closed.P99 {
		t.Errorf("closed loop = %+v", closed)
	}

	var failing loadResult
	if err := run(t, &failing, append(args, "--model", "ns.other", "--rate", "100", "--warm-up", "0s")...); err != nil {
		t.Fatal("with errors:", err)
	}
	if failing.Requests != 0 || failing.Errors == 0 || failing.FirstError == "" {
		t.Errorf("with errors = %+v", failing)
	}
}

// A request for which no connection was free counts from when it was due.
func TestOpenLoopCountsTheQueue(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		timer := time.NewTimer(50 * time.Millisecond)
		defer timer.Stop()
		<-timer.C
		io.WriteString(w, answer)
	}))
	defer s.Close()
	var got loadResult
	err := run(t, &got, "load", "--address", s.Listener.Addr().String(), "--model", "ns.a",
		"--rate", "100", "--duration", "200ms", "--warm-up", "0s", "--timeout", "10s")
	if err != nil {
		t.Fatal(err)
	}
	// 20 are due in 200 ms, and one connection needs 50 ms for each: the last waits 800 ms.
	if got.Requests != 20 || got.Max < 700 {
		t.Errorf("load = %+v, want 20 requests of which the last took at least 700 ms", got)
	}
}

func TestLoadRefuses(t *testing.T) {
	err := run(t, nil, "load", "--rate", "-1", "--connections", "0")
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{"--address", "--model", "--rate", "--connections"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%v: does not name %s", err, want)
		}
	}
}

func TestLoadStops(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := load(ctx, loadOptions{
		address: "127.0.0.1:1", models: []string{"a.b"},
		connections: 1, duration: time.Hour, timeout: time.Second, maxSize: 1,
	}); err == nil {
		t.Error("no error")
	}
}
