//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"

	"libra.dev/libra/dashboards"
	"libra.dev/libra/loadtest/prometheus"
)

const (
	onlyWrong  = "the safeguard fires only when a prediction was too low"
	onlyLarger = "the functions need no more memory than their limits"
	onlyFaults = "counts only what fails"
	onlyLate   = "recorded only where a limit was not restored before it was read again, or another had lowered it"
	onlyOthers = "counted only where another than Libra, as the kubelet, changed a limit"
	onlyNode   = "the functions are under the source owners"
	onlyStands = "patched is only what stands: a ceiling, or memory beyond a limit"
	onlyChoice = "counted only where a function has several pods"
	onlyPolicy = "counted only where a placement policy is for the function"
	onlyPlaced = "libra-scheduler is not installed"
	onlyBeyond = "bystanders are looked at only while a function uses more than its allocation"
)

// unseen has the metrics that may be missing in a healthy run, and why. All others must be there, and every query on
// none of these must have data.
var unseen = map[string]string{
	"libra_agent_safeguards_total":                  onlyWrong,
	"libra_agent_safeguard_reaction_seconds_bucket": onlyWrong,
	"libra_agent_borrowed_memory_total":             onlyLarger,
	"libra_agent_below_owed_seconds_total":          onlyLate,
	"libra_agent_exceeded_seconds_bucket":           onlyLate,
	"libra_agent_rewrites_total":                    onlyOthers,
	"libra_agent_weights_total":                     onlyNode,
	"libra_agent_weights_wake_seconds_bucket":       onlyNode,
	"libra_queue_wait_seconds_bucket":               onlyNode,
	"libra_queue_overtaken_total":                   onlyNode,
	"libra_placement_choices_total":                 onlyChoice,
	"libra_placement_cpu_seconds_total":             onlyChoice,
	"libra_placement_duration_seconds_bucket":       onlyChoice,
	"libra_placement_over_concurrency_total":        onlyFaults,
	"libra_placement_policy_decisions_total":        onlyPolicy,
	"libra_placement_forwards_total":                onlyPolicy,
	"libra_scheduler_pods_total":                    onlyPlaced,
	"libra_scheduler_unplaceable_total":             onlyPlaced,
	"libra_scheduler_redis_failures_total":          onlyPlaced,
	"libra_agent_clamped_seconds_total":             onlyBeyond,
	"libra_agent_bystanders_waited_seconds_total":   onlyBeyond,
	"libra_agent_credits":                           onlyBeyond,
	"libra_resizer_resizes_total":                   onlyStands,
	"libra_resizer_resize_latency_seconds_bucket":   onlyStands,
	"libra_resizer_max_cpu_refused_total":           onlyFaults,
	"libra_agent_redis_errors_total":                onlyFaults,
	"libra_resizer_pool_errors_total":               onlyFaults,
	"libra_predictor_observations_skipped_total":    onlyFaults,
	"libra_predictor_store_refusals_total":          onlyFaults,
	"libra_annotations_refused_total":               onlyFaults,
}

// A real Prometheus accepts every query of the dashboards and the recording rules, and has data for each while
// functions are called. Meanwhile no alert would fire.
func TestDashboardsHaveData(t *testing.T) {
	ctx := t.Context()
	p := startPrometheus(t, *kubeconfig)
	running := startLoadWithRests(ctx, 15*time.Second, 4*time.Second)
	awaitTargets(ctx, t, p)

	missing := allQueries(t)
	node := find(ctx, t, "compression").node
	// Each query is asked only until it has data.
	eventually(t, 6*time.Minute, "data in every panel", func() error {
		values, err := variablesOf(ctx, p, node)
		if err != nil {
			return err
		}
		var empty []string
		for where, q := range missing {
			samples, err := p.Query(ctx, q.Fill(values))
			switch {
			case errors.Is(err, prometheus.ErrInvalid):
				t.Fatalf("%s: %v", where, err)
			case err != nil:
				return err
			case len(samples) > 0:
				checkLegend(t, q, samples)
				delete(missing, where)
			case !mayBeEmpty(t, q.Fill(values)):
				empty = append(empty, where)
			}
		}
		if len(empty) > 0 {
			slices.Sort(empty)
			<-time.After(scrapeEvery) // nothing is new before
			return fmt.Errorf("%d are empty: %s", len(empty), strings.Join(empty, "; "))
		}
		return nil
	})
	for where := range missing {
		t.Logf("empty, as it may be: %s", where)
	}
	there, err := p.LabelValues(ctx, `{__name__=~".+"}`, "__name__")
	if err != nil {
		t.Fatal(err)
	}
	for name := range metricsOf(t) {
		if !slices.Contains(there, name) && unseen[name] == "" {
			t.Errorf("no part exports %s, which a panel or a rule is on", name)
		}
	}
	// The condition of an alert may hold for a moment without firing it, as for the activator that was just replaced
	// and is still scraped. Some alerts look back five minutes.
	eventually(t, 8*time.Minute, "silence of all alerts", func() error {
		var errs []error
		for _, r := range alerts(t) {
			samples, err := p.Query(ctx, r.Expr)
			if len(samples) > 0 {
				err = fmt.Errorf("%s: %v", r.Alert, samples)
			}
			errs = append(errs, err)
		}
		err := errors.Join(errs...)
		if err != nil {
			<-time.After(scrapeEvery)
		}
		return err
	})
	running.stop(t)
}

// alertFault is a fault that an alert must see.
type alertFault struct {
	name, alert string
	fault       func(ctx context.Context, t *testing.T) (mend func())
	// looksBack means that the alert looks back longer than a test lasts.
	looksBack bool
}

// Every safety alert sees its fault.
func TestAlertsSeeFaults(t *testing.T) {
	tests := []alertFault{
		{name: "agent stopped", alert: "LibraNodeAgentSilent", fault: stopAgent},
		{name: "redis gone", alert: "LibraNodeNotWhole", fault: withoutRedis},
		{name: "journal that is not writable", alert: "LibraJournalFails", fault: breakJournal, looksBack: true},
		{name: "limits that another raises", alert: "LibraInvariantViolated", fault: anotherManager("uploader", 200), looksBack: true},
		{name: "limits that another lowers", alert: "LibraContainersBelowOwed", fault: anotherManager("compression", 20), looksBack: true},
		{name: "predictions that are wrong", alert: "LibraSafeguardFiresOften", fault: predictWrongly, looksBack: true},
	}
	groups, err := dashboards.Groups()
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range groups {
		for _, r := range g.Rules {
			known := slices.ContainsFunc(tests, func(f alertFault) bool { return f.alert == r.Alert })
			if g.Name == "libra-safety" && !known {
				t.Errorf("no fault for %s", r.Alert)
			}
		}
	}
	// Some faults need loans, which a function that has just been learned does not get soon.
	functions := findAll(t.Context(), t)
	donor, borrower := functions["uploader"], functions["compression"]
	watched := watchQuotas(t.Context(), donor, borrower)
	running := startLoad(t.Context())
	watched.awaitLoan(t, donor, borrower)
	running.stop(t)
	watched.stop()
	all := alerts(t)
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			ctx := t.Context()
			p := startPrometheus(t, *kubeconfig)
			awaitTargets(ctx, t, p)
			alert := all[slices.IndexFunc(all, func(r dashboards.Rule) bool { return r.Alert == test.alert })]
			raised := func() error {
				samples, err := p.Query(ctx, alert.Expr)
				if err == nil && len(samples) == 0 {
					err = fmt.Errorf("%s is empty", alert.Expr)
				}
				return err
			}
			if raised() == nil {
				t.Fatalf("%s is raised before the fault", test.alert)
			}
			mend := test.fault(ctx, t)
			defer func() {
				raisedInTime := !t.Failed()
				if !raisedInTime {
					tellOfLending(t, donor, borrower)
				}
				mend()
				if raisedInTime && t.Failed() {
					tellOfLending(t, donor, borrower)
				}
				if test.looksBack {
					return
				}
				eventually(t, 2*time.Minute, "end of "+test.alert, func() error {
					if raised() == nil {
						return errors.New("it is still raised")
					}
					return nil
				})
			}()
			eventually(t, 2*time.Minute, test.alert, raised)
		})
	}
}

// Each alert fires in its fault and at no other time, according to made-up series.
func TestAlertsFire(t *testing.T) {
	output, err := exec.Command(boxBinary(t, "promtool"), "test", "rules", "../../dashboards/testdata/alerts.yaml").CombinedOutput()
	if err != nil {
		t.Errorf("%v:\n%s", err, output)
	}
}

// The API server accepts what docs/dashboards.md has users apply. The box does not have the operator's kinds, so its
// objects are only rendered.
func TestKustomizationsAreAccepted(t *testing.T) {
	for _, args := range [][]string{
		{"--kubeconfig=" + *kubeconfig, "apply", "--server-side", "--dry-run=server", "-k", "../../dashboards"},
		{"kustomize", "../../dashboards/operator"},
	} {
		cmd := exec.Command(boxBinary(t, "kubelite"))
		cmd.Args = append([]string{"kubectl"}, args...) // argv[0] selects the command
		output, err := cmd.CombinedOutput()
		if err != nil || len(output) == 0 {
			t.Errorf("kubectl %s: %v\n%s", strings.Join(args, " "), err, output)
		}
	}
}

// parts has the jobs that Prometheus has with no setting changed.
var parts = []string{"libra-activator", "libra-agent", "libra-predictor", "libra-resizer"}

// awaitTargets waits until a pod of each of these jobs answers.
func awaitTargets(ctx context.Context, t *testing.T, p *prometheus.Server) {
	t.Helper()
	eventually(t, 2*time.Minute, "targets", func() error {
		up, err := p.Query(ctx, `sum by (job) (up{job=~"libra-.+"}) > 0`)
		if err != nil {
			return err
		}
		found := map[string]bool{}
		for _, s := range up {
			found[s.Labels["job"]] = true
		}
		for _, job := range parts {
			if !found[job] {
				return fmt.Errorf("no target of job %s answers", job)
			}
		}
		return nil
	})
}

// variablesOf resolves the dashboards' variables as Grafana does. It picks the function that borrows, and the node that
// this is on.
func variablesOf(ctx context.Context, p *prometheus.Server, node string) (map[string]string, error) {
	values := map[string]string{"__rate_interval": "5m", "__range": "15m"}
	all, err := dashboards.Dashboards()
	if err != nil {
		return nil, err
	}
	for _, d := range all {
		for _, v := range d.Templating.List {
			selector, label, ok := v.LabelValues()
			if !ok {
				continue
			}
			found, err := p.LabelValues(ctx, selector.Fill(values), label)
			if err == nil && len(found) == 0 {
				err = errors.New("there is none")
			}
			if err != nil {
				return nil, fmt.Errorf("values of variable %s of %s: %w", v.Name, d.Title, err)
			}
			values[v.Name] = found[max(0, slices.IndexFunc(found, func(s string) bool { return s == node || strings.HasPrefix(s, "compression") }))]
		}
	}
	return values, nil
}

// allQueries returns the queries of panels and recording rules, by where they are.
func allQueries(t *testing.T) map[string]dashboards.Query {
	t.Helper()
	queries := map[string]dashboards.Query{}
	all, err := dashboards.Dashboards()
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range all {
		for _, q := range d.Queries() {
			queries[q.Where] = q
		}
	}
	for _, r := range rules(t) {
		if r.Record != "" {
			queries[r.Query().Where] = r.Query()
			recorded := dashboards.Query{Where: "series " + r.Record, Expr: r.Record}
			queries[recorded.Where] = recorded
		}
	}
	return queries
}

// mayBeEmpty reports whether a query uses a metric that may be missing.
func mayBeEmpty(t *testing.T, query string) bool {
	t.Helper()
	for name := range metricsIn(t, query) {
		if unseen[name] != "" {
			return true
		}
	}
	return false
}

// metricsOf returns the metrics that any panel or rule uses.
func metricsOf(t *testing.T) map[string]bool {
	t.Helper()
	names := map[string]bool{}
	for _, q := range allQueries(t) {
		maps.Copy(names, metricsIn(t, q.Fill(map[string]string{"__rate_interval": "1m", "__range": "1m"})))
	}
	for _, r := range alerts(t) {
		maps.Copy(names, metricsIn(t, r.Expr))
	}
	return names
}

func metricsIn(t *testing.T, query string) map[string]bool {
	t.Helper()
	expr, err := parser.ParseExpr(query)
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, selectors := range parser.ExtractSelectors(expr) {
		for _, m := range selectors {
			if m.Name == labels.MetricName {
				names[m.Value] = true
			}
		}
	}
	return names
}

func rules(t *testing.T) []dashboards.Rule {
	t.Helper()
	groups, err := dashboards.Groups()
	if err != nil {
		t.Fatal(err)
	}
	var all []dashboards.Rule
	for _, g := range groups {
		all = append(all, g.Rules...)
	}
	return all
}

func alerts(t *testing.T) []dashboards.Rule {
	t.Helper()
	return slices.DeleteFunc(rules(t), func(r dashboards.Rule) bool { return r.Alert == "" })
}

var legendLabel = regexp.MustCompile(`\{\{(\w+)\}\}`)

// checkLegend fails the test if the legend has a label that no series has.
func checkLegend(t *testing.T, q dashboards.Query, samples []prometheus.Sample) {
	t.Helper()
	for _, match := range legendLabel.FindAllStringSubmatch(q.Legend, -1) {
		if !slices.ContainsFunc(samples, func(s prometheus.Sample) bool { return s.Labels[match[1]] != "" }) {
			t.Errorf("%s: no series has the label %s of its legend", q.Where, match[1])
		}
	}
}
