package api

import (
	"slices"
	"strings"
	"testing"
)

func TestRefusedAnnotations(t *testing.T) {
	for annotation, values := range map[string]struct{ accepted, refused []string }{
		ModeAnnotation:            {[]string{"observe", "lend", "full"}, []string{"", "Full", "off"}},
		IdleAnnotation:            {[]string{"keep"}, []string{"", "lend"}},
		MinCPUAnnotation:          {[]string{"0", "200m", "1.5"}, []string{"", "-1", "much"}},
		MinMemoryAnnotation:       {[]string{"0", "128Mi"}, []string{"", "-1Mi", "128m", "1.5", "much"}},
		MaxCPUAnnotation:          {[]string{"0", "500m", "2"}, []string{"", "-1", "8E", "much"}},
		QueueAnnotation:           {[]string{"fifo"}, []string{"", "lifo"}},
		InputSizeAnnotation:       {[]string{"", "header:X-Rows", "query:n"}, []string{"header:", "header:a b", "query:", "cookie:n"}},
		DuplicateInputsAnnotation: {[]string{"true", "false"}, []string{"", "yes"}},
	} {
		for _, value := range values.accepted {
			if got := RefusedAnnotations(map[string]string{annotation: value}); len(got) != 0 {
				t.Errorf("%s: %q is refused: %v", annotation, value, got)
			}
		}
		for _, value := range values.refused {
			got := RefusedAnnotations(map[string]string{annotation: value})
			if len(got) != 1 || got[0].Name != annotation || !strings.Contains(got[0].Err.Error(), annotation) || !strings.Contains(got[0].Err.Error(), ", want ") {
				t.Errorf("%s: %q is refused with %v, want one error that names the annotation and what is accepted", annotation, value, got)
			}
		}
	}
}

func TestUnknownNames(t *testing.T) {
	annotations := map[string]string{ModeAnnotation: "full", "libra.dev/max_cpu": "1", PlacementLabel: "near-data", "example.com/mode": "off"}
	labels := map[string]string{EnabledLabel: EnabledValue, PlacementLabel: "near-data", CopyOfLabel: "f", MaxCPUAnnotation: "1", "app": "f"}
	got := UnknownNames(annotations, labels)
	if want := []string{MaxCPUAnnotation, "libra.dev/max_cpu", PlacementLabel}; !slices.Equal(got, want) {
		t.Errorf("UnknownNames() = %q, want %q", got, want)
	}
}

func TestRefusedAnnotationsAreAllThatThereAre(t *testing.T) {
	if got := RefusedAnnotations(map[string]string{"example.com/mode": "off"}); got != nil {
		t.Errorf("an annotation of another's is refused: %v", got)
	}
	got := RefusedAnnotations(map[string]string{ModeAnnotation: "off", MaxCPUAnnotation: "much", IdleAnnotation: IdleKeep})
	var names []string
	for _, err := range got {
		names = append(names, err.Name)
	}
	if want := []string{MaxCPUAnnotation, ModeAnnotation}; !slices.Equal(names, want) {
		t.Errorf("refused are %v, want %v", names, want)
	}
}
