package main

import (
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"
	"sigs.k8s.io/yaml"

	"libra.dev/libra/loadtest/demo/evaluation"
	"libra.dev/libra/loadtest/trace"
	"libra.dev/libra/pkg/api"
)

func TestArmsDifferInWhatTheySay(t *testing.T) {
	type key struct {
		field int
		said  string
	}
	seen := map[key]string{}
	for _, a := range slices.Concat(arms, ablations) {
		for field, said := range []string{a.Name, a.Title, a.About} {
			k := key{field, said}
			if said == "" || seen[k] != "" {
				t.Errorf("arm %s: %q is empty, or what arm %s says", a.Name, said, seen[k])
			}
			seen[k] = a.Name
		}
		if at := armNamed(a.place()); at.functions != a.functions || at.source != a.source {
			t.Errorf("arm %s is at the functions of %s, which are others", a.Name, at.Name)
		}
	}
}

func TestPatchesOfParts(t *testing.T) {
	if got := (parts{}).patches(); len(got) != 0 {
		t.Errorf("the default is patched: %v", got)
	}
	got := parts{unsafeguarded: true, unclamped: true, unweighted: true, estimator: movingWindow, unlimited: true}.patches()
	var said strings.Builder
	for _, p := range got {
		said.WriteString(p.Target.Kind + " " + p.Patch + "\n")
	}
	for _, want := range []string{"DaemonSet", "--safeguard=false", "--clamp=false", "--weights=false", "InferenceService", "LIBRA_ESTIMATOR", "moving-window", "LIBRA_DURATIONS", "unlimited"} {
		if !strings.Contains(said.String(), want) {
			t.Errorf("nothing says %s:\n%s", want, said.String())
		}
	}
}

// An error may leave part of a change on the cluster. Neither the next arm nor the next
// user of the box may find it there.
func TestPartsThatWereHalfSetAreSetAgain(t *testing.T) {
	t.Chdir("../..")
	k, log := fakeKubectl(t, `case "$*" in *daemonset/libra-agent*) exit 1;; *) echo "{}";; esac`)
	e := newEvaluation(newDemo(options{kubeconfig: "none", outDir: t.TempDir()}, io.Discard), "")
	e.kubectl, e.services = k, services{}
	for _, a := range []arm{armNamed("owners_no_safeguard"), armNamed(evaluation.Owners)} {
		if err := e.ready(t.Context(), &scene{}, a, e.demo); err == nil {
			t.Errorf("%s: the agents are not as it wants them, and it is measured", a.Name)
		}
	}
	_ = e.putBack(t.Context()) // fails: no cluster has an activator to put back
	calls, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Count(string(calls), "apply "); got != 3 {
		t.Errorf("the parts were applied %d times, want one for each arm and one at the end:\n%s", got, calls)
	}
}

func TestPartsThatAreNotAnsweringYet(t *testing.T) {
	const list = `{"functions":[
{"name":"default/a-1","estimators":{"cpu":"moving-window","memory":"moving-window","duration":"unlimited"}},
{"name":"default/b-1","estimators":{"cpu":"none","memory":"none","duration":"none"}}]}`
	for _, c := range []struct {
		parts parts
		ok    bool
	}{
		{parts{estimator: movingWindow, unlimited: true}, true},
		{parts{estimator: movingWindow}, false},
		{parts{}, false},
	} {
		if err := c.parts.answering([]byte(list)); (err == nil) != c.ok {
			t.Errorf("%+v: got %v", c.parts, err)
		}
	}
	if err := (parts{}).answering([]byte("<html>")); err == nil {
		t.Error("took a page for a list")
	}
}

// render returns an arm's functions in a phase, by name, as kustomize renders them.
func render(t *testing.T, phase string, a arm, suffix string) map[string]servingv1.Service {
	t.Helper()
	t.Chdir("../..")
	d := newDemo(options{}, &strings.Builder{})
	path, err := d.tool("", "kubectl", "kubelite", true)
	if err != nil {
		t.Skipf("kustomize is in kubectl: %v", err)
	}
	dir := filepath.Join(t.TempDir(), "functions")
	if err := (images{"libra-fn-mst": "dev.local/mst:1"}).write(dir, a.manifests(phase), kustomization{Namespace: "evaluation-x", NameSuffix: suffix, Patches: patchesOf(phase, a)}); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(path)
	cmd.Args = []string{"kubectl", "kustomize", dir}
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]servingv1.Service{}
	for _, document := range strings.Split(string(out), "\n---\n") {
		asJSON, err := yaml.YAMLToJSON([]byte(document))
		if err != nil {
			t.Fatal(err)
		}
		var s servingv1.Service
		if err := json.Unmarshal(asJSON, &s); err != nil || s.Kind != "Service" || s.APIVersion != "serving.knative.dev/v1" || s.Namespace != "evaluation-x" {
			t.Fatalf("%v, or not a Knative Service in its namespace:\n%s", err, document)
		}
		found[s.Name] = s
	}
	return found
}

// Every arm has the ten functions. They differ only in what the arm is about.
func TestArmsAreOfTheTen(t *testing.T) {
	for _, a := range arms {
		if a.Name == evaluation.Fits {
			continue
		}
		t.Run(a.Name, func(t *testing.T) {
			all, defaults, limits, requests := render(t, phaseTen, a, "-3"), 0, int64(0), int64(0)
			if len(all) != len(trace.Mixed) {
				t.Fatalf("%d services, want %d", len(all), len(trace.Mixed))
			}
			for _, f := range trace.Mixed {
				s, ok := all[f+"-3"]
				if !ok {
					t.Fatalf("no %s-3", f)
				}
				template := s.Spec.Template
				c := template.Spec.Containers[0]
				optedIn := api.OptedIn(template.Labels) && template.Annotations[api.ModeAnnotation] == string(api.ModeFull)
				if optedIn != (a.learns || a.source != "") || (len(template.Labels) == 0) == optedIn {
					t.Errorf("%s: labels %v, annotations %v", f, template.Labels, template.Annotations)
				}
				if slices.ContainsFunc(c.Env, func(v corev1.EnvVar) bool { return v.Name == "GOMAXPROCS" }) {
					t.Errorf("%s sets its number of threads", f)
				}
				if template.Spec.ContainerConcurrency == nil && template.Annotations["autoscaling.knative.dev/target-burst-capacity"] == "" {
					defaults++
				}
				limits += c.Resources.Limits.Cpu().MilliValue()
				requests += c.Resources.Requests.Cpu().MilliValue()
				if f == "mst" && c.Image != "dev.local/mst:1" {
					t.Errorf("mst has the image %s", c.Image)
				}
				if limit, request := c.Resources.Limits.Cpu().MilliValue(), c.Resources.Requests.Cpu().MilliValue(); a.vpa && limit != 2*request {
					t.Errorf("%s: %dm of a limit of %dm, which is not half of it", f, request, limit)
				}
			}
			// Without a bound on its requests, a function does not lend its surplus.
			if waits := all["dynamichtml-3"].Spec.Template.Spec; waits.ContainerConcurrency == nil || *waits.ContainerConcurrency == 0 {
				t.Error("dynamichtml, which leaves most of its CPU, cannot lend it")
			}
			wantDefaults := 5
			if a.source == api.SourceOwners {
				wantDefaults = 0 // owners needs to see all requests
			}
			if defaults != wantDefaults {
				t.Errorf("%d run with Knative's defaults, want %d", defaults, wantDefaults)
			}
			wantLimits, wantRequests := int64(6000), int64(60)
			switch {
			case a.vpa:
				wantLimits, wantRequests = 600, 300
			case strings.HasPrefix(a.Name, evaluation.NoLimits):
				wantLimits = 0
			}
			if limits != wantLimits || requests != wantRequests {
				t.Errorf("all together: limits of %dm and requests of %dm, want %dm and %dm", limits, requests, wantLimits, wantRequests)
			}
		})
	}
}

func TestWeightedRequestsAreInProportionToStocksLimits(t *testing.T) {
	weighted := render(t, phaseTen, armNamed(evaluation.NoLimitsWeighted), "")
	t.Chdir("loadtest/demo")
	for name, s := range render(t, phaseTen, armNamed(evaluation.Stock), "") {
		limit, request := s.Spec.Template.Spec.Containers[0].Resources.Limits.Cpu(), weighted[name].Spec.Template.Spec.Containers[0].Resources.Requests.Cpu()
		if limit.MilliValue() != 100*request.MilliValue() {
			t.Errorf("%s: %v of what was %v, want a hundredth", name, request, limit)
		}
	}
}

func TestAutoscalingIsFreeWhereItsCostIsMeasured(t *testing.T) {
	for name, s := range render(t, phaseCost, armNamed(evaluation.Libra), "") {
		if got := s.Spec.Template.Annotations["autoscaling.knative.dev/max-scale"]; got != "8" {
			t.Errorf("%s: max-scale %q", name, got)
		}
	}
}

func TestOnlyOneArmHasMemoryForEveryInput(t *testing.T) {
	for _, name := range []string{evaluation.Stock, evaluation.NoLimits, evaluation.VPA, evaluation.Libra, evaluation.Fits} {
		t.Run(name, func(t *testing.T) {
			all := render(t, phaseMemory, armNamed(name), "")
			s, ok := all[memoryFunction]
			if !ok || len(all) != 1 {
				t.Fatalf("%d services, want %s alone", len(all), memoryFunction)
			}
			limit := s.Spec.Template.Spec.Containers[0].Resources.Limits.Memory().Value()
			if fits := limit >= 512<<20; fits != (name == evaluation.Fits) {
				t.Errorf("a memory limit of %d MiB", limit>>20)
			}
		})
	}
}

func TestTheOrderOfQueuesIsAnAnnotation(t *testing.T) {
	for name, s := range render(t, phaseAblations, armNamed("libra_fifo"), "") {
		if got := s.Spec.Template.Annotations[api.QueueAnnotation]; got != api.QueueFIFO {
			t.Errorf("%s: %s is %q", name, api.QueueAnnotation, got)
		}
	}
}

// The oracle predicts by the number of an input, which only its own functions take for a size.
func TestOnlyTheOraclesFunctionsReadTheInputsNumber(t *testing.T) {
	for _, arm := range []string{"libra_perfect", evaluation.Libra} {
		t.Run(arm, func(t *testing.T) {
			for name, s := range render(t, phaseAblations, armNamed(arm), "") {
				if got := s.Spec.Template.Annotations[api.InputSizeAnnotation] == "header:"+inputHeader; got != (arm == "libra_perfect") {
					t.Errorf("%s: %s is %q", name, api.InputSizeAnnotation, s.Spec.Template.Annotations[api.InputSizeAnnotation])
				}
			}
		})
	}
}
