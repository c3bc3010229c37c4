package manifests

import (
	"slices"
	"testing"

	"github.com/google/cel-go/cel"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/apiserver/pkg/cel/environment"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/resizer/actuate"
)

const (
	policyFile  = "base/resizer/policy/validatingadmissionpolicy.yaml"
	bindingFile = "base/resizer/policy/validatingadmissionpolicybinding.yaml"

	controllerAccount = "system:serviceaccount:libra-system:libra-resizer"
)

// oldest is the oldest Kubernetes that docs/install.md supports.
var oldest = version.MajorMinor(1, 35)

// The validations, in the policy's order.
const (
	notOptedIn = iota
	requests
	otherLimits
	queueProxy
	resizePolicy
	initContainers
	podLevel
)

func TestThePolicyIsInForceForTheControllerAlone(t *testing.T) {
	var policy admissionv1.ValidatingAdmissionPolicy
	read(t, policyFile, &policy)
	var binding admissionv1.ValidatingAdmissionPolicyBinding
	read(t, bindingFile, &binding)
	if binding.Spec.PolicyName != policy.Name || !slices.Equal(binding.Spec.ValidationActions, []admissionv1.ValidationAction{admissionv1.Deny}) {
		t.Errorf("the binding is of policy %q and says %v, want to deny by %q", binding.Spec.PolicyName, binding.Spec.ValidationActions, policy.Name)
	}
	if policy.Spec.FailurePolicy == nil || *policy.Spec.FailurePolicy != admissionv1.Fail {
		t.Error("what cannot be evaluated is accepted")
	}
	if len(policy.Spec.MatchConditions) != 1 {
		t.Fatalf("%d conditions, want the user alone", len(policy.Spec.MatchConditions))
	}
	by := compile(t, policy.Spec.MatchConditions[0].Expression)
	for user, want := range map[string]bool{
		controllerAccount: true,
		"system:serviceaccount:libra-node:libra-agent": false,
		"system:serviceaccount:default:libra-resizer":  false,
		"kubernetes-admin": false,
	} {
		request := map[string]any{"userInfo": map[string]any{"username": user}}
		if got := holds(t, by, map[string]any{"request": request}); got != want {
			t.Errorf("it is for %s: %v", user, got)
		}
	}
}

func TestThePolicyAcceptsWhatTheControllerSendsAndNothingElse(t *testing.T) {
	var policy admissionv1.ValidatingAdmissionPolicy
	read(t, policyFile, &policy)
	var validations []cel.Program
	for _, v := range policy.Spec.Validations {
		validations = append(validations, compile(t, v.Expression))
		if v.Message == "" || v.Reason == nil || *v.Reason != metav1.StatusReasonForbidden {
			t.Errorf("it has message %q and reason %v: %s", v.Message, v.Reason, v.Expression)
		}
	}
	limit := func(container int, name corev1.ResourceName, value string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			resources := &p.Spec.Containers[container].Resources
			if resources.Limits == nil {
				resources.Limits = corev1.ResourceList{}
			}
			resources.Limits[name] = resource.MustParse(value)
		}
	}
	raise := limit(0, corev1.ResourceCPU, "2")
	resizedBy := func(entries ...metav1.ManagedFieldsEntry) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Labels, p.ManagedFields = nil, entries }
	}
	for name, c := range map[string]struct {
		has, change func(*corev1.Pod)
		refused     []int
	}{
		"nothing":           {},
		"CPU":               {change: raise},
		"memory":            {change: limit(0, corev1.ResourceMemory, "512Mi")},
		"a nudge":           {change: limit(0, corev1.ResourceCPU, "501m")},
		"another container": {change: limit(2, corev1.ResourceCPU, "1")},
		"of a pod with all that is to stay": {
			has: func(p *corev1.Pod) {
				p.Spec.InitContainers = []corev1.Container{{Name: "init"}}
				p.Spec.Resources = &corev1.ResourceRequirements{Limits: amounts("4", "1Gi")}
				for _, name := range []corev1.ResourceName{"example.com/a", "example.com/b", "example.com/c", corev1.ResourceEphemeralStorage} {
					limit(0, name, "1")(p)
				}
			},
			change: raise,
		},

		"back, after it opted out": {has: resizedBy(metav1.ManagedFieldsEntry{Manager: actuate.FieldManager, Subresource: "resize"}), change: raise},
		"nothing, not opted in":    {has: func(p *corev1.Pod) { p.Labels = nil }},
		"nothing, not opted in, as its manager": {
			has: func(p *corev1.Pod) { p.Labels = nil },
			change: func(p *corev1.Pod) {
				p.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: actuate.FieldManager, Operation: metav1.ManagedFieldsOperationApply, Subresource: "resize"}}
			},
			refused: []int{notOptedIn},
		},
		"not opted in": {has: func(p *corev1.Pod) { p.Labels = nil }, change: raise, refused: []int{notOptedIn}},
		"opted out":    {has: func(p *corev1.Pod) { p.Labels[api.EnabledLabel] = "false" }, change: raise, refused: []int{notOptedIn}},
		"opted in by the resize": {
			has: func(p *corev1.Pod) { p.Labels = nil },
			change: func(p *corev1.Pod) {
				p.Labels = map[string]string{api.EnabledLabel: api.EnabledValue}
				raise(p)
			},
			refused: []int{notOptedIn},
		},
		"resized by another": {
			has:     resizedBy(metav1.ManagedFieldsEntry{Manager: "vpa", Subresource: "resize"}, metav1.ManagedFieldsEntry{Manager: actuate.FieldManager}),
			change:  raise,
			refused: []int{notOptedIn},
		},

		"requests":               {change: func(p *corev1.Pod) { p.Spec.Containers[0].Resources.Requests = amounts("200m", "64Mi") }, refused: []int{requests}},
		"no requests":            {change: func(p *corev1.Pod) { p.Spec.Containers[0].Resources.Requests = nil }, refused: []int{requests}},
		"of another":             {change: func(p *corev1.Pod) { p.Spec.Containers[2].Resources.Requests = amounts("1m", "1Mi") }, refused: []int{requests}},
		"storage":                {change: limit(0, corev1.ResourceEphemeralStorage, "1Gi"), refused: []int{otherLimits}},
		"queue-proxy":            {change: limit(1, corev1.ResourceCPU, "1"), refused: []int{queueProxy}},
		"policy":                 {change: func(p *corev1.Pod) { p.Spec.Containers[0].ResizePolicy = nil }, refused: []int{resizePolicy}},
		"the pod":                {change: func(p *corev1.Pod) { p.Spec.Resources = &corev1.ResourceRequirements{Requests: amounts("1", "1Gi")} }, refused: []int{podLevel}},
		"queue-proxy's requests": {change: func(p *corev1.Pod) { p.Spec.Containers[1].Resources.Requests = nil }, refused: []int{requests, queueProxy}},
		"init container": {
			has: func(p *corev1.Pod) {
				p.Spec.InitContainers = []corev1.Container{{Name: "sidecar", RestartPolicy: new(corev1.ContainerRestartPolicyAlways)}}
			},
			change:  func(p *corev1.Pod) { p.Spec.InitContainers[0].Resources.Limits = amounts("1", "1Gi") },
			refused: []int{initContainers},
		},
	} {
		t.Run(name, func(t *testing.T) {
			before := &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p", Labels: map[string]string{api.EnabledLabel: api.EnabledValue}},
				Spec: corev1.PodSpec{Containers: []corev1.Container{
					{
						Name:         api.UserContainer,
						Resources:    corev1.ResourceRequirements{Requests: amounts("100m", "64Mi"), Limits: amounts("500m", "256Mi")},
						ResizePolicy: []corev1.ContainerResizePolicy{{ResourceName: corev1.ResourceCPU, RestartPolicy: corev1.NotRequired}},
					},
					{Name: api.QueueProxyContainer, Resources: corev1.ResourceRequirements{Requests: amounts("25m", "50Mi")}},
					{Name: "another"},
				}},
			}
			if c.has != nil {
				c.has(before)
			}
			after := before.DeepCopy()
			if c.change != nil {
				c.change(after)
			}
			pods := map[string]any{"oldObject": unstructured(t, before), "object": unstructured(t, after)}
			var refused []int
			for i, validation := range validations {
				if !holds(t, validation, pods) {
					refused = append(refused, i)
				}
			}
			if !slices.Equal(refused, c.refused) {
				t.Errorf("it is refused by validations %v, want %v", refused, c.refused)
			}
		})
	}
}

func amounts(cpu, memory string) corev1.ResourceList {
	return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse(memory)}
}

// compile compiles an expression as the API server does.
func compile(t *testing.T, expression string) cel.Program {
	t.Helper()
	set, err := environment.MustBaseEnvSet(oldest).Extend(environment.VersionedOptions{
		IntroducedVersion: oldest,
		EnvOptions: []cel.EnvOption{
			cel.Variable("object", cel.DynType), cel.Variable("oldObject", cel.DynType), cel.Variable("request", cel.DynType),
			cel.Variable("variables", cel.DynType), cel.Variable("namespaceObject", cel.DynType),
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	env, err := set.Env(environment.NewExpressions)
	if err != nil {
		t.Fatal(err)
	}
	ast, issues := env.Compile(expression)
	if issues.Err() != nil {
		t.Fatal(issues.Err())
	}
	program, err := env.Program(ast)
	if err != nil {
		t.Fatal(err)
	}
	return program
}

// holds evaluates an expression. One that cannot be evaluated is an error in the API server, too.
func holds(t *testing.T, program cel.Program, variables map[string]any) bool {
	t.Helper()
	got, _, err := program.Eval(variables)
	if err != nil {
		t.Fatal(err)
	}
	return got.Value() == true
}

func unstructured(t *testing.T, pod *corev1.Pod) map[string]any {
	t.Helper()
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(pod)
	if err != nil {
		t.Fatal(err)
	}
	return fields
}
