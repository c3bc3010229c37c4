package evaluation

import (
	"fmt"
	"math/rand/v2"
	"time"

	"libra.dev/libra/pkg/api"
)

// synthetic is a small evaluation. arms has each arm's response times, relative to
// stock's.
type synthetic struct {
	seed     uint64
	blocks   int
	requests int // of a block
	arms     map[string]float64
	// noise is by how much a response time is off at most, as a share of it.
	noise float64
	// blockNoise is by how much all response times of an arm's block are off at most.
	blockNoise float64
}

const syntheticInputs = 5

var syntheticFunctions = []string{"compute", "graph", "wait"}

func (s synthetic) data(combinations ...combination) Data {
	d := Data{
		Commit: "abc123", Seed: s.seed, Elapsed: 90 * time.Minute, Platform: 0.25, Learned: 240, Unlearned: 3,
		Machine: Machine{About: "2 cores of something", Cores: 2, RequestMilliseconds: 6},
	}
	for i, f := range syntheticFunctions {
		d.Functions = append(d.Functions, Function{Name: f, Set: 1, Limit: api.Resources{CPUMilli: 500, MemoryBytes: 128 << 20}, Waits: f == "wait", Concurrency: int64(i)})
		for n := range syntheticInputs {
			// One input of each function is not short.
			ms := float64(10 * (1 + n*n))
			d.Alone = append(d.Alone, Alone{Function: f, Input: n, Size: 1000, Milliseconds: ms, CPUMilliseconds: ms})
		}
	}
	arms := append([]string{Stock, Again, Libra, Owners, OwnersNoIdle, NoLimits, NoLimitsWeighted, VPA, Fits}, "libra_fifo")
	for _, a := range arms {
		if _, ok := s.arms[a]; ok {
			base := ""
			if a == "libra_fifo" {
				base = Libra
			}
			d.Arms = append(d.Arms, Arm{Name: a, Title: "The " + a, About: "What " + a + " is.", Base: base})
		}
	}
	for _, k := range combinations {
		for number := 1; number <= s.blocks; number++ {
			for order, a := range d.Arms {
				d.Blocks = append(d.Blocks, s.block(k, number, order+1, a.Name, d.Alone))
			}
		}
	}
	return d
}

func (s synthetic) block(k combination, number, order int, arm string, alone []Alone) Block {
	b := Block{
		Part: k.part, Load: k.load, Pods: k.pods, Number: number, Arm: arm, Order: order, Length: 20 * time.Second,
		CPU: Usage{Node: 30, Functions: 20, Libra: 0.4, Agents: 0.2, Platform: 9.6},
	}
	schedule := rand.New(rand.NewPCG(s.seed, uint64(number)))
	own := rand.New(rand.NewPCG(s.seed, uint64(1000*number+len(arm)*17+order)))
	whole := s.arms[arm]
	if s.blockNoise > 0 {
		whole *= 1 + s.blockNoise*(2*own.Float64()-1)
	}
	factor := func() float64 { return whole * (1 + s.noise*(2*own.Float64()-1)) }
	for n := range s.requests {
		a := alone[schedule.IntN(len(alone))]
		b.Requests = append(b.Requests, Request{
			N: n, Function: a.Function, Set: 1, Input: a.Input, Size: a.Size, DueMS: float64(n) * 20000 / float64(s.requests),
			Milliseconds: a.Milliseconds * (1 + 3*schedule.Float64()) * factor(), Status: 200,
		})
	}
	if arm == Owners {
		b.Loans = &Loans{Volume{12, 3000}, Volume{11, 2800}, Volume{4, 900}, 0.1 * float64(s.requests)}
	}
	if arm == Libra {
		b.Weighed = &Weighed{Requests: 50, Within5MS: 48, Within10MS: 49}
	}
	switch k.part {
	case PartBystanders, PartDemo:
		b.Bystander = &Bystander{}
		if k.part == PartBystanders {
			b.Bystander.SpinCPU = 5 / factor()
		}
		for n := range s.requests / 2 {
			b.Bystander.Requests = append(b.Bystander.Requests, Request{N: n, Function: "plain", DueMS: float64(n) * 40000 / float64(s.requests), Milliseconds: (5 + 5*schedule.Float64()) * factor(), Status: 200})
		}
	case PartCost:
		b.PodSeconds, b.ColdStarts = 100*factor(), 3
	case PartMemory:
		if arm == Stock {
			b.OOMKills = 2
			for _, n := range []int{1, 7} {
				b.Requests[n].Status, b.Requests[n].Error = 502, fmt.Sprintf("status 502 | <b> in block %d", number)
			}
		}
	}
	return b
}

// everything has each part and each load.
func everything(s synthetic) Data {
	return s.data(
		combination{PartRequests, 15, 10}, combination{PartRequests, 40, 10}, combination{PartRequests, 90, 10}, combination{PartRequests, 120, 10},
		combination{PartRequests, 90, 40}, combination{PartRequests, 120, 40},
		combination{PartBystanders, 40, 10}, combination{PartBystanders, 90, 10},
		combination{PartMemory, 15, 1}, combination{PartCost, 40, 0}, combination{PartAblations, 40, 10})
}

func allArms() map[string]float64 {
	return map[string]float64{Stock: 1, Again: 1, Libra: 0.5, Owners: 0.8, NoLimits: 0.75, NoLimitsWeighted: 0.75, VPA: 0.6, Fits: 0.9, "libra_fifo": 0.6}
}
