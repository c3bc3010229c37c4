package check

import (
	"context"
	"fmt"
	"path"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"libra.dev/libra/pkg/kubectl/swap"
	"libra.dev/libra/pkg/settings"
)

const (
	stockRepository = "gcr.io/knative-releases/knative.dev/serving/cmd/activator"
	ourImage        = "<repository>/libra-activator@sha256:<digest>"

	// swapIn runs the Job again, which kubectl apply alone does not.
	swapIn       = "kubectl -n libra-system delete job libra-activator-install --ignore-not-found && kubectl apply --server-side -f libra-activator.yaml"
	restoreStock = `kubectl -n knative-serving set image deployment/activator activator="$(kubectl -n knative-serving get deployment activator -o jsonpath='{.metadata.annotations.libra\.dev/stock-image}')"`
)

var activatorObject = Object{"deployment", swap.Namespace, swap.Name}

var activatorChecks = []Check{
	{
		ID: "activator-owner", run: activatorOwner,
		Looks: "who manages the activator's Deployment: the Knative operator, Argo CD, Flux and Helm put the stock image back unless they are configured with Libra's",
		Fine:  "nothing puts the activator's image back",
	},
	{
		ID: "activator-image", run: activatorImage,
		Looks: "the activator's image: is it stock, Libra's or neither; is the stock image recorded, so that it can be restored; were Knative's manifests applied over Libra's?",
	},
	{
		ID: "activator-ready", run: activatorReady,
		Looks: "are there as many ready activators as there should be?",
	},
	{
		ID: "activator-rights", run: activatorRights, installed: true,
		Looks: "the ClusterRole and the bindings that Libra's activator needs beyond Knative's",
		Fine:  "Libra's activator has the rights that it needs, or does not run",
	},
}

// imageOf returns the activator's image, and whose it is.
func imageOf(d *appsv1.Deployment) (image string, libras, stock bool) {
	image, _ = swap.ImageOf(d)
	libras = swap.IsLibras(d, image)
	return image, libras, !libras && strings.Contains(path.Base(swap.Repository(image)), swap.Name)
}

func activatorOwner(ctx context.Context, c *Cluster) ([]Finding, error) {
	d, err := c.theActivator(ctx)
	if err != nil || d == nil {
		return nil, err
	}
	image, libras, _ := imageOf(d)
	keeper := swap.KeeperOf(d)
	release := d.Annotations["meta.helm.sh/release-name"]
	switch {
	case keeper == nil && release != "":
		return []Finding{warning(activatorObject, swapIn+"  # after each helm upgrade of "+release, "Helm manages it, and puts the stock image back with each upgrade")}, nil
	case keeper == nil:
		return nil, nil
	case !libras:
		return []Finding{warning(activatorObject, keeper.Remedy(d, ourImage), "%s manages it, and has to set Libra's image", keeper.Name)}, nil
	case d.Annotations[swap.StockImageAnnotation] != "":
		// The annotation is from a swap, which changes nothing where there is a keeper.
		remedy := fmt.Sprintf("%s# Then the annotation with the stock image is no longer needed:\nkubectl -n %s annotate deployment activator %s-", keeper.Remedy(d, image), swap.Namespace, swap.StockImageAnnotation)
		return []Finding{failure(activatorObject, remedy, "%s manages it, but did not set Libra's image, and will put the stock image back", keeper.Name)}, nil
	}
	return []Finding{fine(activatorObject, "%s sets Libra's image", keeper.Name)}, nil
}

func activatorImage(ctx context.Context, c *Cluster) ([]Finding, error) {
	d, err := c.theActivator(ctx)
	if err != nil || d == nil {
		return nil, err
	}
	image, libras, stock := imageOf(d)
	was, written := d.Annotations[swap.StockImageAnnotation]
	switch {
	case libras && !written && swap.KeeperOf(d) != nil:
		return []Finding{fine(activatorObject, "it has Libra's image")}, nil
	case libras && !written:
		remedy := fmt.Sprintf("kubectl -n %s annotate deployment activator %s=%s:v%s.0", swap.Namespace, swap.StockImageAnnotation, stockRepository, swap.Supported)
		return []Finding{failure(activatorObject, remedy, "it has Libra's image, but no annotation %s, without which the stock image cannot be restored", swap.StockImageAnnotation)}, nil
	case libras:
		return []Finding{fine(activatorObject, "it has Libra's image, and its annotation records %s", was)}, nil
	case !stock:
		remedy := fmt.Sprintf("kubectl -n %s set image deployment/activator activator=%s:v%s.0  # if this is not intended", swap.Namespace, stockRepository, swap.Supported)
		return []Finding{warning(activatorObject, remedy, "its image %s is neither Knative's nor Libra's: Libra's image lacks whatever this one adds", image)}, nil
	case written:
		return []Finding{failure(activatorObject, swapIn, "its image is stock, but was Libra's: Knative's own manifests were applied over it, so Libra sees no requests")}, nil
	case c.Installed:
		return []Finding{warning(activatorObject, swapIn, "its image is stock, so Libra sees no requests")}, nil
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
		{Object{"clusterrole", "", swap.LibraName}, &rbacv1.ClusterRole{}},
		{Object{"clusterrolebinding", "", swap.LibraName}, &rbacv1.ClusterRoleBinding{}},
		{Object{"rolebinding", settings.Namespace, swap.LibraName}, &rbacv1.RoleBinding{}},
	} {
		if is, err := c.get(ctx, of.about.Namespace, of.about.Name, of.object); err != nil {
			return found, err
		} else if !is {
			found = append(found, failure(of.about, "kubectl apply --server-side -f libra-activator.yaml", "it is not there: the activator cannot read which pods opted in, or the settings"))
		}
	}
	return found, nil
}
