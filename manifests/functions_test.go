package manifests

import (
	"cmp"
	"slices"
	"strings"
	"testing"

	"github.com/google/cel-go/cel"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	"pgregory.net/rapid"

	"libra.dev/libra/pkg/api"
)

const (
	burstAnnotation = "autoscaling.knative.dev/target-burst-capacity"
	sidecarPrefix   = "queue.sidecar.serving.knative.dev/"
)

// functionsPolicy is the admission policy that warns of functions that will not work.
type functionsPolicy struct {
	conditions  []cel.Program
	variables   []named
	validations []named
}

// named is a variable of a policy, or a validation with its message.
type named struct {
	name    string
	program cel.Program
}

func readFunctionsPolicy(t *testing.T) functionsPolicy {
	t.Helper()
	var policy admissionv1.ValidatingAdmissionPolicy
	read(t, "base/functions/validatingadmissionpolicy.yaml", &policy)
	var p functionsPolicy
	for _, c := range policy.Spec.MatchConditions {
		p.conditions = append(p.conditions, compile(t, c.Expression))
	}
	for _, v := range policy.Spec.Variables {
		p.variables = append(p.variables, named{v.Name, compile(t, v.Expression)})
	}
	for _, v := range policy.Spec.Validations {
		p.validations = append(p.validations, named{v.Message, compile(t, v.Expression)})
	}
	return p
}

// warnings returns the messages about a Service in a namespace with the source, "" for none.
func (p functionsPolicy) warnings(t interface{ Fatal(...any) }, service map[string]any, source string) (messages []string) {
	labels := map[string]any{}
	if source != "" {
		labels[api.SourceLabel] = source
	}
	variables := map[string]any{}
	known := map[string]any{
		"object": service, "variables": variables,
		"namespaceObject": map[string]any{"metadata": map[string]any{"labels": labels}},
	}
	eval := func(n named) any {
		got, _, err := n.program.Eval(known)
		if err != nil {
			t.Fatal(n.name, ": ", err)
		}
		return got
	}
	for _, c := range p.conditions {
		if got, _, err := c.Eval(known); err != nil {
			t.Fatal(err)
		} else if got.Value() != true {
			return nil
		}
	}
	for _, v := range p.variables {
		variables[v.name] = eval(v)
	}
	for _, v := range p.validations {
		if got, _, err := v.program.Eval(known); err != nil {
			t.Fatal(v.name, ": ", err)
		} else if got.Value() != true {
			messages = append(messages, v.name)
		}
	}
	return messages
}

// function returns a Service that gets no warnings, after changes to it.
func function(changes ...func(template, container map[string]any)) map[string]any {
	container := map[string]any{"image": "example.com/function", "resources": map[string]any{
		"requests": map[string]any{"cpu": "100m"},
		"limits":   map[string]any{"cpu": int64(1), "memory": "256Mi"},
	}}
	template := map[string]any{
		"metadata": map[string]any{
			"labels":      map[string]any{api.EnabledLabel: api.EnabledValue},
			"annotations": map[string]any{burstAnnotation: "-1"},
		},
		"spec": map[string]any{"containerConcurrency": int64(1), "containers": []any{container}},
	}
	for _, change := range changes {
		change(template, container)
	}
	return map[string]any{
		"apiVersion": "serving.knative.dev/v1", "kind": "Service",
		"metadata": map[string]any{"name": "function", "namespace": "default"},
		"spec":     map[string]any{"template": template},
	}
}

type change = func(template, container map[string]any)

func annotated(name, value string) change {
	return func(template, _ map[string]any) {
		template["metadata"].(map[string]any)["annotations"].(map[string]any)[name] = value
	}
}

func withLabel(name, value string) change {
	return func(template, _ map[string]any) {
		template["metadata"].(map[string]any)["labels"].(map[string]any)[name] = value
	}
}

func concurrency(n int64) change {
	return func(template, _ map[string]any) { template["spec"].(map[string]any)["containerConcurrency"] = n }
}

func resources(requests, limits map[string]any) change {
	return func(_, container map[string]any) {
		of := map[string]any{}
		if requests != nil {
			of["requests"] = requests
		}
		if limits != nil {
			of["limits"] = limits
		}
		container["resources"] = of
	}
}

func TestTheFunctionsPolicyRefusesNothing(t *testing.T) {
	var policy admissionv1.ValidatingAdmissionPolicy
	read(t, "base/functions/validatingadmissionpolicy.yaml", &policy)
	var binding admissionv1.ValidatingAdmissionPolicyBinding
	read(t, "base/functions/validatingadmissionpolicybinding.yaml", &binding)
	want := []admissionv1.ValidationAction{admissionv1.Warn, admissionv1.Audit}
	if binding.Spec.PolicyName != policy.Name || !slices.Equal(binding.Spec.ValidationActions, want) {
		t.Errorf("the binding is of policy %q and says %v, want %v by %q",
			binding.Spec.PolicyName, binding.Spec.ValidationActions, want, policy.Name)
	}
	if policy.Spec.FailurePolicy == nil || *policy.Spec.FailurePolicy != admissionv1.Ignore {
		t.Error("what cannot be evaluated is refused")
	}
	for _, v := range policy.Spec.Validations {
		if !strings.Contains(v.Message, ": write ") && !strings.Contains(v.Message, "; write ") {
			t.Errorf("it does not say what to write instead: %q", v.Message)
		}
	}
}

func TestTheFunctionsPolicySaysWhatWillNotWork(t *testing.T) {
	p := readFunctionsPolicy(t)
	cpuAndMemory := map[string]any{"cpu": "1", "memory": "256Mi"}
	for name, tc := range map[string]struct {
		change change
		source string
		want   string // how the only warning begins, or "" for none
	}{
		"all well":              {},
		"all well, owners":      {source: "owners"},
		"no CPU limit":          {change: resources(nil, map[string]any{"memory": "1Gi"}), want: "the function's container has no CPU limit"},
		"no memory limit":       {change: resources(nil, map[string]any{"cpu": "1"}), want: "the function's container has no memory limit"},
		"past the activator":    {change: annotated(burstAnnotation, "200"), want: "requests may go past the activator"},
		"any number at a time":  {change: concurrency(0)},
		"any number, of owners": {change: concurrency(0), source: "owners", want: "containerConcurrency is 0 in a namespace"},
		"request is the limit":  {change: resources(map[string]any{"cpu": "1000m"}, cpuAndMemory)},
		"request is the limit, of owners": {change: resources(map[string]any{"cpu": "1000m"}, cpuAndMemory), source: "owners",
			want: "the CPU request of the function's container is not below its limit"},
		"no request, of owners": {change: resources(map[string]any{}, cpuAndMemory), source: "owners",
			want: "the CPU request of the function's container is not below its limit"},
		"a limit of queue-proxy":        {change: annotated(sidecarPrefix+"cpu-resource-limit", "1"), want: "queue-proxy gets limits"},
		"a memory limit of queue-proxy": {change: annotated(sidecarPrefix+"memory-resource-limit", "1Gi"), want: "queue-proxy gets limits"},
		"a percentage for queue-proxy":  {change: annotated(sidecarPrefix+"resource-percentage", "20"), want: "queue-proxy gets limits"},
		"its older name":                {change: annotated(sidecarPrefix+"resourcePercentage", "20"), want: "queue-proxy gets limits"},
		"a request of queue-proxy":      {change: annotated(sidecarPrefix+"cpu-resource-request", "100m")},
		"an order of a queue of nobody": {change: func(t, c map[string]any) { concurrency(0)(t, c); annotated(api.QueueAnnotation, "fifo")(t, c) }, want: "annotation libra.dev/queue has no effect"},
		"a mode":                        {change: annotated(api.ModeAnnotation, "on"), want: "annotation libra.dev/mode is not a mode"},
		"an order":                      {change: annotated(api.QueueAnnotation, "lifo"), want: "annotation libra.dev/queue is not an order"},
		"what idle pods do":             {change: annotated(api.IdleAnnotation, "lend"), want: "annotation libra.dev/idle is not accepted"},
		"the most CPU":                  {change: annotated(api.MaxCPUAnnotation, "much"), want: "annotation libra.dev/max-cpu is not accepted"},
		"the least CPU":                 {change: annotated(api.MinCPUAnnotation, "-1"), want: "annotation libra.dev/min-cpu is not accepted"},
		"the least memory":              {change: annotated(api.MinMemoryAnnotation, "128m"), want: "annotation libra.dev/min-memory is not accepted"},
		"a size":                        {change: annotated(api.InputSizeAnnotation, "body"), want: "annotation libra.dev/input-size is not accepted"},
		"a name that nobody reads":      {change: annotated("libra.dev/max_cpu", "1"), want: "an annotation of the template begins with libra.dev/"},
		"a label among annotations":     {change: annotated(api.PlacementLabel, "near-data"), want: "an annotation of the template begins with libra.dev/"},
		"a copy, by its label":          {change: withLabel(api.CopyOfLabel, "f-00001")},
		"a copy, by its annotation":     {change: annotated(api.CopyOfConfigurationAnnotation, "f")},
		"labels":                        {change: withLabel(api.PlacementLabel, "near-data")},
		"an annotation among labels":    {change: withLabel(api.ModeAnnotation, "full"), want: "a label of the template begins with libra.dev/"},
		"duplicates":                    {change: annotated(api.DuplicateInputsAnnotation, "yes"), want: "annotation libra.dev/duplicate-inputs is not accepted"},
		"not opted in, and no limits":   {change: func(t, c map[string]any) { delete(t, "metadata"); delete(c, "resources") }},
		"a sidecar without limits beside": {change: func(template, container map[string]any) {
			container["ports"] = []any{map[string]any{"containerPort": int64(8080)}}
			template["spec"].(map[string]any)["containers"] = []any{map[string]any{"image": "example.com/sidecar"}, container}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			service := function()
			if tc.change != nil {
				service = function(tc.change)
			}
			got := p.warnings(t, service, tc.source)
			if tc.want == "" && len(got) != 0 || tc.want != "" && (len(got) != 1 || !strings.HasPrefix(got[0], tc.want)) {
				t.Errorf("it warns %q, want %q", got, cmp.Or(tc.want, "nothing"))
			}
		})
	}
}

// Knative does not copy a Service's own annotations to its revisions.
func TestTheFunctionsPolicyTellsOfAnnotationsOnTheService(t *testing.T) {
	p := readFunctionsPolicy(t)
	for name, warned := range map[string]bool{api.ModeAnnotation: true, api.MaxCPUAnnotation: true, "serving.knative.dev/creator": false} {
		service := function()
		service["metadata"].(map[string]any)["annotations"] = map[string]any{name: "full"}
		got := p.warnings(t, service, "")
		if warned != (len(got) == 1 && strings.HasPrefix(got[0], "an annotation of Libra is on the Service")) || !warned && len(got) > 0 {
			t.Errorf("annotation %s on the Service: it warns %q, want a warning: %v", name, got, warned)
		}
	}
}

// The policy warns of values that the parts refuse, and of no others.
func TestTheFunctionsPolicyReadsAnnotationsAsThePartsDo(t *testing.T) {
	p := readFunctionsPolicy(t)
	quantities := []string{"0", "-0", "1", "200m", "1.5", "-1m", "1e3", "1E", "much", "", " 1", "128Mi", "128m", "0.5Gi", "0.1Gi", "1.5",
		"1048576", "1048577", "1n", "1Pi", "2Pi", "1048575.9Gi", "2097152.1Gi", "9E", "10E", "1e30", "9007199254740993", strings.Repeat("9", 40)}
	for name, of := range map[string]struct {
		parse  func(string) error
		values []string
		random string
	}{
		api.ModeAnnotation:      {func(s string) error { _, err := api.ParseMode(s); return err }, []string{"observe", "lend", "full", "Full", " lend", ""}, `[a-z ]{0,7}`},
		api.QueueAnnotation:     {api.ParseQueue, []string{"fifo", "FIFO", "fifo ", ""}, `[fio]{0,4}`},
		api.IdleAnnotation:      {api.ParseIdle, []string{"keep", "Keep", ""}, `[kep]{0,4}`},
		api.MaxCPUAnnotation:    {func(s string) error { _, err := api.ParseMaxCPU(s); return err }, quantities, `[-+]?[0-9]{0,8}[.]?[0-9]{0,4}(n|u|m|k|M|Ki|Mi|e-?[0-9])?`},
		api.MinCPUAnnotation:    {func(s string) error { _, err := api.ParseMinCPU(s); return err }, quantities, `[-+]?[0-9]{0,8}[.]?[0-9]{0,4}(n|u|m|k|M|Ki|Mi|e-?[0-9])?`},
		api.MinMemoryAnnotation: {func(s string) error { _, err := api.ParseMinMemory(s); return err }, quantities, `[-+]?[0-9]{0,8}[.]?[0-9]{0,4}(n|u|m|k|M|Ki|Mi|Gi|e-?[0-9])?`},
		api.InputSizeAnnotation: {func(s string) error {
			if s == "" {
				return nil // as without the annotation
			}
			_, _, err := api.ParseInputSize(s)
			return err
		}, []string{"", "header:X-Rows", "header:", "header:a b", "header:é", "query:n", "query:", "query:\n", "query:é", "json:/n", "json:/a/0/~0~1", "json:/", "json:n", "json:", "json:/~", "json:/~2", "json:/a\nb", "body", "Header:X", "header:a\n"},
			`(header|query|json|body)?:?[/~01]?[!-~ \n]{0,6}`},
	} {
		check := func(t interface{ Fatal(...any) }, value string) {
			got, err := p.warnings(t, function(annotated(name, value)), ""), of.parse(value)
			if (len(got) != 0) != (err != nil) {
				t.Fatal(name, " ", value, ": the policy warns ", got, ", the parts say ", err)
			}
		}
		for _, value := range of.values {
			check(t, value)
		}
		rapid.Check(t, func(t *rapid.T) {
			check(t, rapid.OneOf(rapid.StringMatching(of.random), rapid.SampledFrom(of.values)).Draw(t, name))
		})
	}
}
