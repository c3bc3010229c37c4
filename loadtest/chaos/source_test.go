package main

import (
	"encoding/json"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"

	"libra.dev/libra/loadtest/bench/rig"
	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/settings"
)

// boxOf returns a cluster with these settings, and this source label on the
// functions' namespace.
func boxOf(data map[string]string, label string) *cluster {
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: rig.Namespace, Labels: map[string]string{}}}
	if label != "" {
		namespace.Labels[api.SourceLabel] = label
	}
	policies := dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[schema.GroupVersionResource]string{harvestPolicies: "HarvestPolicyList"})
	return &cluster{Rig: &rig.Rig{Home: rig.Node, Objects: policies, Kube: fake.NewClientset(
		namespace,
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: rig.Node}},
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: settings.Namespace, Name: settings.ConfigMap}, Data: data},
	)}}
}

// is checks what the source is set to.
func (c *cluster) is(t *testing.T, config, label string, noted bool) {
	t.Helper()
	ctx := t.Context()
	cm, err := c.Kube.CoreV1().ConfigMaps(settings.Namespace).Get(ctx, settings.ConfigMap, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	namespace, err := c.Kube.CoreV1().Namespaces().Get(ctx, rig.Namespace, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	source, ok := cm.Data[sourceKey]
	if source != config || ok != (config != "") || cm.Data["mode"] != "full" {
		t.Errorf("the settings are %v, want the source %q", cm.Data, config)
	}
	if got, ok := namespace.Labels[api.SourceLabel]; got != label || ok != (label != "") {
		t.Errorf("the namespace's source is %q, want %q", got, label)
	}
	if _, ok := cm.Annotations[foundAnnotation]; ok != noted {
		t.Errorf("that a run is on is noted: %t", ok)
	}
}

func TestSourceIsPutBack(t *testing.T) {
	for _, was := range []sourceSettings{{}, {Config: "node"}, {Namespace: "owners"}, {"node", "owners"}} {
		data := map[string]string{"mode": "full"}
		if was.Config != "" {
			data[sourceKey] = was.Config
		}
		c := boxOf(data, was.Namespace)
		ctx := t.Context()
		if _, err := c.holdSource(ctx); err != nil {
			t.Fatal(err)
		}
		c.is(t, was.Config, "", true)
		if err := c.setSource(ctx, api.SourceOwners); err != nil {
			t.Fatal(err)
		}
		c.is(t, "owners", "", true)

		// The run is killed, and the next one finds its note.
		restore, err := c.holdSource(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if err := c.setSource(ctx, api.SourceNode); err != nil {
			t.Fatal(err)
		}
		c.is(t, "node", "", true)
		if err := restore(ctx); err != nil {
			t.Fatal(err)
		}
		c.is(t, was.Config, was.Namespace, false)
	}
}

func TestFlipEndsWithTheSourceOfTheTrial(t *testing.T) {
	for _, source := range allSources {
		c := boxOf(map[string]string{"mode": "full", sourceKey: string(source)}, "")
		hit := target{fault: fault{kind: kind{part: sourcePart, action: flip}}, source: source}
		if _, err := c.strike(t.Context(), hit, nil); err != nil {
			t.Fatal(err)
		}
		c.is(t, string(source), "", false)
		seen := map[string]int{}
		for _, action := range c.Kube.(*fake.Clientset).Actions() {
			patch, ok := action.(interface{ GetPatch() []byte })
			if !ok {
				continue
			}
			var change struct{ Data map[string]string }
			if err := json.Unmarshal(patch.GetPatch(), &change); err != nil {
				t.Fatal(err)
			}
			seen[change.Data[sourceKey]]++
		}
		if seen[string(source)] != flips || seen[string(other(source))] != flips {
			t.Errorf("under %s it was set to %v", source, seen)
		}
	}
}

func TestWhatStandsAgainstASourceIsNamed(t *testing.T) {
	for _, key := range []string{"mode", "max-mode"} {
		data := map[string]string{"mode": "full"}
		data[key] = "observe"
		if _, err := boxOf(data, "").holdSource(t.Context()); err == nil || !strings.Contains(err.Error(), "max-mode") {
			t.Errorf("nothing is changed with the %s observe, and that is %v, want an error that says what to set", key, err)
		}
	}
	labelled := boxOf(map[string]string{"mode": "full"}, "")
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: rig.Node, Labels: map[string]string{api.SourceLabel: "owners"}}}
	if _, err := labelled.Kube.CoreV1().Nodes().Update(t.Context(), node, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := labelled.holdSource(t.Context()); err == nil {
		t.Error("the node has a source of its own, and that is no error")
	}
	for _, namespace := range []string{settings.Namespace, rig.Namespace} {
		policy := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "libra.dev/v1alpha1", "kind": "HarvestPolicy", "metadata": map[string]any{"namespace": namespace, "name": "default"},
		}}
		c := boxOf(map[string]string{"mode": "full"}, "")
		if _, err := c.Objects.Resource(harvestPolicies).Namespace(namespace).Create(t.Context(), policy, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		if _, err := c.holdSource(t.Context()); err == nil || !strings.Contains(err.Error(), "HarvestPolicy "+namespace+"/default") {
			t.Errorf("namespace %s has a policy, and that is %v", namespace, err)
		}
	}
}
