package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"libra.dev/libra/loadtest/demo/evaluation"
)

// policy is a way to give out CPU and memory, and what it takes on the cluster.
type policy struct {
	evaluation.Policy
	libra bool // Libra's activator, and its parts as follows
	parts parts
	// services are installed beside the others where the functions are not to be as they
	// are for these.
	services *services
	vpa      bool // the vertical pod autoscaler takes care of the services
}

// parts are how Libra's parts are set.
type parts struct {
	unsafeguarded bool
	threshold     string // of the safeguard; empty is the default
	estimator     string // of the predictor; empty is the default
	unlimited     bool   // durations
}

// The settings of parts that are not the default, as the agent's flag and the predictor's
// environment.
const (
	noSafeguard        = "--safeguard=false"
	estimatorEnv       = "LIBRA_ESTIMATOR"
	durationsEnv       = "LIBRA_DURATIONS"
	refitEnv           = "LIBRA_REFIT_INTERVAL_SECONDS"
	movingWindow       = "moving-window"
	unlimitedDurations = "unlimited"
)

// vpaPolicy works on the box only.
const vpaPolicy = "vpa"

// policies are all that are compared, in the order of the report.
var policies = []policy{
	{Policy: evaluation.Policy{Name: evaluation.Stock, Title: "stock",
		About: "Knative as it is: each function has the limits that its owner configured."}},
	{Policy: evaluation.Policy{Name: evaluation.Again, Title: "stock again",
		About: "The same once more: what differs is noise."}},
	{Policy: evaluation.Policy{Name: evaluation.Libra, Title: "Libra",
		About: "All of Libra."}, libra: true},
	{Policy: evaluation.Policy{Name: evaluation.NoSafeguard, Title: "no safeguard",
		About: "Libra without its safeguard (LIBRA-NS): who lent too much has it back when the request ends."},
		libra: true, parts: parts{unsafeguarded: true}},
	{Policy: evaluation.Policy{Name: evaluation.NoPredictor, Title: "no predictor",
		About: "Libra without its predictor (LIBRA-NP): the most that the last five requests used, whatever their input."},
		libra: true, parts: parts{estimator: movingWindow}},
	{Policy: evaluation.Policy{Name: evaluation.NoBoth, Title: "neither",
		About: "Libra without both (LIBRA-NSP)."}, libra: true, parts: parts{unsafeguarded: true, estimator: movingWindow}},
	{Policy: evaluation.Policy{Name: evaluation.Freyr, Title: "Freyr-like",
		About: "A harvester as the paper describes Freyr: it knows neither the input nor how long what it harvested will last, " +
			"and puts right at a function's next request what it took too much of. Freyr's reinforcement learning is not in it."},
		libra: true, parts: parts{unsafeguarded: true, estimator: movingWindow, unlimited: true}},
	{Policy: evaluation.Policy{Name: "no_limits", Title: "no CPU limits",
		About: "Knative without CPU limits: who wants more than others may take what the node has, and slow them."},
		services: &services{manifests: "loadtest/functions/evaluation-no-limits", optedIn: ten.optedIn, all: ten.all}},
	{Policy: evaluation.Policy{Name: vpaPolicy, Title: "VPA in place",
		About: "Kubernetes' vertical pod autoscaler, its recommender and updater, resizing pods in place by what the " +
			"functions used over time. It works every ten seconds here, not every minute, and has seen the requests that Libra learned from."},
		services: &services{manifests: "loadtest/functions/evaluation-vpa", optedIn: ten.optedIn, all: ten.all}, vpa: true},
}

// atThreshold is Libra with another threshold of the safeguard.
func atThreshold(threshold float64) policy {
	share := strconv.FormatFloat(threshold, 'f', -1, 64)
	return policy{Policy: evaluation.Policy{
		Name:  "threshold_" + share,
		Title: "threshold " + share,
		About: fmt.Sprintf("Libra with a safeguard that fires at %s of a lowered limit. By default it is 0.8.", share),
	}, libra: true, parts: parts{threshold: share}}
}

// named are the policies of some names, in the order of the report. Stock is always
// among them: the others are compared with it.
func named(names []string) ([]policy, error) {
	var known []string
	for _, p := range policies {
		known = append(known, p.Name)
	}
	for _, n := range names {
		if !slices.Contains(known, n) {
			return nil, fmt.Errorf("--policies names %q; it must be some of %s", n, strings.Join(known, ", "))
		}
	}
	return slices.DeleteFunc(slices.Clone(policies), func(p policy) bool {
		return p.Name != evaluation.Stock && !slices.Contains(names, p.Name)
	}), nil
}

// order is that of the policies in a round. Policies with the same activator are next to
// each other, and which is first changes from round to round, so that who comes late in a
// round once comes early in another.
func order(policies []policy, round int) []policy {
	var stock, libra []policy
	for _, p := range policies {
		if p.libra {
			libra = append(libra, p)
		} else {
			stock = append(stock, p)
		}
	}
	if round%2 == 0 {
		slices.Reverse(stock)
		slices.Reverse(libra)
		return append(libra, stock...)
	}
	return append(stock, libra...)
}

// patches are what makes Libra's parts as they are to be.
func (p parts) patches() []kustomizePatch {
	var patches []kustomizePatch
	agent := func(argument string) {
		patches = append(patches, kustomizePatch{
			Target: kustomizeTarget{Kind: "DaemonSet", Name: "libra-agent"},
			Patch:  fmt.Sprintf("- {op: add, path: /spec/template/spec/containers/0/args/-, value: %s}", argument),
		})
	}
	if p.unsafeguarded {
		agent(noSafeguard)
	}
	if p.threshold != "" {
		agent("--threshold=" + p.threshold)
	}
	predictor := func(name, value string) {
		patches = append(patches, kustomizePatch{
			Target: kustomizeTarget{Kind: "InferenceService", Name: "libra"},
			Patch:  fmt.Sprintf("- {op: add, path: /spec/predictor/containers/0/env/-, value: {name: %s, value: %s}}", name, value),
		})
	}
	if p.estimator != "" {
		predictor(estimatorEnv, p.estimator)
		// What the last five used is to be known at the next request.
		predictor(refitEnv, `"0.1"`)
	}
	if p.unlimited {
		predictor(durationsEnv, unlimitedDurations)
	}
	return patches
}
