package settings

import (
	"testing"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/api/v1alpha1"
)

func TestSourceOf(t *testing.T) {
	of := func(source string) map[string]string { return map[string]string{api.SourceLabel: source} }
	for _, tc := range []struct {
		node, namespace map[string]string
		policy          v1alpha1.Source
		want            api.Source
		by              string
	}{
		{nil, nil, "", api.SourceNode, ""},
		{nil, of("owners"), "", api.SourceOwners, "namespace"},
		{nil, of("node"), "owners", api.SourceOwners, "policy"},
		{of("node"), of("owners"), "owners", api.SourceNode, "node"},
		{of("Node"), of("owners"), "", api.SourceOwners, "namespace"},
		{of(""), of("any"), "", api.SourceNode, ""},
	} {
		if got, by := Default.SourceOf(tc.node, tc.namespace, v1alpha1.HarvestPolicySpec{Source: tc.policy}); got != tc.want || by != tc.by {
			t.Errorf("SourceOf(%v, %v, %q) = %s by %q, want %s by %q", tc.node, tc.namespace, tc.policy, got, by, tc.want, tc.by)
		}
	}
}
