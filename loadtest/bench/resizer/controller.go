package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"libra.dev/libra/loadtest/bench/machine"
	"libra.dev/libra/loadtest/bench/rig"
	"libra.dev/libra/loadtest/bench/stats"
	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/settings"
)

const (
	leaseName = "libra-resizer"

	fillTimeout   = 20 * time.Minute
	settleTimeout = 20 * time.Minute
	// quietTime is how long there must be no resize for the cluster to have settled. settledTime
	// is how long it is left alone then.
	quietTime   = 5 * time.Second
	settledTime = 15 * time.Second
	// enough is the share of the requested loans that must have been made.
	enough = 0.9
)

// replica is one replica of the controller.
type replica struct {
	*process
	health, metrics string // host:port
}

func (s *site) startReplica(n int, kubeconfig string) (*replica, error) {
	r := &replica{}
	var err error
	for _, into := range []*string{&r.health, &r.metrics} {
		if *into, err = machine.FreeAddress(); err != nil {
			return nil, err
		}
	}
	name := fmt.Sprintf("libra-resizer-%d", n)
	r.process, err = s.launch(name, s.controller, nil, "--kubeconfig", kubeconfig, "--redis-addr", s.redis,
		"--metrics-addr", r.metrics, "--health-addr", r.health, "--pod-name", name)
	return r, err
}

func (r *replica) awaitReady(ctx context.Context) error {
	return r.process.awaitReady(ctx, "http://"+r.health+"/readyz")
}

// counter returns the sum over all series of one of the process's own counters.
func counter(ctx context.Context, metrics, name string) (float64, error) {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+metrics+"/metrics", nil)
	if err != nil {
		return 0, err
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, err
	}
	defer answer.Body.Close() //nolint:errcheck // read only
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		return 0, err
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(text))
	if err != nil {
		return 0, err
	}
	sum := 0.0
	for _, m := range families[name].GetMetric() {
		sum += m.GetCounter().GetValue() + m.GetGauge().GetValue()
	}
	return sum, nil
}

// startNodes starts KWOK, and waits until all pods run.
func (s *site) startNodes(ctx context.Context) error {
	config := filepath.Join(s.dir, "kwok.yaml")
	if err := os.WriteFile(config, stages, 0o600); err != nil {
		return err
	}
	kwok, err := s.launch("kwok", s.kwok, nil, "--kubeconfig", s.kubeconfig, "--config", config, "-v", "WARN")
	if err != nil {
		return err
	}
	if err := s.fill(ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, fillTimeout)
	defer cancel()
	for n := 0; ; n++ {
		// At most one pod: listing all of them costs what KWOK then lacks.
		pending, err := s.kube.CoreV1().Pods("").List(ctx, metav1.ListOptions{FieldSelector: "status.phase=Pending", Limit: 1})
		if err != nil {
			return fmt.Errorf("wait until KWOK runs all pods (its log is %s): %w", kwok.log, err)
		}
		if len(pending.Items) == 0 {
			return nil
		}
		if n%10 == 0 {
			s.say("  not all pods run yet")
		}
		if err := rig.Pause(ctx, 2*time.Second); err != nil {
			return fmt.Errorf("KWOK does not run pod %s (its log is %s): %w", pending.Items[0].Name, kwok.log, err)
		}
		if err := kwok.ended(); err != nil {
			return err
		}
	}
}

// measureController measures the controller of a large cluster.
func (s *site) measureController(ctx context.Context, metrics map[string]float64) (figures []figure, err error) {
	if err := s.startNodes(ctx); err != nil {
		return nil, err
	}
	l, err := s.newLenders(ctx)
	if err != nil {
		return nil, err
	}
	s.onClose(l.close)

	kubeconfig, err := s.account(ctx, settings.Namespace, "libra-resizer")
	if err != nil {
		return nil, err
	}
	s.say("starting the controller, which gives %d pods their ceilings", s.ceilings())
	first, err := s.startReplica(0, kubeconfig)
	if err != nil {
		return nil, err
	}
	started := time.Now()
	if err := s.awaitSettled(ctx, first); err != nil {
		return nil, err
	}
	metrics["ceilings"], metrics["ceilings_s"] = float64(s.ceilings()), s.audit.resizes[len(s.audit.resizes)-1].at.Sub(started).Seconds()
	second, err := s.startReplica(1, kubeconfig)
	if err != nil {
		return nil, err
	}
	if err := second.awaitReady(ctx); err != nil {
		return nil, err
	}

	lending, stop := context.WithCancel(ctx)
	lent := make(chan error, 1)
	go func() { lent <- l.lend(lending, s.loans) }()
	defer func() {
		stop()
		if lendErr := <-lent; err == nil {
			err = lendErr
		}
	}()
	if err := rig.Pause(ctx, settledTime); err != nil {
		return nil, err
	}
	if figures, err = s.measureLoans(ctx, l, first, second, metrics); err != nil {
		return nil, err
	}
	taken, err := s.measureTakeovers(ctx, l, []*replica{first, second}, kubeconfig, metrics)
	if err != nil {
		return nil, err
	}
	metrics["pods"], metrics["nodes"], metrics["pods_opted_in"] = float64(s.pods), float64(s.nodes), float64(s.nodes*s.optedInEach())
	return append(figures, taken), nil
}

// ceilings is the number of pods that have a ceiling.
func (s *site) ceilings() int { return s.nodes * s.optedInEach() / 2 }

// awaitSettled waits until all ceilings are in force and the resizes have stopped.
func (s *site) awaitSettled(ctx context.Context, r *replica) error {
	ctx, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	lack := s.ceilings()
	for n := 0; ; n++ {
		if err := s.audit.read(); err != nil {
			return err
		}
		done := len(s.audit.resizes)
		if done > 0 && time.Since(s.audit.resizes[done-1].at) >= quietTime {
			var err error
			if lack, err = s.lackCeilings(ctx); err != nil {
				return err
			}
			if lack == 0 {
				return nil
			}
		}
		if n%10 == 9 {
			s.say("  %d resizes", done)
		}
		if err := rig.Pause(ctx, time.Second); err != nil {
			return fmt.Errorf("%d of %d pods lack their ceilings, or the controller still resizes pods (its log is %s): %w", lack, s.ceilings(), r.log, err)
		}
		if err := r.ended(); err != nil {
			return err
		}
	}
}

// lackCeilings counts the pods whose ceiling is not in force yet. It cannot count accepted
// resizes, because those lack the ones whose answers came too late for the controller.
func (s *site) lackCeilings(ctx context.Context) (lack int, err error) {
	for i := range namespaces {
		if lends(i) {
			continue
		}
		pods, err := s.kube.CoreV1().Pods(namespaceOf(i)).List(ctx, metav1.ListOptions{ResourceVersion: "0"})
		if err != nil {
			return 0, err
		}
		for _, pod := range pods.Items {
			if !hasCeiling(&pod) {
				lack++
			}
		}
	}
	return lack, nil
}

// hasCeiling reports whether a pod's ceiling is in its spec, and in force on its node.
func hasCeiling(pod *corev1.Pod) bool {
	isUser := func(c corev1.Container) bool {
		return c.Name == api.UserContainer && c.Resources.Limits.Cpu().MilliValue() == nodeCPU
	}
	return slices.ContainsFunc(pod.Spec.Containers, isUser) && pod.Status.ObservedGeneration == pod.Generation
}

// measureLoans measures both replicas while loans are made and nothing else happens.
func (s *site) measureLoans(ctx context.Context, l *lenders, leads, waits *replica, metrics map[string]float64) ([]figure, error) {
	s.say("measuring for %v, with %.0f loans a second", s.length, s.loans)
	const reconciles = "controller_runtime_reconcile_total"
	reconciledBefore, err := counter(ctx, leads.metrics, reconciles)
	if err != nil {
		return nil, err
	}
	if err := s.audit.read(); err != nil {
		return nil, err
	}
	kindsBefore, resizesBefore := maps.Clone(s.audit.kinds), len(s.audit.resizes)
	madeBefore, refusedBefore := l.made.Load(), l.refused.Load()
	uses, err := s.watch(ctx, s.length, leads.process, waits.process)
	if err != nil {
		return nil, err
	}
	made, refused := l.made.Load()-madeBefore, l.refused.Load()-refusedBefore
	reconciled, err := counter(ctx, leads.metrics, reconciles)
	if err != nil {
		return nil, err
	}
	if err := s.audit.read(); err != nil {
		return nil, err
	}
	leader, standby := uses[0], uses[1]
	seconds := leader.to.Sub(leader.from).Seconds()
	if rate := float64(made) / seconds; rate < enough*s.loans {
		return nil, fmt.Errorf("only %.0f of %.0f loans a second passed (%d were refused): this machine has no CPU time for more; see --loans", rate, s.loans, refused)
	}
	var asked []float64
	for from := leader.from; from.Add(block / 2).Before(leader.to); from = from.Add(block) {
		asked = append(asked, float64(s.audit.between(from, from.Add(block)))/block.Seconds())
	}

	metrics["loans_per_s"] = float64(made) / seconds
	metrics["loans_refused"] = float64(refused)
	metrics["reconciles_per_s"] = (reconciled - reconciledBefore) / seconds
	metrics["resizes_while_measured"] = float64(len(s.audit.resizes) - resizesBefore)
	metrics["controller_rss_settled_mib"], metrics["controller_rss_anonymous_mib"] = slices.Max(leader.memory), leader.anonMiB
	metrics["standby_rss_mib"] = standby.peakMiB
	metrics["standby_cores"] = mean(standby.cores)
	s.say("  %.0f loans a second, %.0f reconciles a second; requests to the API server: %s", metrics["loans_per_s"], metrics["reconciles_per_s"], differences(kindsBefore, s.audit.kinds))
	over := fmt.Sprintf("%.0f s", seconds)
	return []figure{
		{name: "controller_rss_mib", what: "controller: memory, MiB (its peak since the start)", estimate: stats.Exactly(leader.peakMiB), goal: stats.Goal{Bound: 300}, of: over},
		{name: "controller_cores", what: "controller: cores while loans pass", estimate: stats.Mean(leader.cores), goal: stats.Goal{Bound: 0.2}, of: over},
		{name: "api_requests_per_s", what: "API requests a second, of both replicas", estimate: stats.Mean(asked), goal: stats.Goal{Bound: 5}, of: over},
	}, nil
}

// differences says how many more of each kind there are now.
func differences(before, now map[string]int) string {
	var said []string
	for _, kind := range slices.Sorted(maps.Keys(now)) {
		if more := now[kind] - before[kind]; more > 0 {
			said = append(said, fmt.Sprintf("%d %s", more, kind))
		}
	}
	return strings.Join(said, ", ")
}

func mean(values []float64) float64 {
	sum := 0.0
	for _, v := range values {
		sum += v
	}
	return sum / float64(len(values))
}
