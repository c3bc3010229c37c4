package main

import (
	"io"
	"testing"

	"libra.dev/libra/loadtest/demo/evaluation"
)

func TestLoansAreTheAgentsCounters(t *testing.T) {
	k, _ := fakeKubectl(t, `case "$*" in
*--raw*/namespaces/libra-node/*) cat <<'EOF'
# TYPE libra_agent_lent_cpu_total counter
libra_agent_lent_cpu_total{otel_scope_name="a"} 1.5
# TYPE libra_agent_borrowed_cpu_total counter
libra_agent_borrowed_cpu_total{otel_scope_name="a"} 1.25
# TYPE libra_agent_borrowed_memory_total counter
libra_agent_borrowed_memory_total 3e+06
# TYPE libra_agent_available_memory_total counter
libra_agent_available_memory_total 5e+05
# TYPE libra_agent_safeguards_total counter
libra_agent_safeguards_total{function="a/b",resource="cpu"} 2
libra_agent_safeguards_total{function="a/c",resource="memory"} 1
# TYPE libra_agent_weights_wake_seconds histogram
libra_agent_weights_wake_seconds_bucket{le="0.0025"} 3
libra_agent_weights_wake_seconds_bucket{le="0.005"} 5
libra_agent_weights_wake_seconds_bucket{le="0.01"} 6
libra_agent_weights_wake_seconds_bucket{le="+Inf"} 7
libra_agent_weights_wake_seconds_sum 0.1
libra_agent_weights_wake_seconds_count 7
# TYPE libra_agent_open gauge
libra_agent_open 1
EOF
;;
*"-n libra-node "*) echo '{"items":[{"metadata":{"name":"libra-agent-1"}},{"metadata":{"name":"libra-agent-2"}}]}';;
esac`)
	d := demo{kubectl: k, out: io.Discard}
	got, err := d.loans(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	// Of two nodes.
	want := evaluation.Loans{
		Harvested: evaluation.Volume{CoreSeconds: 3}, Accelerated: evaluation.Volume{CoreSeconds: 2.5, MBSeconds: 6},
		Idle: evaluation.Volume{MBSeconds: 1}, Safeguarded: 6,
	}
	if got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	weighed, err := d.weighed(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if want := (evaluation.Weighed{Requests: 14, Within5MS: 10, Within10MS: 12}); weighed != want {
		t.Errorf("got %+v, want %+v", weighed, want)
	}
}
