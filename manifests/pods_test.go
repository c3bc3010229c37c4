package manifests

import (
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	sigsyaml "sigs.k8s.io/yaml"

	"libra.dev/libra/pkg/settings"
)

// pod is a pod that an object of the manifests makes.
type pod struct {
	of, name, namespace string
	corev1.PodTemplateSpec
}

// pods returns the pods of all objects that make any.
func pods(t *testing.T) []pod {
	t.Helper()
	var pods []pod
	for _, o := range all(t) {
		if slices.Contains(clusterScoped, o.Kind) || slices.Contains(podless, o.Kind) {
			continue
		}
		template, err := podOf(o)
		if err != nil {
			t.Fatal(err)
		}
		pods = append(pods, pod{o.Kind, o.Metadata.Name, o.Metadata.Namespace, template})
	}
	if len(pods) < 4 {
		t.Fatalf("only %d objects with pods, want Redis, the resizer, the predictor and the agent at least", len(pods))
	}
	return pods
}

// decode decodes all objects of one kind.
func decode[T any](t *testing.T, kind string) []T {
	t.Helper()
	return decodeOf[T](t, all(t), kind)
}

func decodeOf[T any](t *testing.T, objects []object, kind string) []T {
	t.Helper()
	var found []T
	for _, o := range objects {
		if o.Kind != kind {
			continue
		}
		var one T
		if err := sigsyaml.UnmarshalStrict(o.whole, &one); err != nil {
			t.Fatalf("%s %s: %v", kind, o.Metadata.Name, err)
		}
		found = append(found, one)
	}
	return found
}

// A node which is down does not keep the agents of all others from being replaced.
func TestAgentsAreReplacedOnSeveralNodesAtATime(t *testing.T) {
	for _, agents := range decode[appsv1.DaemonSet](t, "DaemonSet") {
		update := agents.Spec.UpdateStrategy.RollingUpdate
		if update == nil {
			t.Errorf("%s is updated on one node at a time", agents.Name)
			continue
		}
		if of100, err := intstr.GetScaledValueFromIntOrPercent(update.MaxUnavailable, 100, true); err != nil || of100 < 2 {
			t.Errorf("%s is updated on %d of 100 nodes at a time (%v), want several", agents.Name, of100, err)
		}
	}
}

// A cluster may be configured to admit critical pods only where there is a quota on their class. A
// quota on anything else would require the pods to specify more than they do.
func TestCriticalPodsHaveAQuotaThatRefusesNone(t *testing.T) {
	quotas := map[string]corev1.ResourceQuota{}
	for _, o := range all(t) {
		if o.Kind != "ResourceQuota" {
			continue
		}
		if _, another := quotas[o.Metadata.Namespace]; another {
			t.Errorf("%s has several quotas", o.Metadata.Namespace)
		}
		var quota corev1.ResourceQuota
		if err := sigsyaml.UnmarshalStrict(o.whole, &quota); err != nil {
			t.Fatal(err)
		}
		quotas[o.Metadata.Namespace] = quota
	}
	critical := map[string]string{}
	for _, p := range pods(t) {
		class := p.Spec.PriorityClassName
		if class == "" {
			continue
		}
		critical[p.name] = class
		quota, ok := quotas[p.namespace]
		if !ok || quota.Spec.ScopeSelector == nil {
			t.Errorf("%s has no quota on a priority class, want one on %s for %s", p.namespace, class, p.name)
			continue
		}
		want := []corev1.ScopedResourceSelectorRequirement{{
			ScopeName: corev1.ResourceQuotaScopePriorityClass, Operator: corev1.ScopeSelectorOpIn, Values: []string{class}}}
		if got := quota.Spec.ScopeSelector.MatchExpressions; len(got) != 1 || got[0].ScopeName != want[0].ScopeName ||
			got[0].Operator != want[0].Operator || !slices.Equal(got[0].Values, want[0].Values) {
			t.Errorf("the quota of %s is on %v, want %v", p.namespace, got, want)
		}
		// Kubernetes has been tested with 5,000 nodes, each of which has an agent.
		if most := quota.Spec.Hard.Pods(); len(quota.Spec.Hard) != 1 || most.Value() < 100_000 {
			t.Errorf("the quota of %s allows %v, want very many pods, and nothing else", p.namespace, quota.Spec.Hard)
		}
	}
	want := map[string]string{"libra-agent": "system-node-critical", "libra-resizer": "system-cluster-critical", "libra-scheduler": "system-cluster-critical"}
	if !maps.Equal(critical, want) {
		t.Errorf("the critical pods are %v, want %v", critical, want)
	}
}

func TestAnotherIsThereWhenTheLeaderIsNot(t *testing.T) {
	for _, name := range []string{"libra-resizer", "libra-scheduler"} {
		t.Run(name, func(t *testing.T) { checkPair(t, name) })
	}
}

// checkPair checks a Deployment of two pods, one of which leads.
func checkPair(t *testing.T, name string) {
	t.Helper()
	deployments := slices.DeleteFunc(decode[appsv1.Deployment](t, "Deployment"), func(d appsv1.Deployment) bool { return d.Name != name })
	if len(deployments) != 1 {
		t.Fatalf("%d Deployments", len(deployments))
	}
	pair := deployments[0]
	if pair.Spec.Replicas == nil || *pair.Spec.Replicas < 2 {
		t.Fatal("it has one replica")
	}
	template := pair.Spec.Template
	selects := func(what string, selector *metav1.LabelSelector) {
		if s, err := metav1.LabelSelectorAsSelector(selector); err != nil || !s.Matches(labels.Set(template.Labels)) {
			t.Errorf("%s is on %v, the pods have %v (%v)", what, s, template.Labels, err)
		}
	}
	if len(template.Spec.TopologySpreadConstraints) == 0 {
		t.Error("both may be on one node where there are others")
	}
	for _, c := range template.Spec.TopologySpreadConstraints {
		// On a cluster of one node, both must be scheduled.
		if c.TopologyKey != corev1.LabelHostname || c.WhenUnsatisfiable != corev1.ScheduleAnyway {
			t.Errorf("they are spread by %s, and otherwise %s", c.TopologyKey, c.WhenUnsatisfiable)
		}
		selects("the spread", c.LabelSelector)
	}
	budgets := slices.DeleteFunc(decode[policyv1.PodDisruptionBudget](t, "PodDisruptionBudget"), func(b policyv1.PodDisruptionBudget) bool { return b.Name != name })
	if len(budgets) != 1 {
		t.Fatalf("%d budgets", len(budgets))
	}
	selects("the budget", budgets[0].Spec.Selector)
	// A budget with a minimum of pods would block the drain of a node once only that many are
	// left.
	if most := budgets[0].Spec.MaxUnavailable; most == nil || most.IntValue() != 1 || budgets[0].Spec.MinAvailable != nil {
		t.Errorf("it allows %v to be missing", most)
	}
}

func TestPodsRunWhereTheirProgramsDo(t *testing.T) {
	node := func(system, architecture string) labels.Set {
		return labels.Set{corev1.LabelOSStable: system, corev1.LabelArchStable: architecture}
	}
	for _, p := range pods(t) {
		if runsOn(t, p.Spec, node("windows", "amd64")) {
			t.Errorf("%s may be put on a node with Windows", p.name)
		}
		if !runsOn(t, p.Spec, node("linux", "amd64")) || !runsOn(t, p.Spec, node("linux", "arm64")) {
			t.Errorf("%s is not put on nodes with Linux", p.name)
		}
		// A DaemonSet puts a pod on every node that takes it.
		if p.of == "DaemonSet" && runsOn(t, p.Spec, node("linux", "s390x")) {
			t.Errorf("%s is put on nodes of any architecture", p.name)
		}
	}
}

// runsOn reports whether the scheduler may put a pod on a node with these labels.
func runsOn(t *testing.T, spec corev1.PodSpec, node labels.Set) bool {
	t.Helper()
	if !labels.SelectorFromSet(spec.NodeSelector).Matches(node) {
		return false
	}
	if spec.Affinity == nil || spec.Affinity.NodeAffinity == nil {
		return true
	}
	terms := spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
	return slices.ContainsFunc(terms, func(term corev1.NodeSelectorTerm) bool {
		return !slices.ContainsFunc(term.MatchExpressions, func(r corev1.NodeSelectorRequirement) bool {
			if r.Operator != corev1.NodeSelectorOpIn {
				t.Fatalf("this test does not know the operator %s", r.Operator)
			}
			return !slices.Contains(r.Values, node[r.Key])
		})
	})
}

// Where SELinux is enforced, no other type may write the host's cgroups.
func TestTheAgentHasAnSELinuxType(t *testing.T) {
	for _, p := range pods(t) {
		if p.namespace != settings.AgentNamespace {
			continue
		}
		for _, c := range p.Spec.Containers {
			if o := c.SecurityContext.SELinuxOptions; o == nil || o.Type != "spc_t" {
				t.Errorf("%s of %s has the options %v, want the type spc_t", c.Name, p.name, o)
			}
		}
	}
}

// With a tag that moves, the restart of a pod could upgrade it. Official images are rebuilt under
// the same tag.
var exactly = regexp.MustCompile(`:\d+\.\d+\.\d+-[a-z]+@sha256:[0-9a-f]{64}$`)

func TestImagesThatAreNotOursAreOneBuild(t *testing.T) {
	for _, p := range pods(t) {
		for _, c := range p.Spec.Containers {
			// Our images only have a name: the installer chooses the build.
			if !strings.HasPrefix(c.Image, "libra-") && c.Image != "kubectl-libra" && !exactly.MatchString(c.Image) {
				t.Errorf("the image %s of %s is of any build, want one such as redis:7.4.11-bookworm@sha256:…", c.Image, p.name)
			}
		}
	}
}
