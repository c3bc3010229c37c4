package main

import (
	"errors"
	"io"
	"testing"
	"time"

	"libra.dev/libra/loadtest/demo/evaluation"
)

func TestABlockIsMeasuredAgainWhenTheHypervisorTookItsCPU(t *testing.T) {
	const length = time.Minute
	broken := errors.New("no pod is ready")
	for name, c := range map[string]struct {
		load   int
		stolen []float64 // in each measurement of the block, beside 98 core-seconds that it had
		second error
		limit  time.Duration
		want   float64
		times  int
	}{
		"nothing was taken":       {stolen: []float64{0}, limit: time.Hour, want: 0, times: 1},
		"so much may be":          {stolen: []float64{2}, limit: time.Hour, want: 2, times: 1},
		"not from a full node":    {load: 90, stolen: []float64{2, 0.4}, limit: time.Hour, want: 0.4, times: 2},
		"the second had more":     {stolen: []float64{9, 1}, limit: time.Hour, want: 1, times: 2},
		"the first had more":      {stolen: []float64{4, 9}, limit: time.Hour, want: 4, times: 2},
		"the second is not there": {stolen: []float64{4, 0}, second: broken, limit: time.Hour, want: 4, times: 2},
		"the rest has no time":    {stolen: []float64{4}, limit: 33 * time.Minute, want: 4, times: 1},
	} {
		e := newEvaluation(newDemo(options{}, io.Discard), "libra-demo")
		// Half an hour has passed. Two blocks, of 90 s each, are still to come.
		e.start, e.limit = time.Now().Add(-30*time.Minute), c.limit
		times := 0
		b, err := e.quietly(t.Context(), length, 3*time.Minute, func() (evaluation.Block, error) {
			stolen := c.stolen[times]
			if times++; times == 2 && c.second != nil {
				return evaluation.Block{}, c.second
			}
			return evaluation.Block{Load: c.load, CPU: evaluation.Usage{Node: 98, Stolen: stolen}}, nil
		})
		if err != nil || times != c.times || b.CPU.Stolen != c.want {
			t.Errorf("%s: measured %d times, kept the one with %v taken: %v; want %d, %v", name, times, b.CPU.Stolen, err, c.times, c.want)
		}
	}
}

func TestARepeatIsNoReasonToLoseABlock(t *testing.T) {
	e := newEvaluation(newDemo(options{}, io.Discard), "libra-demo")
	broken := errors.New("no pod is ready")
	if _, err := e.quietly(t.Context(), time.Minute, 0, func() (evaluation.Block, error) { return evaluation.Block{}, broken }); !errors.Is(err, broken) {
		t.Errorf("got %v, want what was wrong with the first", err)
	}
}

// Repeats are bounded by the time that has passed and by the blocks still to come.
func TestRepeatsAreBounded(t *testing.T) {
	for name, c := range map[string]struct {
		took, since, left, rest time.Duration
		want                    bool
	}{
		"none so far":     {0, 10 * time.Minute, time.Hour, 20 * time.Minute, true},
		"enough":          {time.Minute, 20 * time.Minute, time.Hour, 20 * time.Minute, false},
		"no time is left": {0, 10 * time.Minute, 20 * time.Minute, 20 * time.Minute, false},
	} {
		if got := mayRepeat(c.took, c.since, c.left, c.rest); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}
