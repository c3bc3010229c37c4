package dashboards

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/promql/parser"
	"sigs.k8s.io/yaml"
)

// mostPanels is the number of panels that still fit on a screen or two.
const mostPanels = 13

func TestDashboardsAreLegible(t *testing.T) {
	all, err := Dashboards()
	if err != nil {
		t.Fatal(err)
	}
	if len(all) != 7 {
		t.Errorf("%d dashboards, want 7", len(all))
	}
	uids := map[string]bool{}
	for _, d := range all {
		if want := "libra-" + strings.TrimSuffix(d.File, ".json"); d.UID != want {
			t.Errorf("%s has uid %q; links go by %q", d.File, d.UID, want)
		}
		if uids[d.UID] || !slices.Contains(d.Tags, "libra") {
			t.Errorf("%s: its uid is another's too, or it lacks the tag libra, by which they link to each other", d.File)
		}
		uids[d.UID] = true
		if len(d.Panels) == 0 || len(d.Panels) > mostPanels {
			t.Errorf("%s has %d panels, want 1 to %d", d.File, len(d.Panels), mostPanels)
		}
		first := d.Templating.List[0]
		if first.Name != "datasource" || first.Type != "datasource" {
			t.Errorf("%s: the first variable is %q of type %q, want the data source", d.File, first.Name, first.Type)
		}
		for _, v := range d.Templating.List[1:] {
			if _, _, ok := v.LabelValues(); !ok || v.Datasource.UID != "${datasource}" {
				t.Errorf("%s: variable %s is no label_values(selector, label) of the chosen data source", d.File, v.Name)
			}
		}
		taken := map[[2]int]string{}
		ids := map[int]bool{}
		for _, p := range d.Panels {
			where := d.File + ", " + p.Title
			if p.Title == "" || len(p.Description) < 20 || p.FieldConfig.Defaults.Unit == "" || len(p.Targets) == 0 {
				t.Errorf("%s lacks a title, a description, a unit or a query: %q, %q", where, p.Description, p.FieldConfig.Defaults.Unit)
			}
			if p.Datasource.UID != "${datasource}" || p.Datasource.Type != "prometheus" {
				t.Errorf("%s has data source %v, want the variable", where, p.Datasource)
			}
			if ids[p.ID] {
				t.Errorf("%s has the id %d of another panel", where, p.ID)
			}
			ids[p.ID] = true
			for y := range p.GridPos.H {
				for x := range p.GridPos.W {
					at := [2]int{p.GridPos.X + x, p.GridPos.Y + y}
					if other := taken[at]; other != "" || at[0] >= 24 {
						t.Fatalf("%s lies on %q or sticks out at %v", where, other, at)
					}
					taken[at] = p.Title
				}
			}
		}
	}
}

var (
	variable  = regexp.MustCompile(`\$\{?(\w+)\}?`)
	inLegends = regexp.MustCompile(`\{\{(\w+)\}\}`)
)

// Grafana sends a variable that it does not know to Prometheus as it is written.
func TestQueriesUseVariablesThatAreThere(t *testing.T) {
	all, err := Dashboards()
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range all {
		known := []string{"__range", "__rate_interval"}
		for _, v := range d.Templating.List {
			known = append(known, v.Name)
		}
		for _, q := range d.Queries() {
			for _, match := range variable.FindAllStringSubmatch(q.Expr, -1) {
				if !slices.Contains(known, match[1]) {
					t.Errorf("%s uses $%s, want one of %v", q.Where, match[1], known)
				}
			}
		}
	}
}

// If the query sums away a label of the legend, nothing in the legend tells series apart.
func TestLegendsNameLabelsThatAreKept(t *testing.T) {
	all, err := Dashboards()
	if err != nil {
		t.Fatal(err)
	}
	queries := allQueries(t)
	for _, d := range all {
		for _, q := range d.Queries() {
			expr, err := parser.ParseExpr(queries[q.Where])
			if err != nil {
				t.Fatalf("%s: %v", q.Where, err)
			}
			kept := map[string]bool{}
			parser.Inspect(expr, func(node parser.Node, _ []parser.Node) error {
				if sum, ok := node.(*parser.AggregateExpr); ok {
					for _, label := range sum.Grouping {
						kept[label] = true
					}
				}
				return nil
			})
			for _, match := range inLegends.FindAllStringSubmatch(q.Legend, -1) {
				if !kept[match[1]] {
					t.Errorf("%s has {{%s}} in its legend and does not keep that label", q.Where, match[1])
				}
			}
		}
	}
}

func TestFillTakesTheLongestName(t *testing.T) {
	q := Query{Expr: `rate(a{b="$node", c="${node}s"}[$__rate_interval])`}
	got := q.Fill(map[string]string{"node": "n1", "no": "wrong", "__rate_interval": "1m"})
	if want := `rate(a{b="n1", c="n1s"}[1m])`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestDashboardsAreProvisioned(t *testing.T) {
	data, err := os.ReadFile("grafana/kustomization.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var kustomization struct {
		GeneratorOptions   struct{ Labels map[string]string }
		ConfigMapGenerator []struct {
			Name  string
			Files []string
		}
	}
	if err := yaml.Unmarshal(data, &kustomization); err != nil {
		t.Fatal(err)
	}
	if kustomization.GeneratorOptions.Labels["grafana_dashboard"] != "1" {
		t.Error("the ConfigMaps lack the label grafana_dashboard, by which Grafana's sidecar finds them")
	}
	var provisioned []string
	for _, g := range kustomization.ConfigMapGenerator {
		provisioned = append(provisioned, g.Files...)
	}
	all, err := Dashboards()
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range all {
		if !slices.Contains(provisioned, d.File) {
			t.Errorf("%s is in no ConfigMap", d.File)
		}
	}
}
