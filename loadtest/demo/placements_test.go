package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"libra.dev/libra/loadtest/demo/evaluation"
	"libra.dev/libra/loadtest/trace"
	"libra.dev/libra/pkg/api"
)

func TestFunctionsAreSpreadOverWorkers(t *testing.T) {
	for phase, pods := range podsEach {
		t.Run(phase, func(t *testing.T) {
			functions := render(t, phase, armNamed(placementName(api.SourceOwners, api.PlacementHash)), "")
			if len(functions) != len(trace.Mixed) {
				t.Errorf("%d functions, want %d", len(functions), len(trace.Mixed))
			}
			for name, f := range functions {
				template := f.Spec.Template
				for _, scale := range []string{"min-scale", "max-scale"} {
					if got := template.Annotations["autoscaling.knative.dev/"+scale]; got != fmt.Sprint(pods) {
						t.Errorf("%s: %s is %q, want %d", name, scale, got, pods)
					}
				}
				if c := template.Spec.ContainerConcurrency; c == nil || *c == 0 {
					t.Errorf("%s: a pod takes any number of requests, so that nothing is chosen", name)
				}
				constraints := template.Spec.TopologySpreadConstraints
				if len(constraints) != 1 {
					t.Fatalf("%s: %d constraints", name, len(constraints))
				}
				c := constraints[0]
				if c.MaxSkew != 1 || c.TopologyKey != corev1.LabelHostname || c.WhenUnsatisfiable != corev1.DoNotSchedule ||
					c.NodeTaintsPolicy == nil || *c.NodeTaintsPolicy != corev1.NodeInclusionPolicyHonor || len(c.MatchLabelKeys) != 1 || c.LabelSelector == nil {
					t.Errorf("%s: the constraint is %+v", name, c)
				}
			}
		})
	}
	for name, f := range render(t, phaseTen, armNamed(evaluation.Owners), "") {
		if len(f.Spec.Template.Spec.TopologySpreadConstraints) > 0 {
			t.Errorf("with one pod, %s is spread", name)
		}
	}
}

func TestWhoIsNotSpread(t *testing.T) {
	pod := func(function, node string) corev1.Pod {
		return podOf(t, `{"metadata":{"labels":{"serving.knative.dev/service":"`+function+`"}},"spec":{"nodeName":"`+node+`"}}`)
	}
	s := services{all: []string{"mst", "bfs"}, each: 2}
	for name, c := range map[string]struct {
		pods []corev1.Pod
		want string
	}{
		"one on each":  {[]corev1.Pod{pod("mst", "w1"), pod("mst", "w2"), pod("bfs", "w2"), pod("bfs", "w1")}, ""},
		"both on one":  {[]corev1.Pod{pod("mst", "w1"), pod("mst", "w2"), pod("bfs", "w2"), pod("bfs", "w2")}, "bfs has its pods on map[w2:2]"},
		"none of them": {nil, ""},
	} {
		err := s.spreadOver([]string{"w1", "w2"}, c.pods)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "mst")) {
			t.Errorf("%s: got %v, want %q", name, err, c.want)
		}
	}
}

// Settings are restored at the end: a key that did not exist is removed.
func TestSettingsArePutBack(t *testing.T) {
	k, log := fakeKubectl(t, `case "$*" in
"get "*config-libra*) echo '{"data":{"placement":"random"}}';;
"get "*) echo '{"data":{"other":"x"}}';;
esac`)
	e := nodesEvaluation()
	e.kubectl = k
	for _, c := range [][4]string{{"libra-system", "config-libra", "placement", "hash"}, {"knative-serving", "config-features", "spread", "enabled"}, {"libra-system", "config-libra", "placement", "coverage"}} {
		if err := e.change(t.Context(), c[0], c[1], c[2], c[3]); err != nil {
			t.Fatal(err)
		}
	}
	if err := e.putSettingsBack(t.Context()); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	var patches []string
	for line := range strings.Lines(string(data)) {
		if _, patch, ok := strings.Cut(strings.TrimSpace(line), "--patch="); ok {
			patches = append(patches, patch)
		}
	}
	want := []string{
		`{"data":{"placement":"hash"}}`, `{"data":{"spread":"enabled"}}`, `{"data":{"placement":"coverage"}}`,
		`{"data":{"spread":null}}`, `{"data":{"placement":"random"}}`,
	}
	if diff := cmp.Diff(want, patches); diff != "" {
		t.Errorf("patches (-want +got):\n%s", diff)
	}
}

const activatorSays = `# TYPE libra_placement_choices_total counter
libra_placement_choices_total{policy="hash",outcome="moved"} 4
libra_placement_choices_total{policy="hash",outcome="no_choice"} 2
libra_placement_choices_total{policy="coverage",outcome="kept"} 7
# TYPE libra_placement_cpu_seconds_total counter
libra_placement_cpu_seconds_total{kind="promised"} 3
libra_placement_cpu_seconds_total{kind="granted"} 2.5
`

func TestChoicesAreTheActivatorsCounters(t *testing.T) {
	k, _ := fakeKubectl(t, `case "$*" in
*--raw*/namespaces/knative-serving/pods/activator-*:9095/proxy/metrics) cat <<'EOF'
`+activatorSays+`EOF
;;
*"-n knative-serving "*app=activator*) echo '{"items":[{"metadata":{"name":"activator-1"}},{"metadata":{"name":"activator-2"}}]}';;
esac`)
	d := demo{kubectl: k, out: io.Discard}
	got, err := d.choices(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want := evaluation.Placed{Outcomes: map[string]float64{"moved": 8, "no_choice": 4}, Promised: 6, Granted: 5}
	if diff := cmp.Diff(want, got.of(api.PlacementHash)); diff != "" {
		t.Errorf("hash (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(evaluation.Placed{Outcomes: map[string]float64{"kept": 14}, Promised: 6, Granted: 5}, got.of(api.PlacementCoverage)); diff != "" {
		t.Errorf("coverage (-want +got):\n%s", diff)
	}
}

func TestAPlacementIsInForceWhenAllWerePlacedByIt(t *testing.T) {
	of := func(by ...any) choices {
		c := choices{by: map[string]map[string]float64{}}
		for i := 0; i < len(by); i += 2 {
			c.by[by[i].(string)] = map[string]float64{"kept": by[i+1].(float64)}
		}
		return c
	}
	for name, c := range map[string]struct {
		before, after choices
		placement     api.Placement
		ok            bool
	}{
		"all":                           {of("hash", 5.0), of("hash", 8.0), api.PlacementHash, true},
		"some by another":               {of("coverage", 1.0), of("coverage", 2.0, "hash", 2.0), api.PlacementHash, false},
		"all by another":                {of(), of("coverage", 3.0), api.PlacementHash, false},
		"all, and others long ago":      {of("coverage", 9.0), of("coverage", 9.0, "hash", 3.0), api.PlacementHash, true},
		"none was chosen":               {of("hash", 5.0), of("hash", 5.0), api.PlacementHash, false},
		"none, and stock chooses none":  {of("hash", 5.0), of("hash", 5.0), api.PlacementStock, true},
		"stock, and one was chosen":     {of("hash", 5.0), of("hash", 6.0), api.PlacementStock, false},
		"an activator that began since": {of("hash", 500.0), of("hash", 3.0), api.PlacementHash, true},
	} {
		if err := c.after.since(c.before).only(c.placement, 3); (err == nil) != c.ok {
			t.Errorf("%s: got %v", name, err)
		}
	}
}
