package manifests

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsvalidation "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apimachinery/pkg/util/json"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"sigs.k8s.io/yaml"

	"libra.dev/libra/activator-plugin/placement/tapp"
	"libra.dev/libra/pkg/api/v1alpha1"
)

const definitions = "base/crds"

// definition treats an object as the API server does by the definition of its kind.
type definition struct {
	crd        apiextensionsv1.CustomResourceDefinition
	structural *schema.Structural
	schema     validation.SchemaValidator
	rules      *cel.Validator
}

func readDefinition(t *testing.T, plural string) *definition {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(definitions, v1alpha1.GroupVersion.Group+"_"+plural+".yaml"))
	if err != nil {
		t.Fatal(err)
	}
	d := &definition{}
	if err := yaml.UnmarshalStrict(text, &d.crd); err != nil {
		t.Fatal(err)
	}
	var internal apiextensions.JSONSchemaProps
	if err := apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(d.crd.Spec.Versions[0].Schema.OpenAPIV3Schema, &internal, nil); err != nil {
		t.Fatal(err)
	}
	if d.structural, err = schema.NewStructural(&internal); err != nil {
		t.Fatal(err)
	}
	if d.schema, _, err = validation.NewSchemaValidator(&internal); err != nil {
		t.Fatal(err)
	}
	d.rules = cel.NewValidator(d.structural, true, celconfig.PerCallLimit)
	return d
}

// refused sets the defaults of an object, and returns the errors about it.
func (d *definition) refused(object map[string]any) (errs []string) {
	defaulting.Default(object, d.structural)
	found := validation.ValidateCustomResource(nil, object, d.schema)
	if len(found) == 0 {
		found, _ = d.rules.Validate(context.Background(), nil, d.structural, object, nil, celconfig.RuntimeCELCostBudget)
	}
	for _, err := range found {
		errs = append(errs, err.Error())
	}
	return errs
}

// policyWith returns a policy, with a spec in YAML, as the API server decodes it.
func policyWith(t *testing.T, name, spec string) map[string]any {
	t.Helper()
	text, err := yaml.YAMLToJSON([]byte(spec))
	if err != nil {
		t.Fatal(err)
	}
	policy := map[string]any{"apiVersion": v1alpha1.GroupVersion.String(), "kind": "PlacementPolicy", "metadata": map[string]any{"name": name}}
	var of any
	if err := json.Unmarshal(text, &of); err != nil {
		t.Fatal(err)
	}
	if of != nil {
		policy["spec"] = of
	}
	return policy
}

func TestDefinitionsAreValid(t *testing.T) {
	for plural, kind := range map[string]string{"placementpolicies": "PlacementPolicy", "clusterplacementpolicies": "ClusterPlacementPolicy", "harvestpolicies": "HarvestPolicy", "functionreports": "FunctionReport"} {
		d := readDefinition(t, plural)
		if d.crd.Spec.Names.Kind != kind {
			t.Errorf("%s defines %s", plural, d.crd.Spec.Names.Kind)
		}
		apiextensionsv1.SetDefaults_CustomResourceDefinition(&d.crd)
		apiextensionsv1.SetDefaults_CustomResourceDefinitionSpec(&d.crd.Spec)
		var internal apiextensions.CustomResourceDefinition
		if err := apiextensionsv1.Convert_v1_CustomResourceDefinition_To_apiextensions_CustomResourceDefinition(&d.crd, &internal, nil); err != nil {
			t.Fatal(err)
		}
		// Here, the API server says if a rule may cost too much.
		for _, err := range apiextensionsvalidation.ValidateCustomResourceDefinition(t.Context(), &internal) {
			if err.Field != "status.storedVersions" {
				t.Errorf("%s: %v", plural, err)
			}
		}
	}
}

// refusedPolicies have to be refused with errors that name what is in want.
var refusedPolicies = []struct {
	name, policy, spec string
	want               []string
}{
	{"no spec", "gpu", "", []string{"spec: Required value"}},
	{"no blocks", "gpu", "{blocks: []}", []string{"spec.blocks"}},
	{"too many blocks", "gpu", "{blocks: [" + strings.Repeat("{workers: [{node: a}]},", 17) + "]}", []string{"spec.blocks", "16"}},
	{"no workers", "gpu", "{blocks: [{workers: []}]}", []string{"spec.blocks[0].workers"}},
	{"too many workers", "gpu", "{blocks: [{workers: [" + strings.Repeat("{node: a},", 40) + "]}, {workers: [" + strings.Repeat("{node: a},", 25) + "]}]}", []string{"spec", "want at most 64 in all"}},
	{"node and set", "gpu", "{blocks: [{workers: [{node: a, set: {}}]}]}", []string{"spec.blocks[0].workers[0]", "want either node or set"}},
	{"neither node nor set", "gpu", "{blocks: [{workers: [{strategy: random}]}]}", []string{"spec.blocks[0].workers[0]", "want either node or set"}},
	{"strategy of a node", "gpu", "{blocks: [{workers: [{node: a, strategy: random}]}]}", []string{"spec.blocks[0].workers[0]", "strategy chooses within a set"}},
	{"strategy", "gpu", "{blocks: [{workers: [{node: a}], strategy: best}]}", []string{"spec.blocks[0].strategy", `"bestFirst"`, `"leastPressure"`}},
	{"strategy of a set", "gpu", "{blocks: [{workers: [{set: {}, strategy: best}]}]}", []string{"spec.blocks[0].workers[0].strategy", `"bestFirst"`}},
	{"strategy of blocks", "gpu", "{strategy: jsq, blocks: [{workers: [{node: a}]}]}", []string{"spec.strategy", `"bestFirst"`, `"platform"`}},
	{"followup", "gpu", "{followup: retry, blocks: [{workers: [{node: a}]}]}", []string{"spec.followup", `"default"`, `"fail"`}},
	{"followup of the default", "default", "{followup: default, blocks: [{workers: [{node: a}]}]}", []string{"spec.followup", "must be fail"}},
	{"no condition", "gpu", "{blocks: [{workers: [{node: a}], invalidate: {}}]}", []string{"spec.blocks[0].invalidate", "want at least one of capacityUsedPercent"}},
	{"no overload", "gpu", "{blocks: [{workers: [{node: a, invalidate: {overload: false}}]}]}", []string{"spec.blocks[0].workers[0].invalidate", "want at least one of capacityUsedPercent"}},
	{"more than all capacity", "gpu", "{blocks: [{workers: [{node: a}], invalidate: {capacityUsedPercent: 101}}]}", []string{"spec.blocks[0].invalidate.capacityUsedPercent", "100"}},
	{"no capacity", "gpu", "{blocks: [{workers: [{node: a}], invalidate: {capacityUsedPercent: 0}}]}", []string{"spec.blocks[0].invalidate.capacityUsedPercent", "1"}},
	{"no invocations", "gpu", "{blocks: [{workers: [{node: a}], invalidate: {maxConcurrentInvocations: 0}}]}", []string{"spec.blocks[0].invalidate.maxConcurrentInvocations", "1"}},
	{"operator", "gpu", "{blocks: [{workers: [{set: {matchExpressions: [{key: a, operator: Is, values: [b]}]}}]}]}", []string{"spec.blocks[0].workers[0].set.matchExpressions[0].operator", `"DoesNotExist"`}},
	{"In without values", "gpu", "{blocks: [{workers: [{set: {matchExpressions: [{key: a, operator: In}]}}]}]}", []string{"spec.blocks[0].workers[0].set.matchExpressions[0]", "values"}},
	{"Exists with values", "gpu", "{blocks: [{workers: [{set: {matchExpressions: [{key: a, operator: Exists, values: [b]}]}}]}]}", []string{"spec.blocks[0].workers[0].set.matchExpressions[0]", "values"}},
	{"a node that has no such name", "gpu", "{blocks: [{workers: [{node: Worker-1}]}]}", []string{"spec.blocks[0].workers[0].node"}},
	{"a label that has no such value", "gpu", "{blocks: [{workers: [{set: {matchLabels: {disk: a b}}}]}]}", []string{"spec.blocks[0].workers[0].set.matchLabels.disk"}},
	{"a long key", "gpu", "{blocks: [{workers: [{set: {matchLabels: {" + strings.Repeat("a", 318) + ": b}}}]}]}", []string{"spec.blocks[0].workers[0].set", "at most 317 characters"}},
	{"a label of no such key", "gpu", "{blocks: [{workers: [{set: {matchExpressions: [{key: a b, operator: Exists}]}}]}]}", []string{"spec.blocks[0].workers[0].set.matchExpressions[0].key"}},
	{"a requirement of no such value", "gpu", "{blocks: [{workers: [{set: {matchExpressions: [{key: a, operator: In, values: [a b]}]}}]}]}", []string{"spec.blocks[0].workers[0].set.matchExpressions[0].values[0]"}},
	{"tolerance", "gpu", "{blocks: [{controller: {zone: a, topologyTolerance: some}, workers: [{node: a}]}]}", []string{"spec.blocks[0].controller.topologyTolerance", `"same"`}},
	{"outside", "gpu", "{blocks: [{controller: {zone: a, outside: pass}, workers: [{node: a}]}]}", []string{"spec.blocks[0].controller.outside", `"stay"`}},
	{"no zone", "gpu", "{blocks: [{controller: {zone: '', topologyTolerance: same}, workers: [{node: a}]}]}", []string{"spec.blocks[0].controller.zone"}},
	{"a zone that is no label", "gpu", "{blocks: [{controller: {zone: 'a b', topologyTolerance: same}, workers: [{node: a}]}]}", []string{"spec.blocks[0].controller.zone"}},
}

func TestDefinitionsRefuse(t *testing.T) {
	for _, plural := range []string{"placementpolicies", "clusterplacementpolicies"} {
		d := readDefinition(t, plural)
		for _, tc := range refusedPolicies {
			t.Run(plural+"/"+tc.name, func(t *testing.T) {
				got := d.refused(policyWith(t, tc.policy, tc.spec))
				if len(got) == 0 || !slices.ContainsFunc(got, func(err string) bool {
					return !slices.ContainsFunc(tc.want, func(w string) bool { return !strings.Contains(err, w) })
				}) {
					t.Errorf("got %q, want an error with %q", got, tc.want)
				}
				// The activators refuse it, too, in case the cluster has another definition.
				var spec v1alpha1.PlacementPolicySpec
				if err := yaml.Unmarshal([]byte(tc.spec), &spec); err != nil {
					t.Fatal(err)
				}
				if errs := tapp.Validate(tc.policy, &spec); len(errs) == 0 {
					t.Error("activators would accept it")
				}
			})
		}
		long := policyWith(t, strings.Repeat("a", 64), "{blocks: [{workers: [{node: a}]}]}")
		if got := d.refused(long); len(got) == 0 || !strings.Contains(got[0], "metadata.name must have at most 63 characters") {
			t.Errorf("a name of 64 characters: got %q", got)
		}
	}
}

func TestDefinitionsAcceptAndDefault(t *testing.T) {
	d := readDefinition(t, "placementpolicies")
	for name, spec := range map[string]string{
		"a node":     "{blocks: [{workers: [{node: worker-1.example.com}]}]}",
		"all nodes":  "{blocks: [{workers: [{set: {}}]}]}",
		"as much":    "{followup: fail, strategy: platform, blocks: [" + strings.Repeat("{workers: ["+strings.Repeat("{set: {matchLabels: {a: b}}, strategy: mws, invalidate: {overload: true}},", 4)+"]},", 16) + "]}",
		"zones":      "{blocks: [{controller: {zone: a_b.C-1, topologyTolerance: none}, workers: [{set: {}}]}]}",
		"tolerances": "{blocks: [{controller: {zone: a}, workers: [{set: {}}]}, {controller: {zone: a, topologyTolerance: all, outside: stay}, workers: [{set: {}}]}]}",
		"conditions": "{blocks: [{workers: [{set: {matchExpressions: [{key: a/b, operator: NotIn, values: ['']}]}}], invalidate: {capacityUsedPercent: 1, maxConcurrentInvocations: 1000000, overload: false}}]}",
	} {
		o := policyWith(t, name, spec)
		if got := d.refused(o); len(got) > 0 {
			t.Errorf("%s: refused with %q", name, got)
		}
		of := o["spec"].(map[string]any)
		if block := of["blocks"].([]any)[0].(map[string]any); of["strategy"] == nil || block["strategy"] != "bestFirst" {
			t.Errorf("%s: it has the strategies %v and %v, want bestFirst by default", name, of["strategy"], block["strategy"])
		}
		if _, set := of["followup"]; set != strings.Contains(spec, "followup") {
			t.Errorf("%s: the followup depends on the name, and is %v", name, of["followup"])
		}
	}
	// Each strategy, of a block and of a set.
	for _, s := range slices.Sorted(maps.Keys(map[v1alpha1.Strategy]bool{
		v1alpha1.BestFirst: true, v1alpha1.Random: true, v1alpha1.Platform: true, v1alpha1.Coverage: true, v1alpha1.Hash: true,
		v1alpha1.RoundRobin: true, v1alpha1.JSQ: true, v1alpha1.MWS: true, v1alpha1.LeastPressure: true,
	})) {
		if got := d.refused(policyWith(t, "gpu", fmt.Sprintf("{blocks: [{workers: [{set: {}, strategy: %s}], strategy: %s}]}", s, s))); len(got) > 0 {
			t.Errorf("%s: refused with %q", s, got)
		}
	}
}

// The policies on the page can be applied.
func TestTheSamplesOfTheDocsAreAccepted(t *testing.T) {
	samples := samplesOfDocs(t)
	if len(samples) < 3 {
		t.Fatalf("there are %d policies on the page", len(samples))
	}
	for _, sample := range samples {
		d := readDefinition(t, map[string]string{"PlacementPolicy": "placementpolicies", "ClusterPlacementPolicy": "clusterplacementpolicies"}[sample.Kind])
		if got := d.refused(sample.of); len(got) > 0 {
			t.Errorf("%s %s is refused with %q", sample.Kind, sample.Name, got)
		}
		if errs := tapp.Validate(sample.Name, &sample.Spec); len(errs) > 0 {
			t.Errorf("activators refuse %s %s: %v", sample.Kind, sample.Name, errs)
		}
	}
}

// sample is a policy on the page.
type sample struct {
	v1alpha1.PlacementPolicy
	of map[string]any // as the API server decodes it
}

var yamlOfDocs = regexp.MustCompile("(?s)```yaml\n(.*?)```")

func samplesOfDocs(t *testing.T) (samples []sample) {
	t.Helper()
	page, err := os.ReadFile("../docs/placement-policies.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, block := range yamlOfDocs.FindAllSubmatch(page, -1) {
		for _, document := range strings.Split(string(block[1]), "\n---\n") {
			var s sample
			text, err := yaml.YAMLToJSON([]byte(document))
			if err == nil {
				err = json.Unmarshal(text, &s.of)
			}
			if err != nil {
				t.Fatalf("%v:\n%s", err, document)
			}
			if s.of["apiVersion"] != v1alpha1.GroupVersion.String() {
				continue // of another kind, or a part
			}
			if err := yaml.UnmarshalStrict([]byte(document), &s.PlacementPolicy); err != nil {
				t.Errorf("%v:\n%s", err, document)
			}
			samples = append(samples, s)
		}
	}
	return samples
}
