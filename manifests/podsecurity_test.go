package manifests

import (
	"encoding/json"
	"fmt"
	"maps"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	podsecurity "k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"

	"libra.dev/libra/pkg/kubectl/uninstall"
	"libra.dev/libra/pkg/settings"
)

// podless are those of our kinds that make no pods.
var podless = []string{
	"ConfigMap", "NetworkPolicy", "PodDisruptionBudget", "ResourceQuota", "Role", "RoleBinding", "Service", "ServiceAccount",
}

func TestOnlyTheNodeAgentsNamespaceIsPrivileged(t *testing.T) {
	want := map[string]podsecurity.Level{
		settings.Namespace:      podsecurity.LevelRestricted,
		settings.AgentNamespace: podsecurity.LevelPrivileged,
		uninstall.Job:           podsecurity.LevelRestricted,
	}
	got := map[string]podsecurity.Level{}
	for _, o := range all(t) {
		if o.Kind == "Namespace" {
			got[o.Metadata.Name] = podsecurity.Level(o.Metadata.Labels[podsecurity.EnforceLevelLabel])
		}
	}
	if !maps.Equal(got, want) {
		t.Errorf("pod security of the namespaces is %v, want %v", got, want)
	}
	for _, o := range all(t) {
		if o.Metadata.Namespace == settings.AgentNamespace && o.Kind != "ServiceAccount" && o.Kind != "ResourceQuota" && (o.Kind != "DaemonSet" || o.Metadata.Name != "libra-agent") {
			t.Errorf("%s %s is in %s, where only the node agent needs to be", o.Kind, o.Metadata.Name, settings.AgentNamespace)
		}
	}
}

// The API server only checks pods, when they are created: it accepts a Deployment whose pods it
// refuses, and the Deployment has none.
func TestPodsAreAdmittedToTheirNamespaces(t *testing.T) {
	evaluator, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
	if err != nil {
		t.Fatal(err)
	}
	refusal := func(level podsecurity.Level, pod corev1.PodTemplateSpec) string {
		results := evaluator.EvaluatePod(podsecurity.LevelVersion{Level: level, Version: podsecurity.LatestVersion()}, &pod.ObjectMeta, &pod.Spec)
		refused := policy.AggregateCheckResults(results)
		return refused.ForbiddenDetail()
	}
	for _, p := range pods(t) {
		switch p.namespace {
		case settings.Namespace, uninstall.Job:
			if detail := refusal(podsecurity.LevelRestricted, p.PodTemplateSpec); detail != "" {
				t.Errorf("%s %s: its pods are refused in %s: %s", p.of, p.name, p.namespace, detail)
			}
		case settings.AgentNamespace:
			if refusal(podsecurity.LevelBaseline, p.PodTemplateSpec) == "" {
				t.Errorf("the pods of %s %s satisfy baseline, so that %s need not be privileged", p.of, p.name, settings.AgentNamespace)
			}
		}
	}
}

// podOf returns the pod that an object makes. KServe turns an InferenceService into a Deployment
// whose pods have what its predictor says.
func podOf(o object) (corev1.PodTemplateSpec, error) {
	var of struct {
		Spec struct {
			Template  corev1.PodTemplateSpec `json:"template"`
			Predictor corev1.PodSpec         `json:"predictor"`
		} `json:"spec"`
	}
	if err := json.Unmarshal(o.whole, &of); err != nil {
		return corev1.PodTemplateSpec{}, fmt.Errorf("%s %s: %w", o.Kind, o.Metadata.Name, err)
	}
	pod := of.Spec.Template
	if o.Kind == "InferenceService" {
		pod = corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Name: o.Metadata.Name}, Spec: of.Spec.Predictor}
	}
	if len(pod.Spec.Containers) == 0 {
		return pod, fmt.Errorf("%s %s is of a kind whose pods this test does not know", o.Kind, o.Metadata.Name)
	}
	return pod, nil
}

// roots are the kustomizations that no other includes.
var roots = []string{"base", "predictor-plain", "activator", "scheduler", "components/duplicator", "components/namespace-opt-in", "uninstall"}

// all returns the objects of all kustomizations, each once.
func all(t *testing.T) []object {
	t.Helper()
	return rendered(t, roots...)
}

func rendered(t *testing.T, dirs ...string) []object {
	t.Helper()
	var objects []object
	for _, dir := range dirs {
		found, err := render(dir, map[string]bool{})
		if err != nil {
			t.Fatal(err)
		}
		objects = append(objects, found...)
	}
	return objects
}
