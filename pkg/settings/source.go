package settings

import "libra.dev/libra/pkg/api"

// SourceOf returns the source of what pods lend and borrow, by the labels of their node and of their namespace. by is
// the object that says so: "node", "namespace" or "" for the settings. A label that cannot be read counts as none.
func (s Settings) SourceOf(node, namespace map[string]string) (source api.Source, by string) {
	if source, err := api.ParseSource(node[api.SourceLabel]); err == nil {
		return source, "node"
	}
	if source, err := api.ParseSource(namespace[api.SourceLabel]); err == nil {
		return source, "namespace"
	}
	return s.Source, ""
}
