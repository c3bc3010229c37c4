package manifests

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/cel-go/cel"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	"pgregory.net/rapid"

	"libra.dev/libra/pkg/settings"
)

// settingsPolicy is the admission policy of config-libra.
type settingsPolicy struct {
	variables   []named
	validations []cel.Program
	messages    []string
}

func readSettingsPolicy(t *testing.T) settingsPolicy {
	t.Helper()
	var policy admissionv1.ValidatingAdmissionPolicy
	read(t, "base/settings/policy/validatingadmissionpolicy.yaml", &policy)
	var binding admissionv1.ValidatingAdmissionPolicyBinding
	read(t, "base/settings/policy/validatingadmissionpolicybinding.yaml", &binding)
	if binding.Spec.PolicyName != policy.Name || !slices.Equal(binding.Spec.ValidationActions, []admissionv1.ValidationAction{admissionv1.Deny}) {
		t.Errorf("the binding is of policy %q and says %v, want to deny by %q", binding.Spec.PolicyName, binding.Spec.ValidationActions, policy.Name)
	}
	if policy.Spec.FailurePolicy == nil || *policy.Spec.FailurePolicy != admissionv1.Fail {
		t.Error("what cannot be evaluated is accepted")
	}
	selector := policy.Spec.MatchConstraints.NamespaceSelector
	if selector == nil || selector.MatchLabels["kubernetes.io/metadata.name"] != settings.Namespace {
		t.Errorf("it is for namespaces with %v, want that of the settings", selector)
	}
	if len(policy.Spec.MatchConditions) != 1 {
		t.Fatalf("%d conditions, want one", len(policy.Spec.MatchConditions))
	}
	ofSettings := compile(t, policy.Spec.MatchConditions[0].Expression)
	for name, want := range map[string]bool{settings.ConfigMap: true, "config-libra-2": false} {
		object := map[string]any{"metadata": map[string]any{"name": name}}
		if got := holds(t, ofSettings, map[string]any{"object": object}); got != want {
			t.Errorf("it is for ConfigMap %s: %v", name, got)
		}
	}
	var p settingsPolicy
	for _, v := range policy.Spec.Variables {
		p.variables = append(p.variables, named{v.Name, compile(t, v.Expression)})
	}
	for _, v := range policy.Spec.Validations {
		p.validations = append(p.validations, compile(t, v.Expression))
		p.messages = append(p.messages, v.Message)
		if v.MessageExpression != "" {
			compile(t, v.MessageExpression)
		}
	}
	return p
}

// refused returns the messages about a ConfigMap that is created with data or, if had is given, changed from had to
// data. An expression that cannot be evaluated refuses it.
func (p settingsPolicy) refused(t interface{ Fatal(...any) }, data map[string]string, had ...map[string]string) (messages []string) {
	of := func(data map[string]string) map[string]any {
		object := map[string]any{"metadata": map[string]any{"name": settings.ConfigMap}}
		if data != nil {
			object["data"] = data
		}
		return object
	}
	in := map[string]any{"object": of(data), "oldObject": nil}
	if len(had) > 0 {
		in["oldObject"] = of(had[0])
	}
	variables := map[string]any{}
	in["variables"] = variables
	for _, v := range p.variables {
		is, _, err := v.program.Eval(in)
		if err != nil {
			t.Fatal(v.name, err)
		}
		variables[v.name] = is
	}
	for i, v := range p.validations {
		got, _, err := v.Eval(in)
		if err != nil || got.Value() != true {
			messages = append(messages, p.messages[i])
		}
	}
	return messages
}

func TestTheSettingsPolicyNamesWhatIsWrong(t *testing.T) {
	p := readSettingsPolicy(t)
	for _, tc := range []struct{ key, value string }{
		{"mode", "on"}, {"max-mode", "off"}, {"source", "pool"}, {"platform-namespaces", "a,B"},
		{"placement", "jsq"},
	} {
		got := p.refused(t, map[string]string{tc.key: tc.value})
		if len(got) != 1 || !strings.HasPrefix(got[0], tc.key+" must be ") {
			t.Errorf("%s: %q is refused with %q, want one message that begins with the key", tc.key, tc.value, got)
		}
	}
	if got := p.refused(t, map[string]string{"Mode": "full"}); len(got) != 1 || !strings.HasPrefix(got[0], "there is no such setting") {
		t.Errorf("an unknown key is refused with %q", got)
	}
	if got := p.refused(t, nil); len(got) != 0 {
		t.Errorf("a ConfigMap without data is refused: %q", got)
	}
}

// Settings that this version does not have may be left over from another: Libra can still be stopped, and applied
// again. Setting one anew is refused.
func TestSettingsOfAnotherVersionAreRefusedOnlyWhenTheyAreSet(t *testing.T) {
	p := readSettingsPolicy(t)
	for key, says := range map[string]string{"newer": "there is no such setting", "mode": "mode must be ", "source": "source must be ", "placement": "placement must be "} {
		for name, tc := range map[string]struct {
			data, had map[string]string
			refused   bool
		}{
			"set":                     {map[string]string{key: "1"}, map[string]string{"max-mode": "full"}, true},
			"set where nothing was":   {map[string]string{key: "1"}, nil, true},
			"changed":                 {map[string]string{key: "1"}, map[string]string{key: "2"}, true},
			"left, and Libra stopped": {map[string]string{key: "1", "max-mode": "observe"}, map[string]string{key: "1"}, false},
			"taken away":              {map[string]string{}, map[string]string{key: "1"}, false},
		} {
			got := p.refused(t, tc.data, tc.had)
			if tc.refused != (len(got) == 1) || len(got) == 1 && !strings.Contains(got[0], says) {
				t.Errorf("%s, %s: refused with %q", key, name, got)
			}
		}
		if got := p.refused(t, map[string]string{key: "1"}); len(got) != 1 {
			t.Errorf("%s of a ConfigMap that is created is refused with %q", key, got)
		}
	}
}

// The API server accepts exactly what the parts accept.
func TestTheSettingsPolicyAcceptsWhatThePartsDo(t *testing.T) {
	p := readSettingsPolicy(t)
	values := map[string][]string{
		"mode":                {"observe", " lend\n", "full", "Full", "", "off"},
		"max-mode":            {"observe", "lend ", "full", "", "on"},
		"source":              {"node", "owners\n", "pool", ""},
		"platform-namespaces": {"", "a", "a,b-c , d", "a,,b", "a,B", "-a", strings.Repeat("a", 63), strings.Repeat("a", 64)},
		"placement":           {"default", "coverage", "hash\n", " round-robin", "join-shortest-queue", "minimum-worker-set", "least-pressure", "random", "stock", "", "jsq", "Hash"},
		"_example":            {"mode: on"},
		"modes":               {"full"},
	}
	for key, of := range values {
		for _, value := range of {
			data := map[string]string{key: value}
			_, err := settings.Parse(data)
			if got := p.refused(t, data); (len(got) == 0) != (err == nil) {
				t.Errorf("%v: the policy refuses it with %q, the parts with %v", data, got, err)
			}
		}
	}
	keys := []string{"mode", "max-mode", "source", "platform-namespaces", "placement"}
	rapid.Check(t, func(t *rapid.T) {
		data := map[string]string{}
		for _, key := range rapid.SliceOfDistinct(rapid.SampledFrom(keys), rapid.ID).Draw(t, "keys") {
			data[key] = rapid.OneOf(rapid.SampledFrom(values[key]), rapid.StringMatching(`[-+.,a-z0-9 ]{0,8}`)).Draw(t, key)
		}
		_, err := settings.Parse(data)
		if got := p.refused(t, data); (len(got) == 0) != (err == nil) {
			t.Fatalf("%q: the policy refuses it with %q, the parts with %v", data, got, err)
		}
	})
}
