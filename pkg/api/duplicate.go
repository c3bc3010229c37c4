package api

import "k8s.io/apimachinery/pkg/types"

const (
	// DuplicateInputsAnnotation, when it is DuplicateInputsValue on the revision
	// template, lets Libra repeat inputs of the revision, scaled, in a copy of it.
	DuplicateInputsAnnotation = "libra.dev/duplicate-inputs"
	DuplicateInputsValue      = "true"

	// DuplicateHeader is DuplicateHeaderValue on every request that repeats another, so
	// that the function can tell. Clients can send it, too.
	DuplicateHeader      = "Libra-Duplicate"
	DuplicateHeaderValue = "true"

	// CopyOfLabel names the revision, in the same namespace, that a revision or a
	// Service is a copy of.
	CopyOfLabel = "libra.dev/copy-of"
	// CopyOfConfigurationAnnotation names, on a copy, the original's Configuration.
	CopyOfConfigurationAnnotation = "libra.dev/copy-of-configuration"
)

// IsCopy reports whether labels are those of a copy.
func IsCopy(labels map[string]string) bool { return labels[CopyOfLabel] != "" }

// FunctionOf returns the function that the invocations of a revision with these labels
// count as: the revision itself, or the one that it is a copy of.
func FunctionOf(revision types.NamespacedName, labels map[string]string) types.NamespacedName {
	if IsCopy(labels) {
		revision.Name = labels[CopyOfLabel]
	}
	return revision
}
