package predict

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// exampleAnswer is exampleTable on the wire.
func exampleAnswer() map[string][]int64 {
	return map[string][]int64{
		"cpu_milli": {500}, "memory_bytes": {64 << 20}, "duration_ms": {40},
		"cpu_milli_thresholds": {1000, 5000}, "cpu_milli_values": {100, 500, 1200},
		"memory_bytes_thresholds": {}, "memory_bytes_values": {64 << 20},
		"duration_ms_thresholds": {0, 5000}, "duration_ms_values": {1, 40, 700},
		"cpu_time_us": {35_000}, "cpu_time_us_thresholds": {1000}, "cpu_time_us_values": {900, 35_000},
		"unknown": {1200, 128 << 20, 5}, "unknown_cpu_time_us": {4000},
		"offset": {200, 0}, "largest": {1300, 1 << 30}, "largest_size": {8000},
	}
}

func profilingAnswer() map[string][]int64 {
	return map[string][]int64{
		"cpu_milli_thresholds": {}, "cpu_milli_values": {0},
		"memory_bytes_thresholds": {}, "memory_bytes_values": {0},
		"duration_ms_thresholds": {}, "duration_ms_values": {0},
		"cpu_time_us_thresholds": {}, "cpu_time_us_values": {7000},
		"unknown": {0, 0, 0}, "unknown_cpu_time_us": {7000}, "offset": {0, 0}, "largest": {1300, 1 << 30}, "largest_size": {8000},
	}
}

func answerJSON(t *testing.T, outputs map[string][]int64) string {
	t.Helper()
	return encodeAnswer(t, "7", outputs)
}

func versionJSON(t *testing.T, version string) string {
	t.Helper()
	return encodeAnswer(t, version, exampleAnswer())
}

func encodeAnswer(t *testing.T, version string, outputs map[string][]int64) string {
	t.Helper()
	resp := inferResponse{}
	resp.Parameters.Version = version
	resp.Parameters.Estimator = "xgboost"
	resp.Parameters.Stage = "modelled"
	resp.Parameters.Reason = "52 observations"
	for name, data := range outputs {
		resp.Outputs = append(resp.Outputs, tensor{Name: name, Shape: []int{len(data)}, Datatype: int64Type, Data: data})
	}
	b, err := json.Marshal(resp)
	if err != nil {
		t.Fatal("Failed to encode the answer:", err)
	}
	return string(b)
}

// For unlimited durations the predictor answers with the longest duration that is
// accepted.
func TestLongestDurationIsTaken(t *testing.T) {
	const day = 86_400_000
	answer := exampleAnswer()
	answer["duration_ms_thresholds"], answer["duration_ms_values"] = nil, []int64{day}
	answer["unknown"] = []int64{1200, 128 << 20, day}
	table, err := ParseTable(strings.NewReader(answerJSON(t, answer)))
	if err != nil {
		t.Fatal(err)
	}
	for _, size := range []int64{-1, 0, 1 << 40} {
		if got := table.Lookup(size).Duration; got != 24*time.Hour {
			t.Errorf("the duration of %d bytes is %v, want a day", size, got)
		}
	}
	answer["duration_ms_values"] = []int64{day + 1}
	if _, err := ParseTable(strings.NewReader(answerJSON(t, answer))); err == nil {
		t.Error("more than a day is taken")
	}
}

func TestParseTable(t *testing.T) {
	got, err := ParseTable(strings.NewReader(answerJSON(t, exampleAnswer())))
	if err != nil {
		t.Fatal("ParseTable() =", err)
	}
	if diff := cmp.Diff(exampleTable(), got, cmp.AllowUnexported(Table{}, steps{})); diff != "" {
		t.Error("ParseTable() (-want, +got):\n" + diff)
	}
}

func TestPredictsNothing(t *testing.T) {
	for name, tc := range map[string]struct {
		outputs map[string][]int64
		want    bool
	}{
		"modelled":  {exampleAnswer(), false},
		"profiling": {profilingAnswer(), true},
	} {
		table, err := ParseTable(strings.NewReader(answerJSON(t, tc.outputs)))
		if err != nil {
			t.Fatalf("ParseTable() of %s = %v", name, err)
		}
		if got := table.predictsNothing(); got != tc.want {
			t.Errorf("%s: predictsNothing() = %v, want %v", name, got, tc.want)
		}
	}
}

func TestParseTableRefuses(t *testing.T) {
	with := func(name string, data ...int64) string {
		outputs := exampleAnswer()
		outputs[name] = data
		return answerJSON(t, outputs)
	}
	without := func(name string) string {
		outputs := exampleAnswer()
		delete(outputs, name)
		return answerJSON(t, outputs)
	}
	for _, tc := range []struct {
		name, body, want string
	}{
		{"no JSON", "<html>", "invalid character"},
		{"a float", `{"outputs":[{"name":"unknown","shape":[1],"datatype":"INT64","data":[0.5]}]}`, "cannot unmarshal number 0.5"},
		{"datatype", `{"outputs":[{"name":"unknown","shape":[1],"datatype":"FP32","data":[1]}]}`, `output "unknown" has datatype "FP32", want "INT64"`},
		{"shape", `{"outputs":[{"name":"unknown","shape":[2],"datatype":"INT64","data":[1]}]}`, `output "unknown" has shape [2] for 1 values, want [1]`},
		{"twice", `{"outputs":[{"name":"a","shape":[0],"datatype":"INT64"},{"name":"a","shape":[0],"datatype":"INT64"}]}`, `output "a" is given twice`},
		{"no thresholds", without("cpu_milli_thresholds"), `output "cpu_milli_thresholds" is missing`},
		{"no values", without("duration_ms_values"), `output "duration_ms_values" is missing`},
		{"lengths", with("memory_bytes_values", 1, 2), `output "memory_bytes_values" has 2 values for 0 thresholds, want 1`},
		{"order", with("cpu_milli_thresholds", 5000, 1000), `output "cpu_milli_thresholds" has 1000 after 5000, want ascending order`},
		{"negative", with("memory_bytes_values", -1), `"memory_bytes_values" has value -1, want 0 to 1099511627776`},
		{"absurd", with("cpu_milli_values", 1, 2, 1<<40), `"cpu_milli_values" has value 1099511627776, want 0 to 1048576`},
		{"no unknown", without("unknown"), `output "unknown" is missing`},
		{"short unknown", with("unknown", 1, 2), `output "unknown" has 2 values, want 3`},
		{"short offset", with("offset", 1), `"offset" has 1 values, want 2: cpu_milli, memory_bytes`},
		{"negative offset", with("offset", -1, 0), `"offset" has value -1, want 0 to 1048576`},
		{"absurd largest", with("largest", 1, 1<<41), `"largest" has value 2199023255552, want 0 to 1099511627776`},
		{"no offset", without("offset"), `"offset" has 0 values, want 2`},
		{"no largest", without("largest"), `"largest" has 0 values, want 2`},
		{"no largest size", without("largest_size"), `output "largest_size" is [], want one value, not below -1`},
		{"negative largest size", with("largest_size", -2), `output "largest_size" is [-2], want one value, not below -1`},
		{"no version", encodeAnswer(t, "", exampleAnswer()), `version is "", want a whole number`},
		{"negative version", encodeAnswer(t, "-1", exampleAnswer()), `version is "-1", want a whole number`},
		{"no CPU time of an unknown size", without("unknown_cpu_time_us"), `output "unknown_cpu_time_us" has 0 values, want 1`},
		{"absurd CPU time of an unknown size", with("unknown_cpu_time_us", 1<<50), `"unknown_cpu_time_us" has value 1125899906842624, want 0 to 2592000000000`},
		{"no thresholds of CPU time", without("cpu_time_us_thresholds"), `output "cpu_time_us_thresholds" is missing`},
		{"no values of CPU time", without("cpu_time_us_values"), `output "cpu_time_us_values" is missing`},
		{"absurd CPU time", with("cpu_time_us_values", 1, 1<<50), `"cpu_time_us_values" has value 1125899906842624, want 0 to 2592000000000`},
		{"negative unknown", with("unknown", 1, 2, -3), `"unknown" has value -3, want 0 to`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			table, err := ParseTable(strings.NewReader(tc.body))
			if !errors.Is(err, errMalformed) || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("ParseTable() = %v, %v, want errMalformed with %q", table, err, tc.want)
			}
		})
	}
}
