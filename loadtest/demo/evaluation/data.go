// Package evaluation compares ways to give out CPU and memory to functions on one node, and writes the
// results as a page, as Markdown and as numbers for machines.
package evaluation

import (
	"fmt"
	"time"

	"libra.dev/libra/pkg/api"
)

// Names of arms.
const (
	Stock            = "stock"  // others are compared with it
	Again            = "again"  // stock once more: the noise
	AgainSuffix      = "_again" // of another arm once more
	Libra            = "libra"
	Owners           = "owners"
	OwnersNoIdle     = "owners_no_idle"
	NoLimits         = "no_limits" // others are compared with it, too
	NoLimitsWeighted = "no_limits_weighted"
	VPA              = "vpa"
	Fits             = "fits" // of the memory part: a limit that always fits
)

// Parts of an evaluation.
const (
	PartRequests   = "requests"
	PartBystanders = "bystanders"
	PartCost       = "cost"
	PartMemory     = "memory"
	PartAblations  = "ablations"
	PartDemo       = "demo"      // requests and a bystander's at once
	PartPlacement  = "placement" // requests on several nodes, by which pod each goes to
)

// Data is all that an evaluation measured.
type Data struct {
	Commit    string        `json:"commit"`
	Seed      uint64        `json:"seed"`
	Machine   Machine       `json:"machine"`
	Elapsed   time.Duration `json:"elapsed_ns"`
	Platform  float64       `json:"platform_cores"` // CPU in use without functions' load, measured at the start
	Learned   int           `json:"learned"`        // requests that Libra learned from
	Unlearned int           `json:"unlearned"`      // those that failed while it did
	Functions []Function    `json:"functions"`
	Arms      []Arm         `json:"arms"`
	Alone     []Alone       `json:"alone"`
	Blocks    []Block       `json:"blocks"`
	Alerts    []string      `json:"alerts,omitempty"`
	// Draws is how often hash drew nodes for the functions, each time in another namespace; 0 means once.
	Draws    int `json:"draws,omitempty"`
	Restarts int `json:"restarts,omitempty"` // of containers; only the demo counts them
	// Unmeasured says what was left out for lack of time or room, a sentence each.
	Unmeasured []string `json:"unmeasured,omitempty"`
}

// Machine describes where the measurements ran.
type Machine struct {
	About string `json:"about"` // in a line
	Cores int    `json:"cores"` // 0 if their use could not be read
	// RequestMilliseconds is the CPU that a request under load takes beyond what its function takes for it alone.
	RequestMilliseconds float64 `json:"request_cpu_ms"`
}

// Function is a function that was called.
type Function struct {
	Name        string
	Set         int           // 1..4: which copy of the ten
	Limit       api.Resources // its user allocation
	Concurrency int64         // requests at a time in a pod; 0 means any number
	Waits       bool          // mostly waits rather than computes
	Related     bool          // its demand follows the size of its input
}

// Arm is a way to give out CPU and memory.
type Arm struct {
	Name  string // as in the names of the metrics
	Title string // as in the plots and tables
	About string // what it is, in a sentence
	// Base is the arm of which an ablation lacks a part, or with which a placement is compared; empty for
	// others.
	Base string `json:",omitempty"`
}

// Alone is an input of a function run alone on an idle node without limits: medians of at
// least three runs.
type Alone struct {
	Function                      string // without its set
	Input                         int
	Size                          int64 // bytes of the body
	Milliseconds, CPUMilliseconds float64
	// Peak is the most that its function's container used. Only evaluations with a perfect predictor have
	// it, because measuring it costs the function some of its time.
	Peak api.Resources `json:",omitzero"`
}

// Block is a stretch of one schedule under one arm.
type Block struct {
	Part string
	Load int // % of the CPU that the platform leaves: 15, 40, 90, 120
	Pods int // the arm's pods of functions: 10 or 40; 0 with autoscaling; in the part placement, pods of each function
	// Number counts from 1. Blocks of one (Part, Load, Pods) with the same Number have the same schedule; in
	// the part placement, those whose arms have the same Base do.
	Number   int
	Arm      string
	Order    int // its place among the arms when it was measured, from 1
	Length   time.Duration
	Requests []Request // in the order of their times
	CPU      Usage     // over the block
	// Bystander is set in the parts bystanders and demo.
	Bystander *Bystander
	// PodSeconds and ColdStarts are set in the part cost.
	PodSeconds float64
	ColdStarts int
	OOMKills   int
	// Loans is set for arms that lend what owners have.
	Loans *Loans `json:",omitempty"`
	// Weighed is set for arms whose pods have weights by their requests in flight.
	Weighed *Weighed `json:",omitempty"`
	// Placed is set in the part placement.
	Placed *Placed `json:",omitempty"`
}

// Request is a request of a block, and its outcome.
type Request struct {
	N            int // its place in the schedule
	Function     string
	Set          int
	Input        int
	Size         int64
	DueMS        float64 // since the block began
	LateMS       float64 // by how much it was sent late
	Milliseconds float64 // from when it was due to the last byte of the answer
	Status       int     // of the answer; 0 when there was none
	Error        string  // empty when the answer was right
}

// Usage is CPU, in core-seconds. Platform is the part of Node that is neither the functions' nor Libra's:
// the request path, the sender, bystanders, and pods that came after the block began.
type Usage struct {
	Node, Functions, Libra, Platform float64
	// Agents is the node agents' part of Libra.
	Agents float64 `json:",omitzero"`
	// Stolen is not part of Node: the node had work for this CPU, and the hypervisor gave it to others.
	Stolen float64 `json:",omitzero"`
}

// mostStolen and mostStolenFull are the share of the CPU that a block had use for which the hypervisor may take: from a
// node with room, and from one on which the load is at least fullLoad percent. On a full node
// little of it goes with much: in docs/evaluation/full-node the mean slow-down was 1.9 times as much with each hundredth
// that was taken from a block of 90 %, and 8.1 times as much in those of 120 %.
const (
	mostStolen     = 0.02
	mostStolenFull = 0.005
	fullLoad       = 90
)

// mostStolenText is the bound for readers.
var mostStolenText = fmt.Sprintf("%g %% of the CPU (%g %% at a load of %d %% or more)", 100*mostStolen, 100*mostStolenFull, fullLoad)

// Disturbed reports whether the hypervisor took so much in a block that its figures say as much about the
// machine's neighbours as about the arm.
func (b Block) Disturbed() bool {
	most := mostStolen
	if b.Load >= fullLoad {
		most = mostStolenFull
	}
	return b.CPU.StolenShare() > most
}

// A request is late that was sent more than lateMS after its time. The load of a block is not that of its
// schedule if more than mostLate of its requests are. Both are as in k6's scripts.
const (
	lateMS   = 50
	mostLate = 0.01
)

// Late reports whether the load of a block was not that of its schedule.
func (b Block) Late() bool {
	late := 0
	for _, r := range b.Requests {
		if r.LateMS > lateMS {
			late++
		}
	}
	return float64(late) > mostLate*float64(len(b.Requests))
}

// StolenShare returns the CPU that the hypervisor took as a share of the CPU that the node had use for; 0 if
// the CPU was not read.
func (u Usage) StolenShare() float64 {
	if u.Stolen == 0 {
		return 0
	}
	return u.Stolen / (u.Node + u.Stolen)
}

// Weighed is how many requests of a block the node agents have weighed, and how many of them within 5 and 10
// ms of their Begin in the pool.
type Weighed struct{ Requests, Within5MS, Within10MS float64 }

// Since returns what was added since an earlier reading of the same counters.
func (w Weighed) Since(before Weighed) Weighed {
	return Weighed{
		since(w.Requests, before.Requests), since(w.Within5MS, before.Within5MS), since(w.Within10MS, before.Within10MS),
	}
}

// since returns what was added to a counter. A counter that was higher before has started anew: all of it
// counts.
func since(now, before float64) float64 {
	if now < before {
		return now
	}
	return now - before
}

// Placed is how the pods of a block's requests were chosen.
type Placed struct {
	// Outcomes is how many requests had their pod chosen, by what became of Knative's pick. A request that
	// went to Knative's pick without a question is in none of them.
	Outcomes map[string]float64
	// Promised is the CPU, in core-seconds, that requests were placed for, and Granted what the pool had of
	// it for them when they began.
	Promised, Granted float64
}

// The outcomes of Knative's pick: of several pods with a free slot, the policy named another one or the
// same; or no other pod had a free slot.
const (
	outcomeMoved    = "moved"
	outcomeKept     = "kept"
	outcomeNoChoice = "no_choice"
)

// Choices returns how many requests could have gone to more than one pod.
func (p Placed) Choices() float64 { return p.Outcomes[outcomeMoved] + p.Outcomes[outcomeKept] }

// Since returns what was added since an earlier reading of the same counters.
func (p Placed) Since(before Placed) Placed {
	added := Placed{map[string]float64{}, since(p.Promised, before.Promised), since(p.Granted, before.Granted)}
	for outcome, n := range p.Outcomes {
		if n := since(n, before.Outcomes[outcome]); n > 0 {
			added.Outcomes[outcome] = n
		}
	}
	return added
}

// Loans is what was lent in a block: volumes times how long they were in force.
type Loans struct {
	Harvested   Volume // below user allocations
	Accelerated Volume // above them
	Idle        Volume // in the pool, and lent to nobody
	// Safeguarded is how often the safeguard gave a donor a resource back because its use came near its
	// lowered limit.
	Safeguarded float64
}

// Volume is a product of resources and time.
type Volume struct{ CoreSeconds, MBSeconds float64 }

// Since returns what was added since an earlier reading of the same counters.
func (l Loans) Since(before Loans) Loans {
	volume := func(now, before Volume) Volume {
		return Volume{since(now.CoreSeconds, before.CoreSeconds), since(now.MBSeconds, before.MBSeconds)}
	}
	return Loans{
		volume(l.Harvested, before.Harvested), volume(l.Accelerated, before.Accelerated), volume(l.Idle, before.Idle),
		since(l.Safeguarded, before.Safeguarded),
	}
}

// Bystander is the outcome for those that have nothing to do with the functions.
type Bystander struct {
	Requests []Request // of the service
	SpinCPU  float64   // core-seconds that the spinning pod had
}
