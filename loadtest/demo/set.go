package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// parts is how Libra's parts are set.
type parts struct {
	unsafeguarded, unclamped, unweighted bool // of the node agent

	estimator string // of the predictor; empty is the default
	unlimited bool   // predicts durations as unlimited
}

// partsUnknown equals no arm's parts: a change may be half applied.
var partsUnknown = parts{estimator: "unknown"}

// Settings of parts that differ from the defaults, as the agent's flags and the
// predictor's environment.
const (
	noSafeguard        = "--safeguard=false"
	noClamp            = "--clamp=false"
	noWeights          = "--weights=false"
	estimatorEnv       = "LIBRA_ESTIMATOR"
	durationsEnv       = "LIBRA_DURATIONS"
	refitEnv           = "LIBRA_REFIT_INTERVAL_SECONDS"
	movingWindow       = "moving-window"
	unlimitedDurations = "unlimited"
)

// patches returns the patches that set Libra's parts as p says.
func (p parts) patches() []kustomizePatch {
	var patches []kustomizePatch
	agent := func(off bool, flag string) {
		if off {
			patches = append(patches, kustomizePatch{
				Target: kustomizeTarget{Kind: "DaemonSet", Name: "libra-agent"},
				Patch:  fmt.Sprintf("- {op: add, path: /spec/template/spec/containers/0/args/-, value: %s}", flag),
			})
		}
	}
	agent(p.unsafeguarded, noSafeguard)
	agent(p.unclamped, noClamp)
	agent(p.unweighted, noWeights)
	predictor := func(name, value string) {
		patches = append(patches, kustomizePatch{
			Target: kustomizeTarget{Kind: "InferenceService", Name: "libra"},
			Patch:  fmt.Sprintf("- {op: add, path: /spec/predictor/containers/0/env/-, value: {name: %s, value: %s}}", name, value),
		})
	}
	if p.estimator != "" {
		predictor(estimatorEnv, p.estimator)
		// The use of the last five requests must be known at the next one.
		predictor(refitEnv, `"0.1"`)
	}
	if p.unlimited {
		predictor(durationsEnv, unlimitedDurations)
	}
	return patches
}

// setParts sets Libra's parts, and waits until the settings are in force.
func (d *demo) setParts(ctx context.Context, p parts) error {
	dir := d.path("kustomize", "libra")
	if err := d.images.kustomize(dir, libraManifests, "", append(p.patches(), d.agentPatches()...)...); err != nil {
		return err
	}
	if err := d.kubectl.apply(ctx, dir); err != nil {
		return err
	}
	if err := d.awaitAgents(ctx); err != nil {
		return err
	}
	if err := d.awaitPredictor(ctx, func(c corev1.Container) error {
		got := p
		got.estimator, got.unlimited = "", false
		for _, v := range c.Env {
			switch v.Name {
			case estimatorEnv:
				got.estimator = v.Value
			case durationsEnv:
				got.unlimited = v.Value == unlimitedDurations
			}
		}
		if got != p {
			return fmt.Errorf("deployment/libra-predictor has the settings %+v, want %+v", got, p)
		}
		return nil
	}); err != nil {
		return err
	}
	// A replica serves what another has learned until it learns itself.
	return eventually(ctx, time.Minute, func(ctx context.Context) error {
		out, err := d.askPredictor(ctx)
		if err != nil {
			return err
		}
		return p.answering(out)
	})
}

// answering returns an error that names the functions, in the predictor's list, that are
// not answered as the parts are set.
func (p parts) answering(list []byte) error {
	var said struct {
		Functions []struct {
			Name       string
			Estimators map[string]string
		}
	}
	if err := json.Unmarshal(list, &said); err != nil {
		return fmt.Errorf("read the predictor's list of functions: %w", err)
	}
	var wrong []error
	for _, f := range said.Functions {
		cpu, duration := f.Estimators["cpu"], f.Estimators["duration"]
		known := cpu != "" && cpu != "none"
		if known && ((cpu == movingWindow) != (p.estimator == movingWindow) || (duration == unlimitedDurations) != p.unlimited) {
			wrong = append(wrong, fmt.Errorf("the estimator of %s is still %s, and that of its duration %s", f.Name, cpu, duration))
		}
	}
	return errors.Join(wrong...)
}
