package api

import (
	"strings"
	"testing"
)

func TestParseSource(t *testing.T) {
	for _, source := range []Source{SourceOwners, SourceNode} {
		if got, err := ParseSource(string(source)); got != source || err != nil {
			t.Errorf("ParseSource(%q) = %q, %v", source, got, err)
		}
	}
	for _, s := range []string{"", "Node", "node ", "pool"} {
		got, err := ParseSource(s)
		if err == nil || !strings.Contains(err.Error(), "want node or owners") {
			t.Errorf("ParseSource(%q) = %q, %v, want an error with the accepted sources", s, got, err)
		}
	}
}
