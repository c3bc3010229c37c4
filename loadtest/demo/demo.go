package main

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	// learnSeed is far from every seed that a person gives: Libra must not learn from the
	// requests that it is measured with.
	learnSeed = 1 << 32

	// A function's pod takes time to drain.
	removeTimeout = 4 * time.Minute

	// modelsTimeout is how long the predictor may take to learn after the last request.
	modelsTimeout = time.Minute

	// settleTime is the predictor's refit interval, plus the age at which the activator
	// fetches a table again.
	settleTime = 6 * time.Second
)

// demo is a cluster, and the functions in one of its namespaces.
type demo struct {
	options
	namespace string // of the functions
	services  services
	kubectl   kubectl
	kube      client.Client // of the same cluster; created when first needed
	workers   []string      // of a box of several nodes
	images    images
	targets   targets
	corpus    []byte
	out       io.Writer
	start     time.Time
}

// boxed reports whether the cluster is the box, which nobody else uses.
func (d *demo) boxed() bool { return d.context == "" }

// say writes a line of progress.
func (d *demo) say(format string, args ...any) {
	fmt.Fprintf(d.out, "[%4.0f s] %s\n", time.Since(d.start).Seconds(), fmt.Sprintf(format, args...))
}

// path returns the path of a file in the results folder.
func (d *demo) path(names ...string) string {
	return filepath.Join(append([]string{d.outDir}, names...)...)
}

// awaitModels waits until the predictor has learned every function. A function that it
// has not learned runs with its own limits, so the demo goes on without it. If it has
// learned none, that is an error.
func (d *demo) awaitModels(ctx context.Context) error {
	var missing []string
	// Not the attempt's context: an answer that arrives when time is up counts.
	_ = eventually(ctx, modelsTimeout, func(context.Context) error {
		if missing = d.modelsMissing(ctx); len(missing) > 0 {
			return fmt.Errorf("no model of %s", strings.Join(missing, ", "))
		}
		return nil
	})
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case len(missing) == len(d.services.optedIn):
		return fmt.Errorf("the predictor learned nothing within %v of the last request: see the logs of inferenceservice/libra in %s and daemonset/libra-agent in %s", modelsTimeout, libraNamespace, agentNamespace)
	case len(missing) > 0:
		d.say("the predictor has no model of %s yet: Libra leaves them alone", strings.Join(missing, ", "))
	default:
		d.say("the predictor has a model of each function")
	}
	return nil
}
