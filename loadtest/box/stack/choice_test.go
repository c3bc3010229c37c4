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
		{Choice{}, []string{"knative", "istio", "kserve"}},
		{Choice{Without: []string{"kserve"}}, []string{"knative", "istio"}},
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
		{Choice{Without: []string{"knative"}}, `--without "knative": a box can do without kserve alone`},
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
