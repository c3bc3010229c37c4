package dashboards

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"libra.dev/libra/docs/reference"
)

// parts maps prefixes of metrics to the parts that export them. The first prefix that fits counts.
var parts = []struct{ prefix, name string }{
	{"libra_agent_", "Node agent"},
	{"libra_resizer_", "Resizer"},
	{"libra_predictor_", "Predictor"},
	{"libra_scheduler_", "Scheduler"},
	{"libra_settings_", "Activator, node agent and resizer"},
	{"libra_duplicator_", "Activator, with the duplicator"},
	{"libra_", "Activator"},
}

// perRevision are the labels that Knative has for a revision.
const perRevision = "`k8s_namespace_name`, `kn_revision_name`"

var label = regexp.MustCompile("`[a-z0-9_]+`")

func TestReferenceOfMetrics(t *testing.T) {
	p := reference.New("Metrics",
		"As Prometheus has them. In the sources, and over OTLP, there are dots for underscores, and neither units nor `_total` at the end. "+
			"[Dashboards](../dashboards.md) says where to read them.")
	for i, part := range parts {
		p.Table(part.name, "metric", "type", "labels", "meaning")
		for _, f := range families(t) {
			is := slices.IndexFunc(parts, func(p struct{ prefix, name string }) bool { return strings.HasPrefix(f.name, p.prefix) })
			if is != i {
				continue
			}
			labels := label.FindAllString(f.help, -1)
			if strings.Contains(f.help, "per revision") {
				labels = append([]string{perRevision}, labels...)
			}
			p.Row(reference.Code(f.name), f.kind, strings.Join(labels, ", "), f.help)
		}
	}
	p.Check(t, "..", "metrics.md", *update)
}

func TestReferenceOfAlerts(t *testing.T) {
	p := reference.New("Alerts and recorded series", "Each has [a runbook](../alerts.md). The rules are in `dashboards/prometheus/`.")
	p.Table("Alerts", "alert", "severity", "after", "it says")
	for _, r := range rules(t) {
		if r.Alert != "" {
			p.Row("["+r.Alert+"](../alerts.md#"+strings.ToLower(r.Alert)+")", r.Labels["severity"], r.For, r.Annotations["summary"])
		}
	}
	p.Table("Recorded series", "series", "expression")
	for _, r := range rules(t) {
		if r.Record != "" {
			p.Row(reference.Code(r.Record), reference.Code(r.Expr))
		}
	}
	p.Check(t, "..", "alerts.md", *update)
}
