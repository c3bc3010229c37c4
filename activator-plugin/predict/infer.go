package predict

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"libra.dev/libra/pkg/api"
)

// The part of the Open Inference Protocol v2 that a step table needs.

const int64Type = "INT64"

type inferRequest struct {
	Inputs []tensor `json:"inputs"`
}

type inferResponse struct {
	Outputs    []tensor `json:"outputs"`
	Parameters struct {
		Version   string `json:"version"`
		Estimator string `json:"estimator"`
		Stage     string `json:"stage"`
		Reason    string `json:"reason"`
	} `json:"parameters"`
}

type tensor struct {
	Name     string  `json:"name"`
	Shape    []int   `json:"shape"`
	Datatype string  `json:"datatype"`
	Data     []int64 `json:"data"`
}

// errMalformed marks an answer that arrived whole but is not a step table.
var errMalformed = errors.New("malformed answer from the predictor")

// No container has more, so a prediction beyond these limits is a mistake. They also keep
// calculations with predictions from overflowing.
const (
	maxCPUMilli       int64 = 1 << 20
	maxMemoryBytes    int64 = 1 << 40
	maxDurationMillis int64 = 24 * int64(time.Hour/time.Millisecond)
	maxCPUTimeMicros  int64 = 30 * 24 * int64(time.Hour/time.Microsecond)
)

func sizeInput(size int64) inferRequest {
	return inferRequest{Inputs: []tensor{{Name: "size", Shape: []int{1}, Datatype: int64Type, Data: []int64{size}}}}
}

// ParseTable reads the step table from an answer.
func ParseTable(body io.Reader) (*Table, error) {
	var resp inferResponse
	if err := json.NewDecoder(body).Decode(&resp); err != nil {
		return nil, fmt.Errorf("%w: %w", errMalformed, err)
	}
	outputs, err := vectors(resp.Outputs)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errMalformed, err)
	}

	p := resp.Parameters
	t := &Table{Estimator: p.Estimator, Stage: p.Stage, Reason: p.Reason}
	var errs [9]error
	t.cpuMilli, errs[0] = stepsOf(outputs, "cpu_milli", maxCPUMilli)
	t.memoryBytes, errs[1] = stepsOf(outputs, "memory_bytes", maxMemoryBytes)
	t.durationMillis, errs[2] = stepsOf(outputs, "duration_ms", maxDurationMillis)
	t.cpuTimeMicros, errs[3] = stepsOf(outputs, "cpu_time_us", maxCPUTimeMicros)
	t.unknown, errs[4] = unknownOf(outputs)
	t.Version, errs[5] = parseVersion(p.Version)
	t.offset, errs[6] = parseResources("offset", outputs["offset"])
	t.largest, errs[7] = parseResources("largest", outputs["largest"])
	t.largestSize, errs[8] = largestSizeOf(outputs)
	if err := errors.Join(errs[:]...); err != nil {
		return nil, fmt.Errorf("%w: %w", errMalformed, err)
	}
	return t, nil
}

func vectors(outputs []tensor) (map[string][]int64, error) {
	byName := make(map[string][]int64, len(outputs))
	for _, o := range outputs {
		if o.Datatype != int64Type {
			return nil, fmt.Errorf("output %q has datatype %q, want %q", o.Name, o.Datatype, int64Type)
		}
		if len(o.Shape) != 1 || o.Shape[0] != len(o.Data) {
			return nil, fmt.Errorf("output %q has shape %v for %d values, want [%d]", o.Name, o.Shape, len(o.Data), len(o.Data))
		}
		if _, twice := byName[o.Name]; twice {
			return nil, fmt.Errorf("output %q is given twice, want it once", o.Name)
		}
		byName[o.Name] = o.Data
	}
	return byName, nil
}

func stepsOf(outputs map[string][]int64, name string, most int64) (steps, error) {
	thresholds, ok := outputs[name+"_thresholds"]
	if !ok {
		return steps{}, fmt.Errorf("output %q is missing", name+"_thresholds")
	}
	values, ok := outputs[name+"_values"]
	if !ok {
		return steps{}, fmt.Errorf("output %q is missing", name+"_values")
	}
	if len(values) != len(thresholds)+1 {
		return steps{}, fmt.Errorf("output %q has %d values for %d thresholds, want %d",
			name+"_values", len(values), len(thresholds), len(thresholds)+1)
	}
	for i := 1; i < len(thresholds); i++ {
		if thresholds[i] < thresholds[i-1] {
			return steps{}, fmt.Errorf("output %q has %d after %d, want ascending order",
				name+"_thresholds", thresholds[i], thresholds[i-1])
		}
	}
	for _, v := range values {
		if err := inRange(name+"_values", v, most); err != nil {
			return steps{}, err
		}
	}
	return steps{thresholds: thresholds, values: values}, nil
}

func unknownOf(outputs map[string][]int64) (Prediction, error) {
	v, ok := outputs["unknown"]
	if !ok {
		return Prediction{}, errors.New(`output "unknown" is missing`)
	}
	if len(v) != 3 {
		return Prediction{}, fmt.Errorf(`output "unknown" has %d values, want 3: cpu_milli, memory_bytes, duration_ms`, len(v))
	}
	for i, most := range [...]int64{maxCPUMilli, maxMemoryBytes, maxDurationMillis} {
		if err := inRange("unknown", v[i], most); err != nil {
			return Prediction{}, err
		}
	}
	cpuTime := outputs["unknown_cpu_time_us"]
	if len(cpuTime) != 1 {
		return Prediction{}, fmt.Errorf(`output "unknown_cpu_time_us" has %d values, want 1`, len(cpuTime))
	}
	if err := inRange("unknown_cpu_time_us", cpuTime[0], maxCPUTimeMicros); err != nil {
		return Prediction{}, err
	}
	return Prediction{
		Demand:   api.Resources{CPUMilli: v[0], MemoryBytes: v[1]},
		Duration: time.Duration(v[2]) * time.Millisecond,
		CPUTime:  time.Duration(cpuTime[0]) * time.Microsecond,
	}, nil
}

func largestSizeOf(outputs map[string][]int64) (int64, error) {
	v := outputs["largest_size"]
	if len(v) != 1 || v[0] < api.UnknownSize {
		return 0, fmt.Errorf(`output "largest_size" is %v, want one value, not below %d`, v, api.UnknownSize)
	}
	return v[0], nil
}

func parseResources(name string, v []int64) (api.Resources, error) {
	if len(v) != 2 {
		return api.Resources{}, fmt.Errorf("%q has %d values, want 2: cpu_milli, memory_bytes", name, len(v))
	}
	if err := errors.Join(inRange(name, v[0], maxCPUMilli), inRange(name, v[1], maxMemoryBytes)); err != nil {
		return api.Resources{}, err
	}
	return api.Resources{CPUMilli: v[0], MemoryBytes: v[1]}, nil
}

// parseVersion parses a version. The versions of a function grow.
func parseVersion(s string) (int64, error) {
	v, err := strconv.ParseInt(s, 10, 64)
	if err != nil || v < 0 {
		return 0, fmt.Errorf("version is %q, want a whole number that is not negative", s)
	}
	return v, nil
}

func inRange(name string, v, most int64) error {
	if v < 0 || v > most {
		return fmt.Errorf("%q has value %d, want 0 to %d", name, v, most)
	}
	return nil
}
