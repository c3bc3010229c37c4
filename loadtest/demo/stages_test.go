package main

import (
	"math"
	"strings"
	"testing"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

const metricsBefore = `# TYPE libra_pool_call_duration_seconds histogram
libra_pool_call_duration_seconds_bucket{operation="begin",result="ok",le="0.001"} 10
libra_pool_call_duration_seconds_bucket{operation="begin",result="ok",le="0.002"} 10
libra_pool_call_duration_seconds_bucket{operation="begin",result="ok",le="+Inf"} 10
libra_pool_call_duration_seconds_sum{operation="begin",result="ok"} 0.005
libra_pool_call_duration_seconds_count{operation="begin",result="ok"} 10
libra_pool_call_duration_seconds_bucket{operation="end",result="ok",le="0.001"} 7
libra_pool_call_duration_seconds_bucket{operation="end",result="ok",le="+Inf"} 7
libra_pool_call_duration_seconds_sum{operation="end",result="ok"} 1
libra_pool_call_duration_seconds_count{operation="end",result="ok"} 7
`

func read(t *testing.T, text string) histograms {
	t.Helper()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	h := histograms{}
	for _, s := range sources {
		for _, st := range s.stages {
			h.add(st, families[st.metric])
		}
	}
	return h
}

func TestStagesSinceAnEarlierReading(t *testing.T) {
	// 100 more begins: 50 up to 1 ms, 100 up to 2 ms. No end more.
	after := strings.NewReplacer(`le="0.001"} 10`, `le="0.001"} 60`, `le="0.002"} 10`, `le="0.002"} 110`,
		`result="ok",le="+Inf"} 10`, `result="ok",le="+Inf"} 110`, `_count{operation="begin",result="ok"} 10`, `_count{operation="begin",result="ok"} 110`).Replace(metricsBefore)
	got := read(t, after).since(read(t, metricsBefore))
	if len(got) != 1 || got[0].Name != "Begin in Redis" || got[0].Count != 100 {
		t.Fatalf("got %+v, want 100 begins and nothing else", got)
	}
	if math.Abs(got[0].P50-0.001) > 1e-9 || math.Abs(got[0].P99-0.00198) > 1e-9 {
		t.Errorf("P50 %v and P99 %v, want 0.001 and 0.00198", got[0].P50, got[0].P99)
	}
}

func TestStagesOfAPartThatWasRestarted(t *testing.T) {
	before := strings.ReplaceAll(metricsBefore, "10\n", "999\n")
	for _, s := range read(t, metricsBefore).since(read(t, before)) {
		if s.Name == "Begin in Redis" && s.Count != 10 {
			t.Errorf("got %d begins, want the 10 since the restart", s.Count)
		}
	}
}

func TestAQuantileAboveTheLastBoundIsThatBound(t *testing.T) {
	bounds := []float64{1, math.Inf(1)}
	if got := quantile(bounds, map[float64]uint64{1: 1, math.Inf(1): 100}, 0.99); got != 1 {
		t.Errorf("got %v, want 1", got)
	}
}
