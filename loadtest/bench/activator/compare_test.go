package main

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// constant returns a series in which each arm's requests take that many milliseconds.
func constant(blocks int, perArm ...float64) series {
	s := make(series, len(perArm))
	for arm, latency := range perArm {
		for range blocks {
			m := measured{cpu: time.Duration(latency) * time.Millisecond}
			for range 100 {
				m.paced.latencies = append(m.paced.latencies, latency)
				m.closed.latencies = append(m.closed.latencies, latency)
			}
			m.closed.length = time.Duration(latency) * 100 * time.Millisecond
			s[arm] = append(s[arm], m)
		}
	}
	return s
}

func TestComparison(t *testing.T) {
	metrics := map[string]float64{}
	note(metrics, optedIn, constant(3, 10, 10, 12).compare(1))
	for name, want := range map[string]float64{
		"p50_ms_stock_opted_in": 10, "p99_ms_libra_opted_in": 12,
		"p99_ratio_opted_in": 1.2, "p99_ratio_opted_in_low": 1.2, "p99_ratio_opted_in_high": 1.2,
		"p99_ratio_stock_again_opted_in": 1, "p99_ratio_stock_again_opted_in_high": 1,
		"rps_stock_opted_in": 100, "rps_ratio_opted_in": 10.0 / 12,
		"cpu_us_per_request_libra_opted_in": 120, "cpu_us_ratio_opted_in": 1.2,
	} {
		if got, there := metrics[name]; !there || got < want-1e-9 || got > want+1e-9 {
			t.Errorf("%s = %v (there: %v), want %v", name, got, there, want)
		}
	}
}

// varying returns a series whose blocks differ too much for a ratio to mean anything.
func varying() series {
	s := constant(2, 10, 10, 10)
	for arm, factor := range map[int]float64{stock: 2, stockAgain: 2, libra: 3} {
		for i := range s[arm][1].paced.latencies {
			s[arm][1].paced.latencies[i] *= factor
		}
	}
	return s
}

func TestTable(t *testing.T) {
	for name, c := range map[string]struct {
		series series
		want   map[string]string // by figure
	}{
		"the same":       {constant(2, 10, 10, 10), map[string]string{"p99": "at most 1.1  holds", "rps": "at least 0.9  holds"}},
		"twice as long":  {constant(2, 10, 10, 20), map[string]string{"p99": "at most 1.1  does not hold", "rps": "at least 0.9  does not hold"}},
		"a friendly end": {varying(), map[string]string{"p99": "at most 1.1  not known: the interval is wider than ±10 %"}},
		"one block":      {constant(1, 10, 10, 10), map[string]string{"p99": "at most 1.1  not known: the interval is wider than ±10 %"}},
	} {
		var out bytes.Buffer
		if err := writeTable(&out, map[string][]compared{optedIn: c.series.compare(1)}); err != nil {
			t.Fatal(err)
		}
		for figure, want := range c.want {
			i := slices.IndexFunc(strings.Split(out.String(), "\n"), func(line string) bool {
				return strings.Contains(line, figure) && strings.HasSuffix(strings.TrimSpace(line), want)
			})
			if i < 0 {
				t.Errorf("%s: no line of %s ends in %q:\n%s", name, figure, want, out.String())
			}
		}
	}
}

func TestCopiesOfTheInstalledActivator(t *testing.T) {
	installed := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "activator"},
		Spec: appsv1.DeploymentSpec{
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "activator"}},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "activator"}},
				Spec: corev1.PodSpec{ServiceAccountName: "activator", Containers: []corev1.Container{{
					Name: "activator", Image: "stock", Env: []corev1.EnvVar{{Name: "GOGC", Value: "500"}},
				}}},
			},
		},
	}
	ours := withImage(installed, "registry.test/ours:1")
	want := installed.DeepCopy()
	want.Spec.Template.Spec.Containers[0].Image = "registry.test/ours:1"
	if diff := cmp.Diff(want, ours); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if installed.Spec.Template.Spec.Containers[0].Image != "stock" {
		t.Error("the installed one was changed")
	}

	a := &arm{name: "stock_again"}
	copied := a.copyOf(installed)
	if copied.Name != "bench-activator-stock-again" || copied.Spec.Template.Labels["app"] != "" ||
		copied.Spec.Selector.MatchLabels[benchLabel] != "stock_again" || copied.Spec.Template.Labels[benchLabel] != "stock_again" {
		t.Errorf("%s selects %v among pods with %v", copied.Name, copied.Spec.Selector.MatchLabels, copied.Spec.Template.Labels)
	}
	if installed.Spec.Template.Labels["app"] != "activator" {
		t.Error("the installed one was changed")
	}
}
