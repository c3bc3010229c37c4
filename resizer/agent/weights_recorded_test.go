package agent

import (
	"compress/gzip"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/pool"
)

// recordedRun is the part of an evaluation's record that the simulated node needs.
type recordedRun struct {
	Functions []struct {
		Name        string
		Set         int
		Limit       api.Resources
		Concurrency int
		Waits       bool
	}
	Alone []struct {
		Function        string
		Input           int
		CPUMilliseconds float64
	}
	Blocks []recordedBlock
}

type recordedBlock struct {
	Part, Arm  string
	Load, Pods int
	Length     time.Duration
	Requests   []struct {
		Function string
		Input    int
		DueMS    float64
	}
	CPU struct{ Platform float64 } // core-seconds
}

func readRecordedRun(t *testing.T) (run recordedRun) {
	t.Helper()
	f, err := os.Open("../../docs/evaluation/data.json.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close() //nolint:errcheck // only read
	unzipped, err := gzip.NewReader(f)
	if err == nil {
		err = json.NewDecoder(unzipped).Decode(&run)
	}
	if err != nil {
		t.Fatalf("%s: %v", f.Name(), err)
	}
	return run
}

// pods returns the pods of the functions that compute, one for each, and their index by
// function.
func (run recordedRun) pods() (pods []simPod, byFunction map[string]int) {
	byFunction = map[string]int{}
	for _, f := range run.Functions {
		if f.Set == 1 && !f.Waits {
			byFunction[f.Name] = len(pods)
			pods = append(pods, simPod{concurrency: f.Concurrency, allocation: f.Limit.CPUMilli})
		}
	}
	return pods, byFunction
}

// simulate serves the requests of all blocks of a load with ten pods, each block by itself.
// Functions have of the two cores what the platform left.
func (run recordedRun) simulate(load int, ranking func([]work) []work, ordered bool, quick time.Duration) simulated {
	pods, byFunction := run.pods()
	took := map[string]time.Duration{}
	for _, a := range run.Alone {
		took[fmt.Sprint(a.Function, a.Input)] = time.Duration(a.CPUMilliseconds * float64(time.Millisecond))
	}
	var ended []*simRequest
	for _, b := range run.Blocks {
		if b.Part != "requests" || b.Arm != "no_limits" || b.Load != load || b.Pods != 10 {
			continue
		}
		rng := rand.New(rand.NewPCG(1, uint64(len(ended))))
		s := simNode{cores: 2 - b.CPU.Platform/b.Length.Seconds(), pods: pods, ranking: ranking, ordered: ordered, quick: quick}
		for _, r := range b.Requests {
			pod, computes := byFunction[r.Function]
			if !computes {
				continue
			}
			cpu := max(time.Millisecond, took[fmt.Sprint(r.Function, r.Input)])
			predicted := time.Duration(float64(cpu) * math.Exp(0.5*rng.NormFloat64()))
			s.requests = append(s.requests, &simRequest{
				pod: pod, at: time.Duration(r.DueMS * float64(time.Millisecond)), cpu: cpu, work: work{predicted: predicted},
			})
		}
		s.run()
		ended = append(ended, s.requests...)
	}
	return summarize(ended)
}

// TestWeightsOnRecordedRequests finds what weights and the queue's order would give, at no
// cost, for the evaluation's own requests, relative to no limits. Half of its functions take
// any number of requests at a time, and only the function itself decides among those. On
// average that leaves less to gain than in TestWeightsOnAFullNode.
func TestWeightsOnRecordedRequests(t *testing.T) {
	run := readRecordedRun(t)
	every := func(works []work) []work { return works }
	for _, load := range []int{90, 120} {
		own := run.simulate(load, nil, false, 0)
		over := func(what string, s simulated) (mean, short float64) {
			mean, short = s.mean/own.mean, s.short/own.short
			t.Logf("at %d %%, %s, over no limits: mean slow-down %.2f, median of short requests %.2f, P99 %.2f",
				load, what, mean, short, float64(s.p99)/float64(own.p99))
			return mean, short
		}
		over("weights alone", run.simulate(load, every, false, pool.QuickCPU))
		over("the queue's order alone", run.simulate(load, nil, true, 0))
		over("both, all requests told of", run.simulate(load, every, true, 0))
		over("both, ranked by the least that is left", run.simulate(load, leastLeft, true, pool.QuickCPU))
		if mean, short := over("both", run.simulate(load, every, true, pool.QuickCPU)); mean > 0.95 || short > 0.9 {
			t.Errorf("at %d %% the mean slow-down is %.2f and the median of short requests %.2f over no limits, want 0.95 and 0.9 at most", load, mean, short)
		}
	}
}
