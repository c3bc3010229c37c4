package manifests

import (
	"slices"
	"strings"
	"testing"
)

func harvestPolicyWith(t *testing.T, name, spec string) map[string]any {
	policy := policyWith(t, name, spec)
	policy["kind"] = "HarvestPolicy"
	return policy
}

func TestHarvestPoliciesAreRefused(t *testing.T) {
	d := readDefinition(t, "harvestpolicies")
	for _, tc := range []struct {
		name, policy, spec string
		want               []string // in one error
	}{
		{"another name", "mine", "{mode: full}", []string{"metadata.name must be default"}},
		{"no spec", "default", "", []string{"spec: Required value"}},
		{"mode", "default", "{mode: fully}", []string{"spec.mode", `"observe"`, `"lend"`, `"full"`}},
		{"max mode", "default", "{maxMode: none}", []string{"spec.maxMode", `"observe"`}},
		{"source", "default", "{source: pool}", []string{"spec.source", `"node"`, `"owners"`}},
		{"less than no CPU", "default", "{maxCPU: -1}", []string{"spec.maxCPU", "such as 1500m or 2"}},
		{"more CPU than a node has", "default", "{maxCPU: 9E}", []string{"spec.maxCPU", "such as 1500m or 2"}},
		{"no quantity", "default", "{minCPU: half}", []string{"spec.minCPU"}},
		{"less than no CPU kept", "default", "{minCPU: '-100m'}", []string{"spec.minCPU", "such as 200m or 1.5"}},
		{"a part of a byte", "default", "{minMemory: 128m}", []string{"spec.minMemory", "such as 128Mi"}},
		{"more memory than a node has", "default", "{minMemory: 2Pi}", []string{"spec.minMemory", "such as 128Mi"}},
		{"no duration", "default", "{minLoan: soon}", []string{"spec.minLoan", "duration"}},
		{"less than no reserve", "default", "{cpuReserve: -1}", []string{"spec.cpuReserve", "such as 200m or 1.5"}},
		{"a reserve of more than a node has", "default", "{cpuReserve: '1048577'}", []string{"spec.cpuReserve", "such as 200m or 1.5"}},
		{"no reserve", "default", "{cpuReserve: much}", []string{"spec.cpuReserve"}},
		{"a duration that Go does not read", "default", "{minLoan: 5 minutes}", []string{"spec.minLoan"}},
		{"a safeguard that takes back what is not needed", "default", "{safeguardPercent: 49}", []string{"spec.safeguardPercent", "greater than or equal to 50"}},
		{"a safeguard that comes too late", "default", "{safeguardPercent: 96}", []string{"spec.safeguardPercent", "less than or equal to 95"}},
		{"protect", "default", "{protect: all}", []string{"spec.protect", `"half"`, `"strict"`}},
		{"no name of a domain", "default", "{domain: team/a}", []string{"spec.domain"}},
		{"too long a name of a domain", "default", "{domain: " + strings.Repeat("a", 64) + "}", []string{"spec.domain"}},
		{"too long a loan", "default", "{minLoan: 2h}", []string{"spec.minLoan", "from 0s to 1h"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := d.refused(harvestPolicyWith(t, tc.policy, tc.spec))
			if !slices.ContainsFunc(got, func(err string) bool {
				return !slices.ContainsFunc(tc.want, func(w string) bool { return !strings.Contains(err, w) })
			}) {
				t.Errorf("got %q, want an error with %q", got, tc.want)
			}
		})
	}
}

func TestHarvestPoliciesAreAccepted(t *testing.T) {
	d := readDefinition(t, "harvestpolicies")
	for _, spec := range []string{
		"{}",
		"{mode: full, maxMode: full, source: owners, maxCPU: 1500m, minCPU: 200m, minMemory: 128Mi, minLoan: 50ms, safeguardPercent: 90, protect: strict, domain: team-a, cpuReserve: 1500m}",
		"{maxCPU: 2, minCPU: 0, minMemory: 134217728, minLoan: 0s}",
		"{maxCPU: '1.5', minLoan: 1h}",
	} {
		if got := d.refused(harvestPolicyWith(t, "default", spec)); len(got) > 0 {
			t.Errorf("%s is refused: %q", spec, got)
		}
	}
}
