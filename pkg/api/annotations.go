package api

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
)

// Parts of a request that InputSizeAnnotation can name.
const (
	InputSizeHeader = "header"
	InputSizeQuery  = "query"
	InputSizeJSON   = "json"
)

// MostCPU is more CPU than any node has, in cores.
const MostCPU = 1 << 20

// MostMemory is more memory than any node has, in bytes.
const MostMemory = 1 << 50

// ParseIdle returns an error if s is not a valid IdleAnnotation.
func ParseIdle(s string) error {
	if s != IdleKeep {
		return fmt.Errorf("annotation %s is %.64q, want %s, or none for pods that lend between requests", IdleAnnotation, s, IdleKeep)
	}
	return nil
}

// ParseQueue returns an error if s is not a valid QueueAnnotation.
func ParseQueue(s string) error {
	if s != QueueFIFO {
		return fmt.Errorf("annotation %s is %.64q, want %s, or none for the shortest first", QueueAnnotation, s, QueueFIFO)
	}
	return nil
}

// ParseInputSize parses an InputSizeAnnotation. field is the part of a request that holds the size, and name is its
// name there. For a JSON body, name is a pointer (RFC 6901) to a part of it, not to the whole.
func ParseInputSize(s string) (field, name string, err error) {
	field, name, _ = strings.Cut(s, ":")
	if field == InputSizeHeader && isToken(name) || field == InputSizeQuery && name != "" || field == InputSizeJSON && isPointer(name) {
		return field, name, nil
	}
	return "", "", fmt.Errorf("annotation %s is %.64q, want header:NAME, query:NAME or json:/POINTER", InputSizeAnnotation, s)
}

// ParseMaxCPU parses a MaxCPUAnnotation.
func ParseMaxCPU(s string) (milli int64, err error) {
	q, err := resource.ParseQuantity(s)
	if err != nil || q.Sign() < 0 || q.CmpInt64(MostCPU) > 0 {
		return 0, fmt.Errorf("annotation %s is %.64q, want an amount of CPU from 0, such as 500m or 2", MaxCPUAnnotation, s)
	}
	return q.MilliValue(), nil
}

// ParseMinCPU parses a MinCPUAnnotation. The quantity may be too large for MilliValue.
func ParseMinCPU(s string) (resource.Quantity, error) {
	q, err := resource.ParseQuantity(s)
	if err != nil || q.Sign() < 0 {
		return resource.Quantity{}, fmt.Errorf("annotation %s is %.64q, want an amount of CPU from 0, such as 200m or 1.5", MinCPUAnnotation, s)
	}
	return q, nil
}

// ParseMinMemory parses a MinMemoryAnnotation.
func ParseMinMemory(s string) (resource.Quantity, error) {
	q, err := resource.ParseQuantity(s)
	// "128m" is an eighth of a byte to Kubernetes, and nobody means that.
	if err != nil || q.Sign() < 0 || q.CmpInt64(MostMemory) > 0 || q.Cmp(*resource.NewQuantity(q.Value(), q.Format)) != 0 {
		return resource.Quantity{}, fmt.Errorf("annotation %s is %.64q, want a whole number of bytes from 0 to 1Pi, such as 128Mi", MinMemoryAnnotation, s)
	}
	return q, nil
}

// escapes removes the only sequences in which a pointer may have a tilde (RFC 6901, section 3).
var escapes = strings.NewReplacer("~0", "", "~1", "")

// isPointer reports whether s is a JSON pointer (RFC 6901, section 3) to a part of a document.
func isPointer(s string) bool {
	return strings.HasPrefix(s, "/") && !strings.Contains(escapes.Replace(s), "~")
}

// isToken reports whether s can be the name of a header (RFC 9110, section 5.6.2).
func isToken(s string) bool {
	for _, c := range s {
		if !isAlphanumeric(c) && !strings.ContainsRune("!#$%&'*+-.^_`|~", c) {
			return false
		}
	}
	return s != ""
}

func isAlphanumeric(c rune) bool {
	return '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
}
