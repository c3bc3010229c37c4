package check

import (
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
)

func policy(namespace, app string, spec map[string]any) unstructured.Unstructured {
	u := unstructured.Unstructured{Object: map[string]any{"spec": spec}}
	u.SetNamespace(namespace)
	if app != "" {
		spec["selector"] = map[string]any{"matchLabels": map[string]any{"app": app}}
	}
	return u
}

func mode(mode string) map[string]any {
	return map[string]any{"mtls": map[string]any{"mode": mode}}
}

func TestWhichModeCounts(t *testing.T) {
	byPort := mode(strict)
	byPort["portLevelMtls"] = map[string]any{"6379": map[string]any{"mode": "PERMISSIVE"}}
	for name, tc := range map[string]struct {
		policies []unstructured.Unstructured
		want     string
	}{
		"none":                         {nil, ""},
		"the mesh's":                   {[]unstructured.Unstructured{policy(istioNamespace, "", mode(strict))}, strict},
		"another namespace's":          {[]unstructured.Unstructured{policy("shop", "", mode(strict))}, ""},
		"its namespace's":              {[]unstructured.Unstructured{policy("libra-system", "", mode("PERMISSIVE")), policy(istioNamespace, "", mode(strict))}, "PERMISSIVE"},
		"one that says nothing":        {[]unstructured.Unstructured{policy("libra-system", "", mode("UNSET")), policy(istioNamespace, "", mode(strict))}, strict},
		"its own":                      {[]unstructured.Unstructured{policy("libra-system", "", mode(strict)), policy("libra-system", "redis", mode("DISABLE"))}, "DISABLE"},
		"another pod's":                {[]unstructured.Unstructured{policy("libra-system", "other", mode(strict))}, ""},
		"its port's":                   {[]unstructured.Unstructured{policy("libra-system", "redis", byPort)}, "PERMISSIVE"},
		"a pod's in Istio's namespace": {[]unstructured.Unstructured{policy(istioNamespace, "redis", mode(strict))}, ""},
	} {
		if got := effective(tc.policies, "libra-system", labels.Set{"app": "redis"}, 6379); got != tc.want {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
}

func TestWhichNamespacesAreInAMesh(t *testing.T) {
	for name, tc := range map[string]struct {
		labels map[string]string
		want   mesh
	}{
		"none":                        {nil, outside},
		"injection":                   {map[string]string{"istio-injection": "enabled"}, sidecar},
		"injection off":               {map[string]string{"istio-injection": "disabled"}, outside},
		"a revision":                  {map[string]string{"istio.io/rev": "stable"}, sidecar},
		"a revision, but off":         {map[string]string{"istio.io/rev": "stable", "istio-injection": "disabled"}, outside},
		"Linkerd":                     {map[string]string{"linkerd.io/inject": "enabled"}, sidecar},
		"ambient":                     {map[string]string{"istio.io/dataplane-mode": "ambient"}, ambient},
		"ambient off":                 {map[string]string{"istio.io/dataplane-mode": "none"}, outside},
		"sidecars in an ambient mesh": {map[string]string{"istio.io/dataplane-mode": "ambient", "istio-injection": "enabled"}, sidecar},
	} {
		if got := meshOf(tc.labels); got != tc.want {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
}
