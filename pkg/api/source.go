package api

import "fmt"

// Source is where CPU beyond the user allocation comes from.
type Source string

const (
	// SourceOwners lends what donors do not use of their own, as LIBRA does: the limits on
	// a node never add up to more than their owners configured.
	SourceOwners Source = "owners"
	// SourceNode lends what the node has idle, up to a ceiling for each container.
	SourceNode Source = "node"
)

// ParseSource returns s as a Source, or an error that names the accepted sources.
func ParseSource(s string) (Source, error) {
	switch src := Source(s); src {
	case SourceOwners, SourceNode:
		return src, nil
	default:
		return "", fmt.Errorf("source is %.64q, want %s or %s", s, SourceNode, SourceOwners)
	}
}
