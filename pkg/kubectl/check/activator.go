package check

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"libra.dev/libra/pkg/settings"
)

const (
	activatorName = "activator"
	// stockImageAnnotation keeps, on the activator's Deployment, the image that Libra's took the place of.
	stockImageAnnotation = "libra.dev/stock-image"
	libraActivator       = "libra-activator"

	stockRepository = "gcr.io/knative-releases/knative.dev/serving/cmd/activator"
	ourImage        = "<repository>/libra-activator@sha256:<digest>"

	// swapIn runs the Job again, which kubectl apply alone does not.
	swapIn       = "kubectl -n libra-system delete job libra-activator-install --ignore-not-found && kubectl apply --server-side -f libra-activator.yaml"
	restoreStock = `kubectl -n knative-serving set image deployment/activator activator="$(kubectl -n knative-serving get deployment activator -o jsonpath='{.metadata.annotations.libra\.dev/stock-image}')"`
)

var activatorObject = Object{"deployment", servingNamespace, activatorName}

var activatorChecks = []Check{
	{
		ID: "activator-owner", run: activatorOwner,
		Looks: "who looks after the activator's Deployment: the Knative operator, Argo CD, Flux and Helm put the stock image back unless they are told of Libra's",
		Fine:  "nothing puts the activator's image back",
	},
	{
		ID: "activator-image", run: activatorImage,
		Looks: "the activator's image: stock, Libra's or neither; is the stock one written down for its return; were Knative's manifests applied over Libra's?",
	},
	{
		ID: "activator-ready", run: activatorReady,
		Looks: "are there as many ready activators as there should be?",
	},
	{
		ID: "activator-rights", run: activatorRights, installed: true,
		Looks: "the ClusterRole and the binding that Libra's activator needs beyond Knative's",
		Fine:  "Libra's activator may do what it needs",
	},
}

// imageOf is the activator's, and whose it is.
func imageOf(d *appsv1.Deployment) (image string, libras, stock bool) {
	for _, c := range d.Spec.Template.Spec.Containers {
		if c.Name == activatorName {
			image = c.Image
		}
	}
	name, _, _ := strings.Cut(image, "@")
	name, _, _ = strings.Cut(name[strings.LastIndex(name, "/")+1:], ":")
	libras = strings.Contains(name, libraActivator)
	return image, libras, !libras && strings.Contains(name, activatorName)
}

func activatorOwner(ctx context.Context, c *Cluster) ([]Finding, error) {
	d, err := c.theActivator(ctx)
	if err != nil || d == nil {
		return nil, err
	}
	operators, err := c.objects(ctx, kindKnativeServing, servingNamespace)
	if err != nil {
		return nil, err
	}
	if len(operators) > 0 {
		if f, bad := operated(d, &operators[0]); bad {
			return []Finding{f}, nil
		}
		return []Finding{fine(activatorObject, "the Knative operator gives it Libra's image")}, nil
	}
	who, remedy := keeper(d)
	if who == "" {
		return nil, nil
	}
	return []Finding{warning(activatorObject, remedy, "%s looks after it, and puts the stock image back unless it is told of Libra's", who)}, nil
}

// operated is what is wrong with an activator that the operator looks after.
func operated(d *appsv1.Deployment, serving *unstructured.Unstructured) (Finding, bool) {
	overrides, _, _ := unstructured.NestedStringMap(serving.Object, "spec", "registry", "override")
	for _, key := range []string{activatorName, activatorName + "/" + activatorName} {
		if strings.Contains(overrides[key], libraActivator) {
			return Finding{}, false
		}
	}
	image, libras, _ := imageOf(d)
	if !libras {
		image = ourImage
	}
	remedy := fmt.Sprintf(`kubectl -n %s patch knativeserving %s --type merge -p '{"spec":{"registry":{"override":{"activator":%q}}}}'`, serving.GetNamespace(), serving.GetName(), image)
	of := warning
	if libras {
		of = failure
	}
	return of(activatorObject, remedy, "the Knative operator looks after it (KnativeServing %s), and puts the stock image back: spec.registry.override does not name Libra's", serving.GetName()), true
}

// keeper is who else looks after the activator, and how to tell them of Libra's image.
func keeper(d *appsv1.Deployment) (who, remedy string) {
	managed := func(by string) bool {
		return slices.ContainsFunc(d.ManagedFields, func(e metav1.ManagedFieldsEntry) bool { return e.Manager == by })
	}
	const flux, fluxHelm = "kustomize.toolkit.fluxcd.io/", "helm.toolkit.fluxcd.io/"
	switch {
	case d.Annotations["argocd.argoproj.io/tracking-id"] != "" || d.Labels["argocd.argoproj.io/instance"] != "" || managed("argocd-controller"):
		return "Argo CD", `# in the Application:
spec:
  ignoreDifferences:
  - group: apps
    kind: Deployment
    namespace: knative-serving
    name: activator
    jqPathExpressions: ['.spec.template.spec.containers[] | select(.name == "activator") | .image']
  syncPolicy:
    syncOptions: [RespectIgnoreDifferences=true]`
	case d.Labels[flux+"name"] != "" || managed("kustomize-controller"):
		return "Flux", fmt.Sprintf(`kubectl -n %s patch kustomizations.kustomize.toolkit.fluxcd.io %s --type merge -p '{"spec":{"images":[{"name":%q,"newName":"<repository>/libra-activator","digest":"sha256:<digest>"}]}}'`,
			cmp.Or(d.Labels[flux+"namespace"], "flux-system"), cmp.Or(d.Labels[flux+"name"], "<name>"), stockRepository)
	case d.Labels[fluxHelm+"name"] != "" || managed("helm-controller"):
		return "Flux", fmt.Sprintf(`kubectl -n %s patch helmreleases.helm.toolkit.fluxcd.io %s --type merge -p '{"spec":{"postRenderers":[{"kustomize":{"images":[{"name":%q,"newName":"<repository>/libra-activator","digest":"sha256:<digest>"}]}}]}}'`,
			cmp.Or(d.Labels[fluxHelm+"namespace"], "flux-system"), cmp.Or(d.Labels[fluxHelm+"name"], "<name>"), stockRepository)
	case d.Annotations["meta.helm.sh/release-name"] != "":
		return "Helm", swapIn + "  # after each helm upgrade of " + d.Annotations["meta.helm.sh/release-name"]
	}
	return "", ""
}

func activatorImage(ctx context.Context, c *Cluster) ([]Finding, error) {
	d, err := c.theActivator(ctx)
	if err != nil || d == nil {
		return nil, err
	}
	image, libras, stock := imageOf(d)
	was, written := d.Annotations[stockImageAnnotation]
	switch {
	case libras && !written:
		remedy := fmt.Sprintf("kubectl -n %s annotate deployment activator %s=%s:v%s", servingNamespace, stockImageAnnotation, stockRepository, ofKnative)
		return []Finding{failure(activatorObject, remedy, "it has Libra's image and no annotation %s: the stock one would not be found again", stockImageAnnotation)}, nil
	case libras:
		return []Finding{fine(activatorObject, "it has Libra's image, and %s is written down", was)}, nil
	case !stock:
		remedy := fmt.Sprintf("kubectl -n %s set image deployment/activator activator=%s:v%s  # if that was not meant", servingNamespace, stockRepository, ofKnative)
		return []Finding{warning(activatorObject, remedy, "its image %s is neither Knative's nor Libra's: what else it does is lost with Libra's", image)}, nil
	case written:
		return []Finding{failure(activatorObject, swapIn, "its image is stock, and Libra's was there: Knative's own manifests were applied over it, so that Libra sees no request")}, nil
	case c.Installed:
		return []Finding{warning(activatorObject, swapIn, "its image is stock, so that Libra sees no request")}, nil
	}
	return []Finding{fine(activatorObject, "its image is stock: %s", image)}, nil
}

func activatorReady(ctx context.Context, c *Cluster) ([]Finding, error) {
	d, err := c.theActivator(ctx)
	if err != nil || d == nil {
		return nil, err
	}
	return available(activatorObject, d), nil
}

func activatorRights(ctx context.Context, c *Cluster) ([]Finding, error) {
	d, err := c.theActivator(ctx)
	if err != nil || d == nil {
		return nil, err
	}
	if _, libras, _ := imageOf(d); !libras {
		return nil, nil
	}
	var found []Finding
	for _, of := range []struct {
		about  Object
		object client.Object
	}{
		{Object{"clusterrole", "", libraActivator}, &rbacv1.ClusterRole{}},
		{Object{"clusterrolebinding", "", libraActivator}, &rbacv1.ClusterRoleBinding{}},
		{Object{"rolebinding", settings.Namespace, libraActivator}, &rbacv1.RoleBinding{}},
	} {
		if is, err := c.get(ctx, of.about.Namespace, of.about.Name, of.object); err != nil {
			return found, err
		} else if !is {
			found = append(found, failure(of.about, "kubectl apply --server-side -f libra-activator.yaml", "it is not there: the activator does not learn which pods opted in, or what the settings are"))
		}
	}
	return found, nil
}
