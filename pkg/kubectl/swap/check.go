package swap

import (
	"context"
	"errors"
	"fmt"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/version"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"libra.dev/libra/pkg/settings"
)

const (
	// LabelOfVersion has the version of a Deployment of Knative Serving.
	LabelOfVersion = "app.kubernetes.io/version"
	// fromSource is the version of a Knative that was built from source, which says nothing.
	fromSource = "devel"
)

// Supported is the minor version of Knative Serving that Libra's activator can stand in for, because it is
// built from that version's code.
var Supported = version.MajorMinor(1, 23)

// before is the activator as it was found.
type before struct {
	running string // its image
	stock   string // the image without Libra
}

// imageBefore checks that image can take the activator's place, and returns what has it now.
func (s Swap) imageBefore(ctx context.Context, d *appsv1.Deployment, image string) (before, error) {
	current, err := ImageOf(d)
	if err != nil {
		return before{}, err
	}
	b := before{running: current, stock: current}
	libras := IsLibras(d, current) || current == image
	if libras {
		b.stock = d.Annotations[StockImageAnnotation]
	}
	errs := []error{s.checkVersion(d), s.checkRights(ctx)}
	if libras && b.stock == "" && KeeperOf(d) == nil {
		errs = append(errs, noStockImage(current))
	}
	return b, errors.Join(errs...)
}

// checkVersion refuses a Knative that Libra's activator is not built for.
func (s Swap) checkVersion(d *appsv1.Deployment) error {
	is := strings.TrimPrefix(d.Labels[LabelOfVersion], "v")
	if is == fromSource {
		s.say("%s is from a Knative that was built from source (%s: %s): Libra cannot tell whether that is %s",
			where, LabelOfVersion, is, Supported)
		return nil
	}
	if v, err := version.ParseGeneric(is); err == nil && v.Major() == Supported.Major() && v.Minor() == Supported.Minor() {
		return nil
	}
	return fmt.Errorf("%s is from Knative Serving %q (its label %s), and this activator is for %s: use the release of Libra for your Knative",
		where, is, LabelOfVersion, Supported)
}

// checkRights makes sure that Libra's activator has the rights to see what it needs. Without them it would only do
// what the stock activator does.
func (s Swap) checkRights(ctx context.Context) error {
	for _, o := range []client.Object{&rbacv1.ClusterRoleBinding{}, &rbacv1.RoleBinding{}} {
		key, kind := client.ObjectKey{Name: LibraName}, "ClusterRoleBinding "+LibraName
		if _, ok := o.(*rbacv1.RoleBinding); ok {
			key.Namespace, kind = settings.Namespace, "RoleBinding "+settings.Namespace+"/"+LibraName
		}
		switch err := s.Client.Get(ctx, key, o); {
		case apierrors.IsNotFound(err):
			return fmt.Errorf("there is no %s, without which Libra's activator cannot read pods and settings: apply libra.yaml and libra-activator.yaml (manifests/base and manifests/activator) first", kind)
		case err != nil:
			return fmt.Errorf("looking for the %s: %w", kind, err)
		}
	}
	return nil
}
