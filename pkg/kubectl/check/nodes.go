package check

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/version"

	"libra.dev/libra/pkg/kubectl/swap"
)

var nodeChecks = []Check{
	{
		ID: "node-platform", run: nodePlatform,
		Looks: "nodes' operating systems and architectures: the agent runs on Linux, on amd64 and arm64",
	},
	{
		ID: "node-kind", run: nodeKind,
		Looks: "nodes on which no agent can run: GKE Autopilot, EKS Fargate, virtual kubelets; and those of OpenShift, which refuses Libra's pods until their accounts may have them",
		Fine:  "every node is of a kind that can run the agent",
	},
	{
		ID: "kubelet-version", run: kubeletVersion,
		Looks: "the kubelets' versions, which resize pods in place from 1.35 on",
	},
	{
		ID: "node-cgroups", run: nodeCgroups,
		Looks: "nodes' cgroup versions and drivers. It asks the kubelets through the API server, which needs the right to get `nodes/proxy`",
	},
	{
		ID: "node-cpu-manager", run: nodeCPUManager,
		Looks: "nodes with the static CPU manager, whose exclusive CPUs no other pod can use. It asks the kubelets, too",
	},
}

const (
	addNodes = "# Add nodes that run Linux on amd64 or arm64."
	// towardsAgents needs a feature of Knative's that is off by default.
	towardsAgents = `kubectl -n ` + swap.Namespace + ` patch configmap ` + configFeatures + ` --type merge -p '{"data":{"kubernetes.podspec-affinity":"enabled"}}'
# Then add this to the template of functions that are to take part:
spec:
  affinity:
    nodeAffinity:
      requiredDuringSchedulingIgnoredDuringExecution:
        nodeSelectorTerms:
        - matchExpressions:
          - {key: kubernetes.io/os, operator: In, values: [linux]}
          - {key: kubernetes.io/arch, operator: In, values: [amd64, arm64]}
          - {key: type, operator: NotIn, values: [virtual-kubelet]}`
)

// allowPods lets Libra's accounts have pods with folders of the host, and with user IDs that OpenShift did not choose.
const allowPods = `oc adm policy add-scc-to-user privileged --serviceaccount libra-agent --namespace libra-node
oc adm policy add-scc-to-group nonroot-v2 system:serviceaccounts:libra-system system:serviceaccounts:libra-uninstall`

// groups are nodes by what is to be said about them.
type groups map[string][]string

func (g groups) add(what, node string) { g[what] = append(g[what], node) }

// each calls f for each group, in order, with its nodes and an object that names them.
func (g groups) each(f func(what string, nodes []string, about Object)) {
	var all []string
	for what := range g {
		all = append(all, what)
	}
	slices.Sort(all)
	for _, what := range all {
		nodes := g[what]
		slices.Sort(nodes)
		f(what, nodes, nodesObject(nodes))
	}
}

// nodesObject names a few of the nodes.
func nodesObject(nodes []string) Object {
	const shown = 3
	if len(nodes) == 1 {
		return Object{Kind: "node", Name: nodes[0]}
	}
	name := strings.Join(nodes[:min(shown, len(nodes))], ",")
	if more := len(nodes) - shown; more > 0 {
		name += fmt.Sprintf(" and %d more", more)
	}
	return Object{Kind: "nodes", Name: name}
}

// takesAgent reports whether the agent runs on a node.
func takesAgent(n *corev1.Node) bool {
	_, cannot := takesNoAgent(n)
	return !cannot && platformOf(n) == ""
}

// platformOf returns the platform of a node that the agent does not run on, and "" for any other node.
func platformOf(n *corev1.Node) string {
	os, arch := n.Labels[corev1.LabelOSStable], n.Labels[corev1.LabelArchStable]
	if os == "linux" && (arch == "amd64" || arch == "arm64") {
		return ""
	}
	return os + "/" + arch
}

func nodePlatform(ctx context.Context, c *Cluster) ([]Finding, error) {
	nodes, err := c.allNodes(ctx)
	if err != nil {
		return nil, err
	}
	others, fit := groups{}, 0
	for i := range nodes {
		if platform := platformOf(&nodes[i]); platform == "" {
			fit++
		} else {
			others.add(platform, nodes[i].Name)
		}
	}
	var found []Finding
	others.each(func(platform string, nodes []string, about Object) {
		of, remedy := warning, towardsAgents
		if fit == 0 {
			of, remedy = failure, addNodes
		}
		found = append(found, of(about, remedy, "the platform is %s, on which no agent runs: functions there are only observed", platform))
	})
	if fit > 0 {
		found = append(found, fine(Object{Kind: "nodes"}, "%d of %d nodes run Linux on amd64 or arm64", fit, len(nodes)))
	}
	return found, nil
}

// takesNoAgent reports whether a node takes no pods of DaemonSets, or none with folders of
// the host, and whose node it is.
func takesNoAgent(n *corev1.Node) (whose string, is bool) {
	switch {
	case n.Labels["eks.amazonaws.com/compute-type"] == "fargate":
		return "EKS Fargate", true
	case strings.HasPrefix(n.Name, "gk3-"):
		return "GKE Autopilot", true
	case n.Labels["type"] == "virtual-kubelet":
		return "a virtual kubelet", true
	}
	return "", false
}

// openShift is a label that OpenShift puts on all of its nodes.
const openShift = "node.openshift.io/os_id"

func nodeKind(ctx context.Context, c *Cluster) ([]Finding, error) {
	nodes, err := c.allNodes(ctx)
	if err != nil {
		return nil, err
	}
	unfit := groups{}
	var constrained []string
	for i := range nodes {
		if whose, is := takesNoAgent(&nodes[i]); is {
			unfit.add(whose, nodes[i].Name)
		} else if _, is := nodes[i].Labels[openShift]; is {
			constrained = append(constrained, nodes[i].Name)
		}
	}
	remedies := map[string]string{
		"EKS Fargate":       "eksctl create nodegroup --cluster <cluster>",
		"GKE Autopilot":     "gcloud container clusters create <cluster> --cluster-version " + short(leastKubernetes) + "  # a Standard cluster",
		"a virtual kubelet": towardsAgents,
	}
	var found []Finding
	unfit.each(func(whose string, names []string, about Object) {
		of := warning
		if len(names) == len(nodes) {
			of = failure
		}
		found = append(found, of(about, remedies[whose], "%s cannot run the agent: it is not supported, and functions there are only observed", whose))
	})
	if len(constrained) > 0 {
		slices.Sort(constrained)
		found = append(found, warning(nodesObject(constrained), allowPods, "OpenShift refuses Libra's pods until their accounts may have them; Libra was not tried there"))
	}
	return found, nil
}

func kubeletVersion(ctx context.Context, c *Cluster) ([]Finding, error) {
	nodes, err := c.allNodes(ctx)
	if err != nil {
		return nil, err
	}
	old, unknown, fit := groups{}, groups{}, 0
	for i := range nodes {
		is := nodes[i].Status.NodeInfo.KubeletVersion
		switch v, err := version.ParseGeneric(is); {
		case err != nil:
			unknown.add(is, nodes[i].Name)
		case v.LessThan(leastKubernetes):
			old.add(is, nodes[i].Name)
		default:
			fit++
		}
	}
	var found []Finding
	old.each(func(is string, nodes []string, about Object) {
		remedy := fmt.Sprintf("kubectl drain %s --ignore-daemonsets --delete-emptydir-data  # then upgrade its kubelet to %s", nodes[0], short(leastKubernetes))
		switch {
		case strings.Contains(is, "-gke."):
			remedy = "gcloud container clusters upgrade <cluster> --node-pool <pool> --cluster-version " + short(leastKubernetes)
		case strings.Contains(is, "-eks-"):
			remedy = "eksctl upgrade nodegroup --cluster <cluster> --name <nodegroup> --kubernetes-version " + short(leastKubernetes)
		}
		found = append(found, failure(about, remedy, "the kubelet is %s, want %s or newer, which resizes pods in place", is, short(leastKubernetes)))
	})
	unknown.each(func(is string, nodes []string, about Object) {
		found = append(found, warning(about, "kubectl describe node "+nodes[0], "not known: the kubelet's version is %q", is))
	})
	if fit > 0 {
		found = append(found, fine(Object{Kind: "nodes"}, "the kubelets of %d of %d nodes are %s or newer", fit, len(nodes), short(leastKubernetes)))
	}
	return found, nil
}
