package manifests

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	unstructuredv1 "k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	sigsyaml "sigs.k8s.io/yaml"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/apiservertest"
)

// servicesDefinition defines Knative's Services, as far as the policies need it.
const servicesDefinition = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: services.serving.knative.dev}
spec:
  group: serving.knative.dev
  names: {kind: Service, listKind: ServiceList, plural: services, singular: service}
  scope: Namespaced
  versions:
  - name: v1
    served: true
    storage: true
    subresources: {status: {}}
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec: {type: object, x-kubernetes-preserve-unknown-fields: true}
          status: {type: object, x-kubernetes-preserve-unknown-fields: true}
`

// patience bounds how long the API server may take until a policy is in force.
const patience = 30 * time.Second

// heard collects the warnings of an API server.
type heard struct {
	mu   sync.Mutex
	text []string
}

func (h *heard) HandleWarningHeader(_ int, _, text string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.text = append(h.text, text)
}

// take returns the warnings since it was last called.
func (h *heard) take() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	text := h.text
	h.text = nil
	return text
}

// servicesServer starts an API server with Knative's Services and the policies of the folders.
func servicesServer(t *testing.T, folders ...string) (client.Client, *rest.Config, *heard) {
	t.Helper()
	definitions := t.TempDir()
	if err := os.WriteFile(filepath.Join(definitions, "services.yaml"), []byte(servicesDefinition), 0o600); err != nil {
		t.Fatal(err)
	}
	config := apiservertest.Start(t, definitions)
	warnings := &heard{}
	config.WarningHandler = warnings
	c, err := client.New(config, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, folder := range folders {
		objects, err := render(folder, map[string]bool{})
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range objects {
			var policy unstructuredv1.Unstructured
			if err := sigsyaml.Unmarshal(o.whole, &policy.Object); err != nil {
				t.Fatal(err)
			}
			err := c.Create(t.Context(), &policy)
			if apierrors.IsNotFound(err) || err != nil && strings.Contains(err.Error(), "no matches for kind") {
				t.Skipf("This API server does not serve %s %s", policy.GetAPIVersion(), policy.GetKind())
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	return c, config, warnings
}

func namespace(t *testing.T, c client.Client, name string, labels map[string]string) {
	t.Helper()
	if err := c.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}); err != nil {
		t.Fatal(err)
	}
}

// serviceIn returns a Service in a namespace, not created yet.
func serviceIn(namespace, name string, service map[string]any) *unstructuredv1.Unstructured {
	s := (&unstructuredv1.Unstructured{Object: service}).DeepCopy()
	s.SetNamespace(namespace)
	s.SetName(name)
	return s
}

// untilTried repeats a creation, as a dry run, until its outcome satisfies holds: it takes a
// moment until a policy is in force.
func untilTried(t *testing.T, c client.Client, s *unstructuredv1.Unstructured, holds func(*unstructuredv1.Unstructured) bool) {
	t.Helper()
	var refused error // including that the kind is not there yet
	if err := wait.PollUntilContextTimeout(t.Context(), 50*time.Millisecond, patience, true, func(ctx context.Context) (bool, error) {
		tried := s.DeepCopy()
		refused = c.Create(ctx, tried, client.DryRunAll)
		return refused == nil && holds(tried), nil
	}); err != nil {
		t.Fatalf("The API server does not go by the policies: %v, %v", err, refused)
	}
}

func TestWarningsReachWhoeverWritesAFunction(t *testing.T) {
	c, _, warnings := servicesServer(t, "base/functions")
	namespace(t, c, "stock", nil)
	namespace(t, c, "of-owners", map[string]string{api.SourceLabel: string(api.SourceOwners)})
	untilTried(t, c, serviceIn("stock", "probe", function(annotated(api.ModeAnnotation, "on"))), func(*unstructuredv1.Unstructured) bool {
		return len(warnings.take()) > 0
	})

	for i, tc := range []struct {
		namespace string
		service   map[string]any
		want      []string
	}{
		{"stock", function(), nil},
		{"of-owners", function(), nil},
		{"stock", function(resources(nil, nil), annotated(api.MinMemoryAnnotation, "128m")),
			[]string{"no CPU limit", "no memory limit", "libra.dev/min-memory is not accepted"}},
		{"of-owners", function(concurrency(0), resources(nil, map[string]any{"cpu": int64(1), "memory": "1Gi"})),
			[]string{"containerConcurrency is 0", "request of the function's container is not below its limit"}},
	} {
		s := serviceIn(tc.namespace, fmt.Sprintf("function-%d", i), tc.service)
		if err := c.Create(t.Context(), s); err != nil {
			t.Fatal("A function was refused: ", err)
		}
		got := warnings.take()
		if len(got) != len(tc.want) {
			t.Errorf("%s: the client hears %q, want %q", s.GetName(), got, tc.want)
		}
		for _, want := range tc.want {
			if !slices.ContainsFunc(got, func(text string) bool { return strings.Contains(text, want) }) {
				t.Errorf("%s: the client hears %q, want %q in it", s.GetName(), got, want)
			}
		}
	}
}

// without returns a function of an owner who has not heard of Libra.
func without(changes ...change) map[string]any {
	return function(append([]change{func(template, _ map[string]any) { delete(template, "metadata") }}, changes...)...)
}

// metadata sets a template's labels and annotations, and its name unless that is "".
func metadata(name string, labels, annotations map[string]any) change {
	return func(template, _ map[string]any) {
		m := map[string]any{}
		if name != "" {
			m["name"] = name
		}
		if labels != nil {
			m["labels"] = labels
		}
		if annotations != nil {
			m["annotations"] = annotations
		}
		template["metadata"] = m
	}
}

// written returns the label and the annotation on the template of a Service.
func written(s *unstructuredv1.Unstructured) (enabled, burst string) {
	enabled, _, _ = unstructuredv1.NestedString(s.Object, "spec", "template", "metadata", "labels", api.EnabledLabel)
	burst, _, _ = unstructuredv1.NestedString(s.Object, "spec", "template", "metadata", "annotations", burstAnnotation)
	return enabled, burst
}

func TestALabelledNamespaceOptsItsFunctionsIn(t *testing.T) {
	c, config, _ := servicesServer(t, "components/namespace-opt-in")
	namespace(t, c, "stock", nil)
	namespace(t, c, "in", map[string]string{api.EnabledLabel: api.EnabledValue})
	untilTried(t, c, serviceIn("in", "probe", without()), func(s *unstructuredv1.Unstructured) bool {
		enabled, _ := written(s)
		return enabled == api.EnabledValue
	})
	create := func(t *testing.T, s *unstructuredv1.Unstructured) {
		t.Helper()
		if err := c.Create(t.Context(), s); err != nil {
			t.Fatal(err)
		}
	}
	update := func(t *testing.T, s *unstructuredv1.Unstructured, service map[string]any) {
		t.Helper()
		s.Object["spec"] = (&unstructuredv1.Unstructured{Object: service}).DeepCopy().Object["spec"]
		if err := c.Update(t.Context(), s); err != nil {
			t.Fatal(err)
		}
	}
	expect := func(t *testing.T, s *unstructuredv1.Unstructured, wantEnabled, wantBurst string, wantGeneration int64) {
		t.Helper()
		if enabled, burst := written(s); enabled != wantEnabled || burst != wantBurst {
			t.Errorf("the template says %q and %q, want %q and %q", enabled, burst, wantEnabled, wantBurst)
		}
		if got := s.GetGeneration(); got != wantGeneration {
			t.Errorf("it is at generation %d, want %d", got, wantGeneration)
		}
	}

	for name, tc := range map[string]struct {
		namespace                string
		service                  map[string]any
		wantEnabled, wantBurst   string
		wantMode, wantOtherLabel string
	}{
		"nothing":              {"in", without(), "true", "-1", "", ""},
		"elsewhere":            {"stock", without(), "", "", "", ""},
		"labels-of-others":     {"in", without(metadata("", map[string]any{"app": "shop"}, nil)), "true", "-1", "", "shop"},
		"out":                  {"in", without(metadata("", map[string]any{api.EnabledLabel: "false"}, nil)), "false", "", "", ""},
		"in-already":           {"in", without(metadata("", map[string]any{api.EnabledLabel: "true"}, nil)), "true", "-1", "", ""},
		"another-burst":        {"in", without(metadata("", nil, map[string]any{burstAnnotation: "0"})), "true", "0", "", ""},
		"a-mode":               {"in", without(metadata("", nil, map[string]any{api.ModeAnnotation: "full"})), "true", "-1", "full", ""},
		"named-when-it-begins": {"in", without(metadata("shop-1", nil, nil)), "true", "-1", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := serviceIn(tc.namespace, name, tc.service)
			create(t, s)
			expect(t, s, tc.wantEnabled, tc.wantBurst, 1)
			mode, _, _ := unstructuredv1.NestedString(s.Object, "spec", "template", "metadata", "annotations", api.ModeAnnotation)
			app, _, _ := unstructuredv1.NestedString(s.Object, "spec", "template", "metadata", "labels", "app")
			if mode != tc.wantMode || app != tc.wantOtherLabel {
				t.Errorf("the owner's mode is %q and label %q, want %q and %q", mode, app, tc.wantMode, tc.wantOtherLabel)
			}
		})
	}

	t.Run("written again and again", func(t *testing.T) {
		s := serviceIn("in", "again", without())
		create(t, s)
		for range 2 {
			update(t, s, without())
			expect(t, s, "true", "-1", 1)
		}
		update(t, s, without(concurrency(2)))
		expect(t, s, "true", "-1", 2)
	})
	t.Run("applied again and again", func(t *testing.T) {
		for range 3 {
			s := serviceIn("in", "applied", without())
			if err := c.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(s), client.FieldOwner("gitops")); err != nil {
				t.Fatal("A conflict with whoever applies: ", err)
			}
			if err := c.Get(t.Context(), client.ObjectKeyFromObject(s), s); err != nil {
				t.Fatal(err)
			}
			expect(t, s, "true", "-1", 1)
		}
	})
	t.Run("opted out later", func(t *testing.T) {
		s := serviceIn("in", "leaves", without())
		create(t, s)
		update(t, s, without(metadata("", map[string]any{api.EnabledLabel: "false"}, nil)))
		expect(t, s, "false", "", 2)
	})

	// Services from before the namespace had its label.
	namespace(t, c, "later", nil)
	before, named, upgraded := serviceIn("later", "before", without()),
		serviceIn("later", "named", without(metadata("shop-1", nil, nil))), serviceIn("later", "upgraded", without())
	for _, s := range []*unstructuredv1.Unstructured{before, named, upgraded} {
		create(t, s)
		expect(t, s, "", "", 1)
	}
	labelled := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "later", Labels: map[string]string{api.EnabledLabel: api.EnabledValue}}}
	if err := c.Update(t.Context(), labelled); err != nil {
		t.Fatal(err)
	}
	untilTried(t, c, serviceIn("later", "probe", without()), func(s *unstructuredv1.Unstructured) bool {
		enabled, _ := written(s)
		return enabled == api.EnabledValue
	})
	t.Run("by Knative itself", func(t *testing.T) {
		as := rest.CopyConfig(config)
		as.Impersonate = rest.ImpersonationConfig{UserName: "system:serviceaccount:knative-serving:controller",
			Groups: []string{"system:serviceaccounts:knative-serving", "system:masters"}}
		knative, err := client.New(as, client.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if err := knative.Patch(t.Context(), upgraded, client.RawPatch("application/merge-patch+json", []byte("{}"))); err != nil {
			t.Fatal(err)
		}
		expect(t, upgraded, "", "", 1)
	})
	t.Run("at its next update", func(t *testing.T) {
		update(t, before, without())
		expect(t, before, "true", "-1", 2)
		update(t, before, without())
		expect(t, before, "true", "-1", 2)
	})
	t.Run("not while its revision keeps its name", func(t *testing.T) {
		update(t, named, without(metadata("shop-1", nil, nil)))
		expect(t, named, "", "", 1)
		update(t, named, without(metadata("shop-2", nil, nil)))
		expect(t, named, "true", "-1", 2)
		update(t, named, without(metadata("shop-2", nil, nil)))
		expect(t, named, "true", "-1", 2)
	})
}
