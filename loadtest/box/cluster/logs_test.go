package cluster

import (
	"context"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"libra.dev/libra/loadtest/box/layout"
)

func TestFindWorkload(t *testing.T) {
	workloads := []workload{
		{"deploy", "knative-serving", "controller"},
		{"deploy", "kserve", "controller"},
		{"deploy", "knative-serving", "activator"},
		{"ds", "libra-node", "agent"},
	}
	tests := []struct {
		name string
		want workload
		ok   bool
	}{
		{"activator", workloads[2], true},
		{"deploy/activator", workloads[2], true},
		{"ds/agent", workloads[3], true},
		{"kserve/controller", workloads[1], true},
		{"controller", workload{}, false}, // which?
		{"deploy/agent", workload{}, false},
		{"", workload{}, false},
	}
	for _, tt := range tests {
		got, ok := findWorkload(workloads, tt.name)
		if ok != tt.ok {
			t.Errorf("findWorkload(%q) found one: %t, want %t", tt.name, ok, tt.ok)
		}
		if diff := cmp.Diff(tt.want, got, cmp.AllowUnexported(workload{})); ok && diff != "" {
			t.Errorf("findWorkload(%q) (-want +got):\n%s", tt.name, diff)
		}
	}
}

func TestLogsOfUnknown(t *testing.T) {
	c := Cluster{Layout: layout.Layout{State: t.TempDir(), Cache: t.TempDir()}, Log: t.Logf}
	_, err := c.Logs(context.Background(), "kublet", LogOptions{})
	if err == nil {
		t.Fatal("a log of nothing")
	}
	for _, want := range append(ComponentNames(), `"kublet"`) {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error %q, want it to name %s", err, want)
		}
	}
}
