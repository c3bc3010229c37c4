package check

import (
	"context"
	"fmt"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/util/version"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"libra.dev/libra/pkg/kubectl/swap"
)

// The versions that Libra was built for.
var (
	leastKubernetes = version.MustParseGeneric("1.35.0")
	ofKServe        = version.MustParseGeneric("0.20.0")
)

const (
	// moduleAhead is how far the minor version of Knative's Go module is ahead: it is 0.50 for Knative 1.23.
	moduleAhead = 27

	kserveNamespace  = "kserve"
	kserveController = "kserve-controller-manager"
)

// servingDeployments are the Deployments of Knative Serving.
var servingDeployments = []string{swap.Name, "autoscaler", "controller", "webhook"}

var versionChecks = []Check{
	{
		ID: "kubernetes-version", run: kubernetesVersion,
		Looks: "the API server's version: 1.35 is the first with stable in-place resizes",
	},
	{
		ID: "knative-version", run: knativeVersion,
		Looks: "Knative Serving: is it there, and are all of its parts 1.23? Libra's activator is built from that version",
	},
	{
		ID: "kserve-version", run: kserveVersion,
		Looks: "KServe: is it there, and is it 0.20? Without it the predictor is a plain Deployment",
	},
}

func kubernetesVersion(_ context.Context, c *Cluster) ([]Finding, error) {
	info, err := c.version()
	if err != nil {
		return nil, err
	}
	v, err := version.ParseGeneric(info.GitVersion)
	if err != nil {
		return nil, fmt.Errorf("the API server's version is %q, want one such as v%s: %w", info.GitVersion, leastKubernetes, err)
	}
	if v.LessThan(leastKubernetes) {
		return []Finding{failure(wholeCluster, upgradeOf(info.GitVersion), "the API server is %s, want %s or newer, which resizes pods in place", info.GitVersion, short(leastKubernetes))}, nil
	}
	return []Finding{fine(wholeCluster, "the API server is %s", info.GitVersion)}, nil
}

// upgradeOf returns how to upgrade a cluster of the version, as far as the version tells whose cluster it is.
func upgradeOf(gitVersion string) string {
	to := short(leastKubernetes)
	switch {
	case strings.Contains(gitVersion, "-gke."):
		return "gcloud container clusters upgrade <cluster> --master --cluster-version " + to
	case strings.Contains(gitVersion, "-eks-"):
		return "aws eks update-cluster-version --name <cluster> --kubernetes-version " + to
	default:
		return "kubeadm upgrade apply v" + leastKubernetes.String()
	}
}

func short(v *version.Version) string { return fmt.Sprintf("%d.%d", v.Major(), v.Minor()) }

func knativeVersion(ctx context.Context, c *Cluster) ([]Finding, error) {
	var list appsv1.DeploymentList
	if err := c.client.List(ctx, &list, client.InNamespace(swap.Namespace)); err != nil {
		return nil, err
	}
	deployments := map[string]*appsv1.Deployment{}
	for i := range list.Items {
		deployments[list.Items[i].Name] = &list.Items[i]
	}
	var found []Finding
	for _, name := range servingDeployments {
		about := Object{"deployment", swap.Namespace, name}
		d := deployments[name]
		if d == nil {
			found = append(found, failure(about, applyKnative, "it is not there: Libra needs all of Knative Serving"))
			continue
		}
		v, is := versionOf(d)
		if v == nil {
			found = append(found, warning(about, fmt.Sprintf("kubectl -n %s get deployment %s --show-labels", swap.Namespace, name),
				"not known: its version is %q, want a label %s such as %s.0", is, swap.LabelOfVersion, swap.Supported))
			continue
		}
		switch minor := v.WithPatch(0); {
		case minor.LessThan(swap.Supported):
			found = append(found, failure(about, upgradeKnative(d, v), "it is Knative %s, want %s", short(v), swap.Supported))
		case minor.GreaterThan(swap.Supported):
			found = append(found, failure(about, keepStock, "it is Knative %s, and this Libra is for %s", short(v), swap.Supported))
		default:
			found = append(found, fine(about, "it is Knative %s", v))
		}
	}
	return found, nil
}

const (
	applyKnative = "kubectl apply -f https://github.com/knative/serving/releases/download/knative-v1.23.0/serving-crds.yaml" +
		" && kubectl apply -f https://github.com/knative/serving/releases/download/knative-v1.23.0/serving-core.yaml"
	keepStock = "# Keep the stock activator until there is a Libra for this Knative. If Libra's activator runs, put the stock one back:\n" + restoreStock
)

// upgradeKnative says how to upgrade a Deployment of an older Knative to the supported one. It is a command only if that is all
// there is to do: Knative is upgraded by one minor version at a time, and a keeper would put its own manifests back.
func upgradeKnative(d *appsv1.Deployment, v *version.Version) string {
	how := "Upgrade Knative"
	if keeper := swap.KeeperOf(d); keeper != nil {
		how = "Have " + keeper.Name + " upgrade Knative"
	} else if v.Major() == swap.Supported.Major() && v.Minor()+1 == swap.Supported.Minor() {
		return applyKnative
	}
	return fmt.Sprintf("# %s to %s, one minor version at a time: https://knative.dev/docs/install/upgrade/", how, swap.Supported)
}

// versionOf returns the version of a Deployment of Knative or KServe, by its label or its image's tag, and the text of it. The
// version is nil if it cannot be read.
func versionOf(d *appsv1.Deployment) (*version.Version, string) {
	texts := []string{d.Labels[swap.LabelOfVersion]}
	images := []string{d.Annotations[swap.StockImageAnnotation]} // Libra's image has a tag of Libra's
	for _, c := range d.Spec.Template.Spec.Containers {
		images = append(images, c.Image)
	}
	for _, image := range images {
		image, _, _ := strings.Cut(image, "@")
		if colon := strings.LastIndex(image, ":"); colon > strings.LastIndex(image, "/") {
			texts = append(texts, image[colon+1:])
		}
	}
	for _, text := range texts {
		v, err := version.ParseGeneric(text)
		if err != nil {
			continue
		}
		if d.Namespace == swap.Namespace && v.Major() == 0 && v.Minor() >= moduleAhead {
			v = version.MajorMinor(1, v.Minor()-moduleAhead).WithPatch(v.Patch())
		}
		return v, text
	}
	return nil, d.Labels[swap.LabelOfVersion]
}

func kserveVersion(ctx context.Context, c *Cluster) ([]Finding, error) {
	about := Object{"deployment", kserveNamespace, kserveController}
	known, err := c.has(kindInferenceService)
	if err != nil {
		return nil, err
	}
	if !known {
		if c.Installed {
			return []Finding{fine(wholeCluster, "there is no KServe; the predictor is a plain Deployment")}, nil
		}
		return []Finding{warning(wholeCluster, "kubectl apply --server-side -f libra-predictor-plain.yaml  # in place of libra-predictor-kserve.yaml",
			"there is no KServe: install the plain predictor")}, nil
	}
	d := &appsv1.Deployment{}
	if found, err := c.get(ctx, kserveNamespace, kserveController, d); err != nil {
		return nil, err
	} else if !found {
		return []Finding{warning(about, "kubectl get deployments --all-namespaces --selector control-plane=kserve-controller-manager",
			"not known: the cluster has InferenceServices, but this Deployment is not there")}, nil
	}
	v, is := versionOf(d)
	switch {
	case v == nil:
		return []Finding{warning(about, fmt.Sprintf("kubectl -n %s get deployment %s --show-labels", kserveNamespace, kserveController),
			"not known: its version is %q, want a label %s or a tag such as v%s", is, swap.LabelOfVersion, ofKServe)}, nil
	case v.WithPatch(0).EqualTo(ofKServe):
		return []Finding{fine(about, "it is KServe %s", v)}, nil
	default:
		return []Finding{warning(about, "kubectl apply --server-side -f libra-predictor-plain.yaml  # in place of libra-predictor-kserve.yaml",
			"it is KServe %s, and Libra is tested with %s; the plain predictor needs no KServe", v, short(ofKServe))}, nil
	}
}
