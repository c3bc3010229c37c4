package api

import "fmt"

// Protect is how much of the weight that the kubelet gave it a pod keeps, under SourceNode, while it has had less CPU than
// it is owed since its requests began. Other pods of its namespace may have the rest.
type Protect string

const (
	// ProtectHalf lets it keep half, so that work which is done sooner can go first.
	ProtectHalf Protect = "half"
	// ProtectStrict lets it keep all: it gives way to nobody.
	ProtectStrict Protect = "strict"
)

// ParseProtect returns s as a Protect, or an error that names the accepted values.
func ParseProtect(s string) (Protect, error) {
	switch p := Protect(s); p {
	case ProtectHalf, ProtectStrict:
		return p, nil
	default:
		return "", fmt.Errorf("protect is %.64q, want %s or %s", s, ProtectHalf, ProtectStrict)
	}
}
