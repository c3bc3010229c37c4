// Package evaluation compares ways to give out CPU and memory to functions on one node,
// and writes what came out as a page, as Markdown and as numbers for machines.
package evaluation

import (
	"time"

	"libra.dev/libra/pkg/api"
)

// Names of arms.
const (
	Stock            = "stock"  // what others are compared with
	Again            = "again"  // stock once more: the noise
	AgainSuffix      = "_again" // of another arm once more
	Libra            = "libra"
	Owners           = "owners"
	OwnersNoIdle     = "owners_no_idle"
	NoLimits         = "no_limits" // what others are compared with, too
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
	Functions []Function    `json:"functions"`
	Arms      []Arm         `json:"arms"`
	Alone     []Alone       `json:"alone"`
	Blocks    []Block       `json:"blocks"`
	Alerts    []string      `json:"alerts,omitempty"`
	// Draws is how often hash drew nodes for the functions, each time in another namespace; 0 says once.
	Draws    int `json:"draws,omitempty"`
	Restarts int `json:"restarts,omitempty"` // of containers; only the demo counts them
	// Unmeasured says what there was no time or no room for, a sentence each.
	Unmeasured []string `json:"unmeasured,omitempty"`
}

// Machine is what was measured on.
type Machine struct {
	About string `json:"about"` // in a line
	Cores int    `json:"cores"` // 0 where nobody could read what is in use of them
	// RequestMilliseconds is the CPU that a request takes on average beside its function's
	// own: the gateway, the activator, the sidecar, what sends it.
	RequestMilliseconds float64 `json:"request_cpu_ms"`
}

// Function is one that was called.
type Function struct {
	Name        string
	Set         int           // 1..4: which copy of the ten
	Limit       api.Resources // its user allocation
	Concurrency int64         // requests at a time in a pod; 0 is any number
	Waits       bool          // mostly waits rather than computes
	Related     bool          // its demand follows the size of its input
}

// Arm is a way to give out CPU and memory.
type Arm struct {
	Name  string // as in the names of the metrics
	Title string // as in the plots and tables
	About string // what it is, in a sentence
	// Base is the arm that an ablation is without some of it, or what a placement is held
	// against; empty of others.
	Base string `json:",omitempty"`
}

// Alone is an input of a function run alone on an idle node without limits: medians of at
// least three runs.
type Alone struct {
	Function                      string // without its set
	Input                         int
	Size                          int64 // bytes of the body
	Milliseconds, CPUMilliseconds float64
	// Peak is what its function's container used at most; of evaluations with a perfect
	// predictor only, for to look costs the function some of its time.
	Peak api.Resources `json:",omitzero"`
}

// Block is a stretch of one schedule under one arm.
type Block struct {
	Part string
	Load int // % of the CPU that the platform leaves: 15, 40, 90, 120
	Pods int // functions' pods of the arm: 10 or 40; 0 with autoscaling; of the part placement, pods of each function
	// Number is from 1. Blocks of one (Part, Load, Pods) with the same Number have the same schedule; of the
	// part placement, those whose arms have the same Base do.
	Number   int
	Arm      string
	Order    int // in which place among the arms it was measured, from 1
	Length   time.Duration
	Requests []Request // in the order of their times
	CPU      Usage     // over the block
	// Bystander is of the part of that name, and of the demo's.
	Bystander *Bystander
	// PodSeconds and ColdStarts are of the part cost.
	PodSeconds float64
	ColdStarts int
	OOMKills   int
	// Loans are of arms under which what owners have is lent.
	Loans *Loans `json:",omitempty"`
	// Weighed is of arms under which pods have weights by what is in flight in them.
	Weighed *Weighed `json:",omitempty"`
	// Placed is of the part placement.
	Placed *Placed `json:",omitempty"`
}

// Request is one of a block, and what became of it.
type Request struct {
	N            int // its place in the schedule
	Function     string
	Set          int
	Input        int
	Size         int64
	DueMS        float64 // since the block began
	LateMS       float64 // by how much it was sent later
	Milliseconds float64 // from when it was due to the last byte of the answer
	Status       int     // of the answer; 0 when there was none
	Error        string  // empty when the answer was right
}

// Usage is CPU, in core-seconds. Platform is all of the node's that is neither the
// functions' nor Libra's: the request path, what sends the requests, bystanders, and pods
// that came after the block began.
type Usage struct {
	Node, Functions, Libra, Platform float64
	// Agents is what of Libra's own its node agents used.
	Agents float64 `json:",omitzero"`
	// Stolen is none of the node's: the node had work for it, and the hypervisor gave it to
	// others.
	Stolen float64 `json:",omitzero"`
}

// mostStolen is the share of the CPU that a block had use for of which the hypervisor may
// take some. A node that is 90 % busy is 92 % busy with that much less.
const mostStolen = 0.02

// Disturbed says that the hypervisor took so much in a block that its figures are as much
// about the machine's neighbours as about the arm.
func (b Block) Disturbed() bool { return b.CPU.StolenShare() > mostStolen }

// StolenShare is what the hypervisor took, as a share of what the node had use for; 0
// where the CPU was not read.
func (u Usage) StolenShare() float64 {
	if u.Stolen == 0 {
		return 0
	}
	return u.Stolen / (u.Node + u.Stolen)
}

// Weighed is how many requests of a block the node agents have weighed, and how many of them
// within a time of their Begin in the pool.
type Weighed struct{ Requests, Within5MS, Within10MS float64 }

// Since is what was added to an earlier reading of the same counters.
func (w Weighed) Since(before Weighed) Weighed {
	return Weighed{
		since(w.Requests, before.Requests), since(w.Within5MS, before.Within5MS), since(w.Within10MS, before.Within10MS),
	}
}

// since is what was added to a counter. One that was higher before has begun anew: what it
// has now is counted.
func since(now, before float64) float64 {
	if now < before {
		return now
	}
	return now - before
}

// Placed is how the pods of a block's requests were chosen.
type Placed struct {
	// Outcomes is how many requests had their pod chosen, by what became of the one that Knative had
	// picked. One that went as Knative said without a question is in none of them.
	Outcomes map[string]float64
	// Promised and Granted, in core-seconds, are the CPU that requests were placed for, and what
	// of it the pool had for them when they began.
	Promised, Granted float64
}

// What became of Knative's pick: of several pods with a free slot, the policy named another or the
// same, or no other had one.
const (
	outcomeMoved    = "moved"
	outcomeKept     = "kept"
	outcomeNoChoice = "no_choice"
)

// Choices is how many requests could have gone to more than one pod.
func (p Placed) Choices() float64 { return p.Outcomes[outcomeMoved] + p.Outcomes[outcomeKept] }

// Since is what was added to an earlier reading of the same counters.
func (p Placed) Since(before Placed) Placed {
	added := Placed{map[string]float64{}, since(p.Promised, before.Promised), since(p.Granted, before.Granted)}
	for outcome, n := range p.Outcomes {
		if n := since(n, before.Outcomes[outcome]); n > 0 {
			added.Outcomes[outcome] = n
		}
	}
	return added
}

// Loans is what changed hands in a block: volumes times how long they were in force.
type Loans struct {
	Harvested   Volume // below user allocations
	Accelerated Volume // above them
	Idle        Volume // in the pool, and lent to nobody
	// Safeguarded is how often a donor was given back a resource because its use came near
	// its lowered limit.
	Safeguarded float64
}

// Volume is a product of resources and time.
type Volume struct{ CoreSeconds, MBSeconds float64 }

// Since is what was added to an earlier reading of the same counters.
func (l Loans) Since(before Loans) Loans {
	volume := func(now, before Volume) Volume {
		return Volume{since(now.CoreSeconds, before.CoreSeconds), since(now.MBSeconds, before.MBSeconds)}
	}
	return Loans{
		volume(l.Harvested, before.Harvested), volume(l.Accelerated, before.Accelerated), volume(l.Idle, before.Idle),
		since(l.Safeguarded, before.Safeguarded),
	}
}

// Bystander is what became of those that have nothing to do with the functions.
type Bystander struct {
	Requests []Request // of the service
	SpinCPU  float64   // core-seconds that the spinning pod had
}
