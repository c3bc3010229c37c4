package settings

import (
	"testing"

	"libra.dev/libra/pkg/api"
)

func TestSourceOf(t *testing.T) {
	of := func(source string) map[string]string { return map[string]string{api.SourceLabel: source} }
	for _, tc := range []struct {
		node, namespace map[string]string
		want            api.Source
		by              string
	}{
		{nil, nil, api.SourceNode, ""},
		{nil, of("owners"), api.SourceOwners, "namespace"},
		{of("node"), of("owners"), api.SourceNode, "node"},
		{of("Node"), of("owners"), api.SourceOwners, "namespace"},
		{of(""), of("any"), api.SourceNode, ""},
	} {
		if got, by := Default.SourceOf(tc.node, tc.namespace); got != tc.want || by != tc.by {
			t.Errorf("SourceOf(%v, %v) = %s by %q, want %s by %q", tc.node, tc.namespace, got, by, tc.want, tc.by)
		}
	}
}
