package api

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
)

// mostCPU is more CPU than any node has, in cores.
const mostCPU = 1 << 20

// AnnotationError says why the value of an annotation is refused.
type AnnotationError struct {
	Annotation, Value string
	Want              string // the accepted form
}

func (e *AnnotationError) Error() string {
	return fmt.Sprintf("annotation %s is %.64q, want %s", e.Annotation, e.Value, e.Want)
}

// checks are of the annotations of revisions whose values can be refused.
var checks = map[string]func(value string) *AnnotationError{
	ModeAnnotation: CheckMode,
	IdleAnnotation: CheckIdle,
	MinCPUAnnotation: func(value string) *AnnotationError {
		_, err := ParseMinCPU(value)
		return err
	},
	MinMemoryAnnotation: func(value string) *AnnotationError {
		_, err := ParseMinMemory(value)
		return err
	},
	MaxCPUAnnotation: func(value string) *AnnotationError {
		_, err := ParseMaxCPU(value)
		return err
	},
	QueueAnnotation: CheckQueue,
	InputSizeAnnotation: func(value string) *AnnotationError {
		_, _, err := ParseInputSize(value)
		return err
	},
	DuplicateInputsAnnotation: CheckDuplicateInputs,
}

// RefusedAnnotations are those of a revision whose values some part of Libra refuses, by name.
func RefusedAnnotations(annotations map[string]string) (refused []*AnnotationError) {
	for _, name := range slices.Sorted(maps.Keys(checks)) {
		if value, ok := annotations[name]; ok {
			if err := checks[name](value); err != nil {
				refused = append(refused, err)
			}
		}
	}
	return refused
}

// CheckMode refuses what is no Mode.
func CheckMode(value string) *AnnotationError {
	if _, err := ParseMode(value); err != nil {
		return &AnnotationError{ModeAnnotation, value, fmt.Sprintf("%s, %s or %s", ModeObserve, ModeLend, ModeFull)}
	}
	return nil
}

// CheckIdle refuses all but IdleKeep.
func CheckIdle(value string) *AnnotationError {
	if value != IdleKeep {
		return &AnnotationError{IdleAnnotation, value, IdleKeep + ", or none for pods that lend between requests"}
	}
	return nil
}

// CheckQueue refuses all but QueueFIFO.
func CheckQueue(value string) *AnnotationError {
	if value != QueueFIFO {
		return &AnnotationError{QueueAnnotation, value, QueueFIFO + ", or none for the shortest first"}
	}
	return nil
}

// CheckDuplicateInputs refuses what neither allows nor forbids it.
func CheckDuplicateInputs(value string) *AnnotationError {
	if value != DuplicateInputsValue && value != "false" {
		return &AnnotationError{DuplicateInputsAnnotation, value, DuplicateInputsValue + ` or false`}
	}
	return nil
}

// ParseMinCPU reads MinCPUAnnotation.
func ParseMinCPU(value string) (resource.Quantity, *AnnotationError) {
	q, err := resource.ParseQuantity(value)
	if err != nil || q.Sign() < 0 {
		return q, &AnnotationError{MinCPUAnnotation, value, "an amount of CPU from 0, such as 200m or 1.5"}
	}
	return q, nil
}

// ParseMinMemory reads MinMemoryAnnotation.
func ParseMinMemory(value string) (resource.Quantity, *AnnotationError) {
	q, err := resource.ParseQuantity(value)
	// "128m" is an eighth of a byte to Kubernetes, and nobody means that.
	fraction := err == nil && q.Cmp(*resource.NewQuantity(q.Value(), q.Format)) != 0
	if err != nil || q.Sign() < 0 || fraction {
		return q, &AnnotationError{MinMemoryAnnotation, value, "a whole number of bytes from 0, such as 128Mi"}
	}
	return q, nil
}

// ParseMaxCPU reads MaxCPUAnnotation.
func ParseMaxCPU(value string) (milli int64, refused *AnnotationError) {
	q, err := resource.ParseQuantity(value)
	if err != nil || q.Sign() < 0 || q.CmpInt64(mostCPU) > 0 {
		return 0, &AnnotationError{MaxCPUAnnotation, value, "an amount of CPU from 0, such as 500m or 2"}
	}
	return q.MilliValue(), nil
}

// Where InputSizeAnnotation can have a size read from.
const (
	InputSizeHeader = "header"
	InputSizeQuery  = "query"
)

// ParseInputSize reads InputSizeAnnotation: from a header or a parameter of the query, and its name.
func ParseInputSize(value string) (from, name string, refused *AnnotationError) {
	from, name, _ = strings.Cut(value, ":")
	if from == InputSizeHeader && isToken(name) || from == InputSizeQuery && name != "" {
		return from, name, nil
	}
	return "", "", &AnnotationError{InputSizeAnnotation, value, "header:NAME or query:NAME"}
}

// isToken says whether s can be the name of a header (RFC 9110, section 5.6.2).
func isToken(s string) bool {
	for _, c := range s {
		alphanumeric := '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
		if !alphanumeric && !strings.ContainsRune("!#$%&'*+-.^_`|~", c) {
			return false
		}
	}
	return s != ""
}
