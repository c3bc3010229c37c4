package settings

import (
	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/api/v1alpha1"
)

// SourceOf returns the source of what pods lend and borrow, by the labels of their node and of their namespace, and by the
// namespace's HarvestPolicy. by is what says so: "node", "policy", "namespace" or "" for the settings. A value that cannot
// be read counts as none.
func (s Settings) SourceOf(node, namespace map[string]string, policy v1alpha1.HarvestPolicySpec) (source api.Source, by string) {
	for _, of := range []struct{ source, by string }{
		{node[api.SourceLabel], "node"}, {string(policy.Source), "policy"}, {namespace[api.SourceLabel], "namespace"},
	} {
		if source, err := api.ParseSource(of.source); err == nil {
			return source, of.by
		}
	}
	return s.Source, ""
}
