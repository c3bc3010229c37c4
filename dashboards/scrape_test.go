package dashboards

import (
	"cmp"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/yaml"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/settings"
)

const addressLabel = "__address__"

// target is what one scrape job reads: a port of pods.
type target struct {
	job, namespace, port string
	selector             string
	// address, if set, is read instead of the port, from the same pods.
	address string
}

// targetsOfFile returns the targets of scrape.yaml.
func targetsOfFile(t *testing.T) []target {
	t.Helper()
	data, err := fs.ReadFile(Prometheus(), "scrape.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		ScrapeConfigs []struct {
			JobName  string `json:"job_name"`
			Discover []struct {
				Namespaces struct{ Names []string }
				Selectors  []struct{ Label string }
			} `json:"kubernetes_sd_configs"`
			Relabel []struct {
				SourceLabels []string `json:"source_labels"`
				Regex        string
				Action       string
				TargetLabel  string `json:"target_label"`
				Replacement  string
			} `json:"relabel_configs"`
		} `json:"scrape_configs"`
	}
	if err := yaml.Unmarshal(data, &file); err != nil {
		t.Fatal(err)
	}
	var all []target
	for _, c := range file.ScrapeConfigs {
		port, address := "", ""
		for _, r := range c.Relabel {
			if r.Action == "keep" && slices.Equal(r.SourceLabels, []string{"__meta_kubernetes_pod_container_port_name"}) {
				port = r.Regex
			}
			if r.TargetLabel == addressLabel {
				address = r.Regex + " " + r.Replacement
			}
		}
		for _, d := range c.Discover {
			all = append(all, target{job: c.JobName, namespace: d.Namespaces.Names[0], port: port, selector: d.Selectors[0].Label, address: address})
		}
	}
	return all
}

// targetsOfOperator returns the targets of the PodMonitors.
func targetsOfOperator(t *testing.T) []target {
	t.Helper()
	paths, err := filepath.Glob("operator/podmonitor-*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var all []target
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		var monitor struct {
			Metadata metav1.ObjectMeta
			Spec     struct {
				Selector            metav1.LabelSelector
				PodMetricsEndpoints []struct {
					Port        string
					Relabelings []struct{ TargetLabel, Regex, Replacement string }
				}
			}
		}
		if err := yaml.Unmarshal(data, &monitor); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		endpoint := monitor.Spec.PodMetricsEndpoints[0]
		one := target{
			namespace: monitor.Metadata.Namespace,
			port:      endpoint.Port,
			selector:  labels.SelectorFromSet(monitor.Spec.Selector.MatchLabels).String(),
		}
		for _, r := range endpoint.Relabelings {
			switch r.TargetLabel {
			case "job":
				one.job = r.Replacement
			case addressLabel:
				one.address = r.Regex + " " + r.Replacement
			}
		}
		all = append(all, one)
	}
	return all
}

// The dashboards select by job, so both ways to scrape must have the same jobs.
func TestOperatorScrapesTheSameTargets(t *testing.T) {
	byJob := func(a, b target) int {
		return cmp.Or(strings.Compare(a.job, b.job), strings.Compare(a.selector, b.selector))
	}
	files, operators := targetsOfFile(t), targetsOfOperator(t)
	slices.SortFunc(files, byJob)
	slices.SortFunc(operators, byJob)
	if !slices.Equal(files, operators) {
		t.Errorf("scrape.yaml has %+v, the PodMonitors %+v", files, operators)
	}
}

func TestTargetsAreThere(t *testing.T) {
	var agent struct {
		Spec struct{ Template corev1.PodTemplateSpec }
	}
	resizer, scheduler, plain := agent, agent, agent
	var predictor struct {
		Metadata metav1.ObjectMeta
		Spec     struct{ Predictor corev1.PodSpec }
	}
	for path, into := range map[string]any{
		"base/agent/daemonset.yaml":            &agent,
		"base/resizer/deployment.yaml":         &resizer,
		"base/predictor/inferenceservice.yaml": &predictor,
		"predictor-plain/deployment.yaml":      &plain,
		"scheduler/deployment.yaml":            &scheduler,
	} {
		data, err := os.ReadFile(filepath.Join("../manifests", path))
		if err != nil {
			t.Fatal(err)
		}
		if err := yaml.Unmarshal(data, into); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
	}
	namespaces := map[string]string{
		"libra-agent":     settings.AgentNamespace,
		"libra-resizer":   settings.Namespace,
		"libra-predictor": settings.Namespace,
		"libra-activator": "knative-serving",
		"libra-scheduler": settings.Namespace,
	}
	pods := map[string][]corev1.PodTemplateSpec{
		"libra-agent":     {agent.Spec.Template},
		"libra-resizer":   {resizer.Spec.Template},
		"libra-scheduler": {scheduler.Spec.Template},
		// KServe adds the label and keeps the ports.
		"libra-predictor": {plain.Spec.Template, {
			ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"serving.kserve.io/inferenceservice": predictor.Metadata.Name}},
			Spec:       predictor.Spec.Predictor,
		}},
		// Knative's own Deployment has the label and the port.
		"libra-activator": {{
			ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "activator"}},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Ports: []corev1.ContainerPort{{Name: "metrics"}}}}},
		}},
	}
	for _, target := range targetsOfFile(t) {
		address := ""
		if target.job == "libra-activator" {
			address = fmt.Sprintf(`(.+):\d+ $1:%d`, api.ActivatorMetricsPort)
		}
		if target.address != address {
			t.Errorf("job %s reads %q, want %q", target.job, target.address, address)
		}
		if target.namespace != namespaces[target.job] {
			t.Errorf("job %s looks in %s, its pods are in %s", target.job, target.namespace, namespaces[target.job])
		}
		selector, err := labels.Parse(target.selector)
		if err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(pods[target.job], func(p corev1.PodTemplateSpec) bool { return selector.Matches(labels.Set(p.Labels)) })
		if i < 0 {
			t.Errorf("job %s selects %s, which no pod of that part has, or none that is not scraped already", target.job, target.selector)
			continue
		}
		pod := pods[target.job][i]
		pods[target.job] = slices.Delete(pods[target.job], i, i+1)
		if !slices.ContainsFunc(pod.Spec.Containers[0].Ports, func(p corev1.ContainerPort) bool { return p.Name == target.port }) {
			t.Errorf("job %s reads port %q, its pods have %v", target.job, target.port, pod.Spec.Containers[0].Ports)
		}
	}
	for job, left := range pods {
		for _, pod := range left {
			t.Errorf("pods of %s with the labels %v are not scraped", job, pod.Labels)
		}
	}
}
