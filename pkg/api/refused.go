package api

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// RefusedAnnotation is an annotation whose value some part of Libra refuses, and why.
type RefusedAnnotation struct {
	Name string
	Err  error
}

// prefix is what the names of Libra's annotations and labels begin with.
const prefix = "libra.dev/"

// parsers check the values of a revision's annotations, for those that can be refused.
var parsers = map[string]func(value string) error{
	ModeAnnotation: func(value string) error {
		if _, err := ParseMode(value); err != nil {
			return fmt.Errorf("annotation %s: %w", ModeAnnotation, err)
		}
		return nil
	},
	IdleAnnotation: ParseIdle,
	MinCPUAnnotation: func(value string) error {
		_, err := ParseMinCPU(value)
		return err
	},
	MinMemoryAnnotation: func(value string) error {
		_, err := ParseMinMemory(value)
		return err
	},
	MaxCPUAnnotation: func(value string) error {
		_, err := ParseMaxCPU(value)
		return err
	},
	QueueAnnotation: ParseQueue,
	InputSizeAnnotation: func(value string) error {
		if value == "" {
			return nil // as without the annotation
		}
		_, _, err := ParseInputSize(value)
		return err
	},
	DuplicateInputsAnnotation: parseDuplicateInputs,
}

// RefusedAnnotations returns the annotations of a revision that some part of
// Libra refuses, sorted by name.
func RefusedAnnotations(annotations map[string]string) (refused []RefusedAnnotation) {
	for _, name := range slices.Sorted(maps.Keys(parsers)) {
		if value, ok := annotations[name]; ok {
			if err := parsers[name](value); err != nil {
				refused = append(refused, RefusedAnnotation{name, err})
			}
		}
	}
	return refused
}

// UnknownNames returns the names, sorted, of a revision's annotations and labels that begin as Libra's do and that no part of
// Libra reads there.
func UnknownNames(annotations, labels map[string]string) (names []string) {
	for name := range annotations {
		if _, ok := parsers[name]; !ok && strings.HasPrefix(name, prefix) && name != CopyOfConfigurationAnnotation {
			names = append(names, name)
		}
	}
	for name := range labels {
		if strings.HasPrefix(name, prefix) && name != EnabledLabel && name != PlacementLabel && name != CopyOfLabel {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// parseDuplicateInputs refuses a value that neither allows nor forbids repeated inputs.
func parseDuplicateInputs(value string) error {
	if value != DuplicateInputsValue && value != "false" {
		return fmt.Errorf("annotation %s is %.64q, want %s or false", DuplicateInputsAnnotation, value, DuplicateInputsValue)
	}
	return nil
}
