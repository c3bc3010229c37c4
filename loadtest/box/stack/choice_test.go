package stack

import (
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"libra.dev/libra/loadtest/box/layout"
)

func TestChoice(t *testing.T) {
	for _, tt := range []struct {
		choice Choice
		want   []string
	}{
		{Choice{Ingress: "istio"}, []string{"knative", "istio", "kserve"}},
		{Choice{Ingress: "istio", Without: []string{"kserve"}}, []string{"knative", "istio"}},
		{Choice{Ingress: "kourier", Without: []string{"kserve"}}, []string{"knative", "kourier"}},
	} {
		got, err := tt.choice.Parts()
		if diff := cmp.Diff(tt.want, got); diff != "" || err != nil {
			t.Errorf("parts of %+v: %v (-want +got):\n%s", tt.choice, err, diff)
		}
	}
}

func TestChoiceSaysWhatThereIs(t *testing.T) {
	for _, tt := range []struct {
		choice Choice
		want   string
	}{
		{Choice{Ingress: "contour"}, `--ingress "contour": want one of istio, kourier`},
		{Choice{Ingress: "kourier"}, "--ingress kourier: KServe's routes on the box need Istio's gateways; add --without kserve"},
		{Choice{Ingress: "istio", Without: []string{"knative"}}, `--without "knative": a box can do without kserve only`},
	} {
		if _, err := tt.choice.Parts(); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("parts of %+v: %v, want %q", tt.choice, err, tt.want)
		}
	}
}

func TestRenderedHasTheChosenPartsAlone(t *testing.T) {
	l := layout.Layout{Cache: t.TempDir()}
	if err := os.MkdirAll(l.Manifests(), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, manifest := range map[string]string{"knative": "kind: A\n---\nkind: B\n", "istio": "", "kserve": "kind: C\n"} {
		if err := os.WriteFile(manifestPath(l, name, phases[0]), []byte(manifest), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	objects, err := rendered(l, []string{"knative", "istio"}, phases[0])
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(parse(t, "kind: A\n---\nkind: B\n"), objects); diff != "" {
		t.Errorf("rendered() (-want +got):\n%s", diff)
	}
	if _, err := rendered(l, []string{"knative"}, phases[1]); err == nil || !strings.Contains(err.Error(), "build the stack first") {
		t.Errorf("rendered() = %v without a part's file, want an error that says what to do", err)
	}
}

func TestKnativeUsesTheIngressThatIsThere(t *testing.T) {
	for part, class := range map[string]string{
		"istio":   "gateway-api.ingress.networking.knative.dev",
		"kourier": "kourier.ingress.networking.knative.dev",
	} {
		objects := parse(t, "kind: ConfigMap\nmetadata: {name: config-network}\ndata: {other: a}\n")
		if err := setIngress(objects, []string{"knative", part}); err != nil {
			t.Fatal(err)
		}
		want := parse(t, "kind: ConfigMap\nmetadata: {name: config-network}\ndata: {other: a, ingress-class: "+class+"}\n")
		if diff := cmp.Diff(want, objects); diff != "" {
			t.Errorf("setIngress() for %s (-want +got):\n%s", part, diff)
		}
	}
	if err := setIngress(nil, []string{"knative"}); err == nil {
		t.Error("setIngress() is content without an ingress")
	}
}

// The gateway's image has neither a shell nor a registry.
func TestKourierIsForTheBox(t *testing.T) {
	if testing.Short() {
		t.Skip("reads modules of the Go module proxy")
	}
	objects, err := kourier(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, edit := range []func([]object) error{resolveImages, setRequests, askSoon} {
		if err := edit(objects); err != nil {
			t.Fatal(err)
		}
	}
	for _, o := range objects {
		data, err := o.MarshalJSON()
		if err != nil {
			t.Fatal(err)
		}
		for _, foreign := range []string{koScheme, "docker.io/", "/bin/sh", `"LoadBalancer"`} {
			if strings.Contains(string(data), foreign) {
				t.Errorf("%s %s has %s", o.GetKind(), o.GetName(), foreign)
			}
		}
	}
}
