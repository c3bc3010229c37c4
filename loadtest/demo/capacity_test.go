package main

import (
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"libra.dev/libra/loadtest/demo/evaluation"
)

// Requests at the rate of a load use that share of what the platform leaves, whatever
// they cost, once the path's cost was measured at another rate.
func TestALoadIsThatShareOfTheNode(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cores := rapid.IntRange(2, 64).Draw(t, "cores")
		c := capacity{cores: cores, platform: rapid.Float64Range(0, 1.5).Draw(t, "platform"),
			function: time.Duration(rapid.Int64Range(1, 500).Draw(t, "function")) * time.Millisecond}
		path := time.Duration(rapid.Int64Range(0, 50_000).Draw(t, "path")) * time.Microsecond
		const passed, requests = 20 * time.Second, 700
		node := time.Duration(c.platform*float64(passed)) + requests*(c.function+path)
		got, err := c.pathOf(node, passed, requests, requests*c.function)
		if err != nil {
			t.Fatal(err)
		}
		c.path = got
		for _, load := range []int{15, 120} {
			used := c.platform + c.perSecond(load)*(c.function+path).Seconds()
			want := c.platform + float64(load)/100*(float64(cores)-c.platform)
			if used < 0.999*want || used > 1.001*want {
				t.Errorf("%d %% makes the node use %v cores, want %v", load, used, want)
			}
		}
	})
}

func TestWhatCannotBeCalibratedSaysWhy(t *testing.T) {
	c := capacity{cores: 2, platform: 1.9, function: time.Millisecond}
	if err := c.check(); err == nil || !strings.Contains(err.Error(), "1.90 of 2 cores") {
		t.Errorf("a busy node: got %v", err)
	}
	c.platform = 0.5
	if err := c.check(); err != nil {
		t.Error(err)
	}
	if _, err := c.pathOf(time.Minute, time.Second, 10, 0); err == nil || !strings.Contains(err.Error(), "something else runs") {
		t.Errorf("a node that does something else: got %v", err)
	}
	if got, err := c.pathOf(time.Second, 2*time.Second, 10, time.Second); err != nil || got != 0 {
		t.Errorf("got %v, %v; less than nothing is nothing", got, err)
	}
}

func TestMeanCPUIsOfFunctionsAndNotOfInputs(t *testing.T) {
	got := meanCPU([]evaluation.Alone{
		{Function: "a", CPUMilliseconds: 10}, {Function: "a", Input: 1, CPUMilliseconds: 30},
		{Function: "b", CPUMilliseconds: 40}, {Function: "c", CPUMilliseconds: 1000},
	}, []string{"a", "b"})
	if got != 30*time.Millisecond {
		t.Errorf("got %v, want 30ms", got)
	}
}
