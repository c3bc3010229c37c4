package main

import (
	"context"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"go.opentelemetry.io/otel/metric/noop"
	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	"libra.dev/libra/activator-plugin/placement"
	"libra.dev/libra/activator-plugin/placement/tapp"
	"libra.dev/libra/loadtest/bench/stats"
	"libra.dev/libra/pkg/api/v1alpha1"
	"libra.dev/libra/pkg/apiservertest"
)

const (
	activators   = 4 // number of activators that follow the policies
	editedPolicy = "edited"
	editTimeout  = 30 * time.Second
)

// reload measures, on a real API server, how long an edit of a PlacementPolicy takes until it is in force in all
// activators, while each of them places requests by it. It adds the results to the metrics.
func (o options) reload(ctx context.Context, metrics map[string]float64, say func(string, ...any)) error {
	blocks, edits := 10, 40
	if o.quick {
		blocks, edits = 2, 5
	}
	say("%d edits of a PlacementPolicy, which %d activators follow and place requests by", blocks*edits, activators)
	e, err := startEditor(ctx, o.kubelite)
	if err != nil {
		return err
	}
	defer e.stop()
	all := make([][]float64, blocks)
	for i := range all {
		for range edits {
			took, err := e.edit(ctx)
			if err != nil {
				return err
			}
			all[i] = append(all[i], float64(took)/float64(time.Millisecond))
		}
	}
	e.stop()
	pooled := stats.Pool(all)
	p99 := stats.Bootstrap(blocks, o.seed, func(counts []int) float64 { return pooled.Percentile(counts, 99) })
	metrics["reload_p99_ms"], metrics["reload_p99_ms_low"], metrics["reload_p99_ms_high"] = p99.Estimate, p99.Low, p99.High
	metrics["reload_edits"] = float64(blocks * edits)
	metrics["reload_requests"], metrics["reload_failed_requests"] = float64(e.placed.Load()), float64(e.failed.Load())
	say("  in force everywhere: P99 %.0f ms (%.0f to %.0f); of %d requests meanwhile %d had nowhere to go", p99.Estimate, p99.Low, p99.High, e.placed.Load(), e.failed.Load())
	return nil
}

// editor edits a policy that activators follow.
type editor struct {
	policies       dynamic.ResourceInterface
	follow         []*tapp.Policies
	at             int // index into nodes
	placed, failed atomic.Int64
	closers        []func()
}

// nodes are the two nodes that the policy sends requests to, one at a time.
var nodes = [2]string{"a", "b"}

// startEditor starts an API server, and the activators' followers of its policies, each with a client of its own.
func startEditor(ctx context.Context, kubelite string) (e *editor, err error) {
	e = &editor{}
	defer func() {
		if err != nil {
			e.stop()
		}
	}()
	config, err := e.startServer(kubelite)
	if err != nil {
		return e, fmt.Errorf("--kubelite: %w", err)
	}
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		return e, err
	}
	for _, name := range nodes {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
		node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
		if _, err := kube.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{}); err != nil {
			return e, err
		}
	}
	objects, err := dynamic.NewForConfig(config)
	if err != nil {
		return e, err
	}
	e.policies = objects.Resource(v1alpha1.GroupVersion.WithResource("placementpolicies")).Namespace(namespace)
	if _, err := e.policies.Create(ctx, e.policy(), metav1.CreateOptions{}); err != nil {
		return e, err
	}
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	e.closers = append(e.closers, func() { cancel(); running.Wait() })
	for range activators {
		own, err := kubernetes.NewForConfig(config)
		if err != nil {
			return e, err
		}
		followed, err := dynamic.NewForConfig(config)
		if err != nil {
			return e, err
		}
		p, err := tapp.NewPolicies(tapp.PoliciesOptions{
			Kube: own, Dynamic: followed, Clock: clock.RealClock{}, Logger: zap.NewNop().Sugar(), MeterProvider: noop.NewMeterProvider(),
		})
		if err != nil {
			return e, err
		}
		e.follow = append(e.follow, p)
		running.Go(func() { p.Run(ctx) })
	}
	if err := e.await(ctx); err != nil {
		return e, err
	}
	for _, p := range e.follow {
		running.Go(func() { e.place(ctx, p) })
	}
	return e, nil
}

// startServer starts an API server with Libra's resource definitions.
func (e *editor) startServer(kubelite string) (*rest.Config, error) {
	binaries, err := os.MkdirTemp("", "bench-place")
	if err != nil {
		return nil, err
	}
	e.closers = append(e.closers, func() { os.RemoveAll(binaries) }) //nolint:errcheck // it is temporary
	if err := apiservertest.Link(kubelite, binaries); err != nil {
		return nil, fmt.Errorf("there is no API server to start: `bin/box build` makes it, and `bin/box path kubelite` prints where it is: %w", err)
	}
	ctrllog.SetLogger(logr.Discard())
	plane := apiservertest.Environment(binaries)
	plane.CRDDirectoryPaths = []string{"manifests/base/crds"}
	e.closers = append(e.closers, func() { plane.Stop() }) //nolint:errcheck // what it leaves is temporary
	config, err := apiservertest.StartEnvironment(plane)
	if err != nil {
		return nil, err
	}
	config.QPS = -1
	return config, nil
}

// stop ends everything, in reverse order. It may be called again.
func (e *editor) stop() {
	for len(e.closers) > 0 {
		last := len(e.closers) - 1
		e.closers[last]()
		e.closers = e.closers[:last]
	}
}

// policy returns a policy that sends all requests to one node, or nowhere.
func (e *editor) policy() *unstructured.Unstructured {
	u := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{
		"followup": "fail",
		"blocks":   []any{map[string]any{"workers": []any{map[string]any{"node": nodes[e.at]}}}},
	}}}
	u.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("PlacementPolicy"))
	u.SetName(editedPolicy)
	return u
}

// edit sends requests to the other node, and returns the time from sending the edit until all activators follow it.
func (e *editor) edit(ctx context.Context) (time.Duration, error) {
	e.at = 1 - e.at
	began := time.Now()
	patch, err := e.policy().MarshalJSON()
	if err != nil {
		return 0, err
	}
	if _, err := e.policies.Patch(ctx, editedPolicy, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		return 0, err
	}
	err = e.await(ctx)
	return time.Since(began), err
}

// await waits until the policy is in force in all activators.
func (e *editor) await(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, editTimeout)
	defer cancel()
	look := time.NewTicker(time.Millisecond)
	defer look.Stop()
	for i := 0; i < len(e.follow); {
		if nodeOf(e.follow[i]) == nodes[e.at] {
			i++
			continue
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("an edit of a PlacementPolicy is not in force in activator %d: %w", i, ctx.Err())
		case <-look.C:
		}
	}
	return nil
}

// place makes an activator place requests, one every millisecond.
func (e *editor) place(ctx context.Context, p *tapp.Policies) {
	next := time.NewTicker(time.Millisecond)
	defer next.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-next.C:
		}
		if nodeOf(p) == "" {
			e.failed.Add(1)
		}
		e.placed.Add(1)
	}
}

// nodeOf returns the node that an activator sends a request to by the policy; empty is nowhere, or past the policy.
func nodeOf(p *tapp.Policies) string {
	program := p.Of(namespace, editedPolicy)
	if program == nil {
		return ""
	}
	candidates := []placement.Candidate{placement.NewCandidate(&placement.Target{Dest: "10.0.0.1:8012", Node: nodes[0]}, nil), placement.NewCandidate(&placement.Target{Dest: "10.0.0.2:8012", Node: nodes[1]}, nil)}
	i, _ := program.Place(&placement.Query{Revision: revision}, candidates)
	if i < 0 {
		return ""
	}
	return candidates[i].Node
}
