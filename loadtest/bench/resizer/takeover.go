package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"libra.dev/libra/loadtest/bench/rig"
	"libra.dev/libra/loadtest/bench/stats"
	"libra.dev/libra/loadtest/demo/report"
	"libra.dev/libra/pkg/settings"
)

const (
	takeoverTimeout = time.Minute
	lookEvery       = 20 * time.Millisecond
	// upToDate is how long the replicas are left alone before a leader is killed, so that all of them
	// know the current lease. A random part of pauseMost is added, because the lease is renewed at
	// fixed times.
	upToDate  = 4 * time.Second
	pauseMost = 3 * time.Second
)

// measureTakeovers kills leaders, and each time makes something due at once.
func (s *site) measureTakeovers(ctx context.Context, l *lenders, replicas []*replica, kubeconfig string, metrics map[string]float64) (figure, error) {
	s.say("killing the leader %d times", s.takeovers)
	random := rand.New(rand.NewPCG(s.seed, 3))
	started := len(replicas)
	var took []float64
	for n := range s.takeovers {
		if err := rig.Pause(ctx, upToDate+time.Duration(random.Int64N(int64(pauseMost)))); err != nil {
			return figure{}, err
		}
		leads, err := s.leader(ctx, replicas)
		if err != nil {
			return figure{}, err
		}
		replicas = slices.DeleteFunc(replicas, func(r *replica) bool { return r == leads })
		// Another pod each time, in a namespace where nothing else is due.
		node := random.IntN(s.nodes)
		pod := namespaceOf(1) + "/" + podName(node, n%l.functions)

		leads.kill()
		killed := time.Now()
		if err := l.need(ctx, node, pod, 2*allocation.MemoryBytes); err != nil {
			return figure{}, err
		}
		at, err := s.awaitResize(ctx, pod, killed)
		if err != nil {
			return figure{}, fmt.Errorf("after %s was killed: %w", leads.name, err)
		}
		took = append(took, at.Sub(killed).Seconds())
		s.say("  %d of %d: the next leader acted after %.1f s", n+1, s.takeovers, took[n])

		if err := l.need(ctx, node, pod, 0); err != nil {
			return figure{}, err
		}
		next, err := s.startReplica(started, kubeconfig)
		if err != nil {
			return figure{}, err
		}
		started++
		if err := next.awaitReady(ctx); err != nil {
			return figure{}, err
		}
		replicas = append(replicas, next)
	}
	metrics["takeovers"] = float64(len(took))
	median := stats.Percentile(took, 50, 1, s.seed)
	metrics["takeover_median_s"], metrics["takeover_median_low_s"], metrics["takeover_median_high_s"] = median.Estimate, median.Low, median.High
	worst := stats.Exactly(report.Percentile(took, 100))
	what := fmt.Sprintf("leader killed, to the next one's patch: worst, s (median %.1f, %.1f to %.1f)", median.Estimate, median.Low, median.High)
	return figure{name: "takeover_s", what: what, estimate: worst, goal: stats.Goal{Bound: 10}, of: fmt.Sprintf("%d times", len(took))}, nil
}

// leader returns the replica that holds the lease.
func (s *site) leader(ctx context.Context, replicas []*replica) (*replica, error) {
	lease, err := s.kube.CoordinationV1().Leases(settings.Namespace).Get(ctx, leaseName, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	for _, r := range replicas {
		if err := r.ended(); err != nil {
			return nil, err
		}
		if lease.Spec.HolderIdentity != nil && *lease.Spec.HolderIdentity == r.name {
			return r, nil
		}
	}
	return nil, fmt.Errorf("no running replica holds lease %s: %v", leaseName, lease.Spec)
}

// awaitResize waits for a pod's first resize after a time, and returns when it was accepted.
func (s *site) awaitResize(ctx context.Context, pod string, after time.Time) (at time.Time, err error) {
	ctx, cancel := context.WithTimeout(ctx, takeoverTimeout)
	defer cancel()
	for {
		if err := s.audit.read(); err != nil {
			return at, err
		}
		if at, ok := s.audit.resizedAfter(pod, after); ok {
			return at, nil
		}
		if err := rig.Pause(ctx, lookEvery); err != nil {
			return at, fmt.Errorf("no replica gave pod %s the memory that it needs within %v: %w", pod, takeoverTimeout, err)
		}
	}
}
