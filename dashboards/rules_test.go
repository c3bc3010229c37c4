package dashboards

import (
	"bytes"
	"flag"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

var update = flag.Bool("update", false, "rewrite operator/prometheusrule.yaml from the rule files")

const (
	operatorRules = "operator/prometheusrule.yaml"
	runbooks      = "docs/alerts.md"
)

func rules(t *testing.T) []Rule {
	t.Helper()
	groups, err := Groups()
	if err != nil {
		t.Fatal(err)
	}
	var all []Rule
	for _, g := range groups {
		all = append(all, g.Rules...)
	}
	return all
}

// Everybody whom an alert wakes finds what to do about it.
func TestAlertsHaveARunbook(t *testing.T) {
	docs, err := os.ReadFile("../" + runbooks)
	if err != nil {
		t.Fatal(err)
	}
	var headings []string
	for _, match := range regexp.MustCompile(`(?m)^#+ (Libra\w+)$`).FindAllStringSubmatch(string(docs), -1) {
		headings = append(headings, match[1])
	}
	var alerts []string
	for _, r := range rules(t) {
		if r.Alert == "" {
			continue
		}
		alerts = append(alerts, r.Alert)
		if severity := r.Labels["severity"]; !slices.Contains([]string{"critical", "warning", "info"}, severity) {
			t.Errorf("%s has severity %q, want critical, warning or info", r.Alert, severity)
		}
		if r.Annotations["summary"] == "" || !strings.HasSuffix(r.Annotations["runbook"], runbooks+"#"+strings.ToLower(r.Alert)) {
			t.Errorf("%s lacks a summary, or a runbook that ends in its heading in %s", r.Alert, runbooks)
		}
	}
	slices.Sort(headings)
	slices.Sort(alerts)
	if !slices.Equal(headings, alerts) {
		t.Errorf("%s has headings for %v, the alerts are %v", runbooks, headings, alerts)
	}
}

// The end-to-end test runs them with promtool, which is not available here.
func TestAlertsHaveATest(t *testing.T) {
	data, err := os.ReadFile("testdata/alerts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var file struct{ Tests []struct{ Name string } }
	if err := yaml.Unmarshal(data, &file); err != nil {
		t.Fatal(err)
	}
	tested := map[string]bool{}
	for _, test := range file.Tests {
		tested[test.Name] = true
	}
	for _, r := range rules(t) {
		if r.Alert != "" && !tested[r.Alert] {
			t.Errorf("alert %s has no test in testdata/alerts.yaml", r.Alert)
		}
	}
}

func TestRecordingRulesAreNamedByLevelMetricAndOperation(t *testing.T) {
	name := regexp.MustCompile(`^[a-z]+:[a-z_]+:[a-z0-9_]+$`)
	for _, r := range rules(t) {
		if r.Record != "" && !name.MatchString(r.Record) {
			t.Errorf("%q is not of the form level:metric:operation", r.Record)
		}
	}
}

// The operator reads the rules from an object of its own, Prometheus from files. Both say the
// same. With -update, the test writes the object.
func TestOperatorHasTheSameRules(t *testing.T) {
	groups, err := Groups()
	if err != nil {
		t.Fatal(err)
	}
	spec, err := yaml.Marshal(map[string]any{
		"apiVersion": "monitoring.coreos.com/v1",
		"kind":       "PrometheusRule",
		"metadata":   map[string]string{"name": "libra", "namespace": "libra-system"},
		"spec":       map[string]any{"groups": groups},
	})
	if err != nil {
		t.Fatal(err)
	}
	want := append([]byte("# Made from ../prometheus/*.yaml by go test ./dashboards -update.\n"), spec...)
	if *update {
		if err := os.WriteFile(operatorRules, want, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(operatorRules)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s differs from the rule files: write it anew with go test ./dashboards -run OperatorHas -update", operatorRules)
	}
}
