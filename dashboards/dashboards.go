// Package dashboards reads the queries of Libra's dashboards and rules, for the tests that
// send them to Prometheus.
package dashboards

import (
	"embed"
	"encoding/json"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

//go:embed grafana/*.json prometheus/*.yaml
var files embed.FS

// RuleFiles are the names of the rule files in Prometheus().
var RuleFiles = []string{"recording.yaml", "safety.yaml", "health.yaml"}

// Prometheus returns the scrape jobs, scrape.yaml, and the rule files.
func Prometheus() fs.FS {
	sub, err := fs.Sub(files, "prometheus")
	if err != nil {
		panic(err) // the path is not valid
	}
	return sub
}

// Query is an expression that is sent to Prometheus.
type Query struct {
	// Where says in which dashboard and panel, or in which rule, the query is.
	Where string
	// Expr is the expression as written. A panel's may have Grafana's variables in it.
	Expr string
	// Legend is the panel's text for each series, with {{label}} in it.
	Legend string
}

// Fill returns the expression with a value in place of each of Grafana's variables. The keys
// of values are the variables' names, without their $.
func (q Query) Fill(values map[string]string) string {
	// Longest names first: $__range must not be taken for one called $__rang.
	names := make([]string, 0, len(values))
	for name := range values {
		names = append(names, name)
	}
	slices.SortFunc(names, func(a, b string) int { return len(b) - len(a) })
	var pairs []string
	for _, name := range names {
		pairs = append(pairs, "${"+name+"}", values[name], "$"+name, values[name])
	}
	return strings.NewReplacer(pairs...).Replace(q.Expr)
}

// Rule is a recording rule or an alert. Either Record or Alert is empty.
type Rule struct {
	Record      string            `json:"record,omitempty"`
	Alert       string            `json:"alert,omitempty"`
	Expr        string            `json:"expr"`
	For         string            `json:"for,omitempty"`
	Labels      map[string]string `json:"labels,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

// Group is a group of rules, as Prometheus and its operator have it.
type Group struct {
	Name  string `json:"name"`
	Rules []Rule `json:"rules"`
}

// Groups reads all rule files.
func Groups() ([]Group, error) {
	var all []Group
	for _, name := range RuleFiles {
		data, err := fs.ReadFile(Prometheus(), name)
		if err != nil {
			return nil, err
		}
		var file struct {
			Groups []Group `json:"groups"`
		}
		if err := yaml.UnmarshalStrict(data, &file); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		all = append(all, file.Groups...)
	}
	return all, nil
}

// Query returns the rule's expression.
func (r Rule) Query() Query {
	if r.Alert != "" {
		return Query{Where: "alert " + r.Alert, Expr: r.Expr}
	}
	return Query{Where: "record " + r.Record, Expr: r.Expr}
}

// Source is the data source of a panel or a variable.
type Source struct{ Type, UID string }

// Dashboard is the part of Grafana's model that the tests look at.
type Dashboard struct {
	File       string
	UID, Title string
	Tags       []string
	Templating struct{ List []Variable }
	Panels     []Panel
}

// Variable is chosen by the dashboard's user.
type Variable struct {
	Name, Type string
	Datasource Source
	Query      json.RawMessage
}

// Panel is a panel of a dashboard.
type Panel struct {
	ID                       int
	Type, Title, Description string
	Datasource               Source
	GridPos                  struct{ H, W, X, Y int }
	FieldConfig              struct{ Defaults struct{ Unit string } }
	Targets                  []struct{ RefID, Expr, LegendFormat string }
}

// Dashboards reads all dashboards.
func Dashboards() ([]Dashboard, error) {
	names, err := fs.Glob(files, "grafana/*.json")
	if err != nil {
		return nil, err
	}
	var all []Dashboard
	for _, name := range names {
		data, err := fs.ReadFile(files, name)
		if err != nil {
			return nil, err
		}
		d := Dashboard{File: path.Base(name)}
		if err := json.Unmarshal(data, &d); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		all = append(all, d)
	}
	return all, nil
}

// Queries returns the queries of the dashboard's panels.
func (d Dashboard) Queries() []Query {
	var all []Query
	for _, p := range d.Panels {
		for _, t := range p.Targets {
			all = append(all, Query{Where: fmt.Sprintf("%s, %s, %s", d.Title, p.Title, t.RefID), Expr: t.Expr, Legend: t.LegendFormat})
		}
	}
	return all
}

// LabelValues returns the series selector and the label of a variable that lists a label's
// values. ok is false for a variable of another kind.
func (v Variable) LabelValues() (selector Query, label string, ok bool) {
	var query struct{ Query string }
	if v.Type != "query" || json.Unmarshal(v.Query, &query) != nil {
		return Query{}, "", false
	}
	inner, isCall := strings.CutPrefix(query.Query, "label_values(")
	comma := strings.LastIndex(inner, ", ")
	if !isCall || comma < 0 || !strings.HasSuffix(inner, ")") {
		return Query{}, "", false
	}
	return Query{Where: "variable " + v.Name, Expr: inner[:comma]}, strings.TrimSuffix(inner[comma+2:], ")"), true
}
