package main

import (
	"path"
	"slices"

	"libra.dev/libra/loadtest/demo/evaluation"
	"libra.dev/libra/pkg/api"
)

// arm is a way to give out CPU and memory, and what it needs on the cluster. All arms are
// behind Libra's activator, which leaves alone what did not opt in. Each has a namespace
// of its own, so that one can follow another without any change.
type arm struct {
	evaluation.Arm
	// functions is the kustomization of its functions, in evaluationManifests.
	functions string
	// at names the arm in whose namespace the functions are; empty means its own.
	at string
	// learns says that its functions opted in.
	learns bool
	source api.Source // of its namespace; empty means the cluster's, which is node
	vpa    bool       // the vertical pod autoscaler manages its functions
	parts  parts
	// queue is the order of its functions' queues; empty means Libra's.
	queue string
	// keepsIdle says that its pods lend nothing between requests.
	keepsIdle bool
	// perfect says that the oracle, not the predictor, tells what its requests will use.
	perfect bool
	// placement is the placement policy for its requests; empty means the cluster's.
	placement api.Placement
}

const evaluationManifests = "loadtest/functions/evaluation"

// place returns the name of the arm in whose namespace the functions are.
func (a arm) place() string {
	if a.at != "" {
		return a.at
	}
	return a.Name
}

// weighs reports whether its functions' pods have CPU weights that follow their requests
// in flight.
func (a arm) weighs() bool { return a.learns && a.source != api.SourceOwners && !a.parts.unweighted }

// manifests returns the path of the kustomization of its functions in a phase.
func (a arm) manifests(phase string) string {
	if phase == phaseMemory {
		return path.Join(evaluationManifests, "memory", a.functions)
	}
	return path.Join(evaluationManifests, a.functions)
}

// arms are those that the evaluation compares, in the order of the report.
var arms = []arm{
	{Arm: evaluation.Arm{Name: evaluation.Stock, Title: "stock",
		About: "Knative as it is: each function has the limits that its owner configured."}, functions: "stock"},
	{Arm: evaluation.Arm{Name: evaluation.Again, Title: "stock again",
		About: "The same pods measured again: any difference is noise."}, functions: "stock", at: evaluation.Stock},
	{Arm: evaluation.Arm{Name: evaluation.Libra, Title: "Libra",
		About: "Libra as it is installed, with the mode full: it lends what the node has idle, and the shortest request goes first."},
		functions: "functions", learns: true},
	{Arm: evaluation.Arm{Name: evaluation.Owners, Title: "Libra, owners",
		About: "Libra as in its paper: it lends what other functions do not use of their own allocations. " +
			"Functions that run with Knative's defaults otherwise have the activator in their path and a bound on their requests here, as this source needs."},
		functions: "owners", learns: true, source: api.SourceOwners},
	{Arm: evaluation.Arm{Name: evaluation.NoLimits, Title: "no limits",
		About: "Knative without CPU limits, and with the same CPU requests."}, functions: "no-limits"},
	{Arm: evaluation.Arm{Name: evaluation.NoLimitsWeighted, Title: "no limits, weighted",
		About: "Knative without CPU limits, and with CPU requests in proportion to the limits that it had."}, functions: "no-limits-weighted"},
	{Arm: evaluation.Arm{Name: evaluation.VPA, Title: "VPA in place",
		About: "Kubernetes' vertical pod autoscaler resizes pods in place by their past use; limits are twice the requests. " +
			"It runs every ten seconds here, not every minute, and has seen requests before."}, functions: "vpa", vpa: true},
	{Arm: evaluation.Arm{Name: evaluation.Fits, Title: "limits that fit",
		About: "Knative as it is, with a memory limit that fits every input."}, functions: "fits"},
}

// ablations are Libra without some of its parts. They are measured in a run of their own.
var ablations = []arm{
	{Arm: evaluation.Arm{Name: "owners_no_safeguard", Base: evaluation.Owners, Title: "no safeguard",
		About: "Libra, owners, without its safeguard (LIBRA-NS): a pod that lent too much gets it back only when the request ends."},
		functions: "owners", at: evaluation.Owners, learns: true, source: api.SourceOwners, parts: parts{unsafeguarded: true}},
	{Arm: evaluation.Arm{Name: evaluation.OwnersNoIdle, Base: evaluation.Owners, Title: "no idle donors",
		About: "Libra, owners, whose pods lend only while they have requests, as in the paper."},
		functions: "owners", learns: true, source: api.SourceOwners, keepsIdle: true},
	{Arm: evaluation.Arm{Name: "owners_no_predictor", Base: evaluation.Owners, Title: "no predictor",
		About: "Libra, owners, without its predictor (LIBRA-NP): a prediction is the most that the last five requests used, whatever their inputs."},
		functions: "owners", at: evaluation.Owners, learns: true, source: api.SourceOwners, parts: parts{estimator: movingWindow}},
	{Arm: evaluation.Arm{Name: "owners_neither", Base: evaluation.Owners, Title: "neither",
		About: "Libra, owners, without both (LIBRA-NSP)."},
		functions: "owners", at: evaluation.Owners, learns: true, source: api.SourceOwners, parts: parts{unsafeguarded: true, estimator: movingWindow}},
	{Arm: evaluation.Arm{Name: "owners_freyr", Base: evaluation.Owners, Title: "Freyr-like",
		About: "A harvester as the paper describes Freyr: it knows neither the input nor how long a loan will last, " +
			"and when it took too much, corrects that only at the function's next request. It lacks Freyr's reinforcement learning."},
		functions: "owners", at: evaluation.Owners, learns: true, source: api.SourceOwners,
		parts: parts{unsafeguarded: true, estimator: movingWindow, unlimited: true}},
	{Arm: evaluation.Arm{Name: "libra_no_weights", Base: evaluation.Libra, Title: "no weights",
		About: "Libra with the CPU weights that the kubelet gives: requests that are short or owed CPU get it no sooner."},
		functions: "functions", at: evaluation.Libra, learns: true, parts: parts{unweighted: true}},
	{Arm: evaluation.Arm{Name: "libra_fifo", Base: evaluation.Libra, Title: "no queue order",
		About: "Libra with queues in the order of arrival."}, functions: "functions", learns: true, queue: api.QueueFIFO},
	{Arm: evaluation.Arm{Name: "libra_no_clamp", Base: evaluation.Libra, Title: "no clamp",
		About: "Libra whose functions may use CPU up to their ceilings, whether or not bystanders wait for it."},
		functions: "functions", at: evaluation.Libra, learns: true, parts: parts{unclamped: true}},
	{Arm: evaluation.Arm{Name: "libra_perfect", Base: evaluation.Libra, Title: "perfect predictor",
		About: "Libra with perfect predictions: what each input used when it ran alone."},
		functions: "functions", learns: true, perfect: true},
}

// escraLike says which ablation is missing, and why.
const escraLike = "An Escra-like arm, which raises and lowers limits by throttling and use alone: without predictions Libra borrows in this way, but lends nothing that could be borrowed."

// allArms returns the arms of all evaluations, in the order of the reports.
func allArms() []arm { return slices.Concat(arms, ablations, placements) }

// armNamed returns the arm with a name. It panics if there is none.
func armNamed(name string) arm {
	for _, a := range allArms() {
		if a.Name == name {
			return a
		}
	}
	panic("there is no arm " + name)
}
