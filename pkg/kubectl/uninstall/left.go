package uninstall

import (
	"context"
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"libra.dev/libra/pkg/kubectl/swap"
)

// tellLeft says what is left of Libra on the cluster.
func (u Uninstall) tellLeft(ctx context.Context) error {
	left, err := u.left(ctx)
	if err != nil {
		return fmt.Errorf("listing what is left of Libra: %w", err)
	}
	switch {
	case u.DryRun:
		u.say("nothing was done")
	case len(left) == 0:
		u.say("nothing is left")
	default:
		u.say("left:")
		for _, l := range left {
			u.say("  %s", l)
		}
	}
	return nil
}

func (u Uninstall) left(ctx context.Context) ([]string, error) {
	var left []string
	definitions, err := u.definitions(ctx)
	if err != nil {
		return nil, err
	}
	for _, d := range definitions {
		if d.DeletionTimestamp == nil {
			left = append(left, describe(&d))
		}
	}
	for _, kind := range shippedKinds {
		all, err := u.list(ctx, kind)
		if err != nil {
			return nil, err
		}
		for _, o := range all {
			if strings.HasPrefix(o.Name, namePrefix) && o.Name != Job {
				left = append(left, describe(&o)+", which is not labelled as Libra's")
			}
		}
	}
	labelled, err := u.labelled(ctx)
	if err != nil {
		return nil, err
	}
	for _, o := range labelled {
		left = append(left, fmt.Sprintf("%s has %s (--labels removes labels)", describe(&o), strings.Join(librasLabels(&o), ", ")))
	}
	opted, copies, err := u.revisions(ctx)
	if err != nil {
		return nil, err
	}
	for _, c := range copies {
		left = append(left, fmt.Sprintf("Service %s is a copy that the duplicator made; to remove it: kubectl -n %s delete services.serving.knative.dev %s", c, c.Namespace, c.Name))
	}
	if opted > 0 {
		left = append(left, fmt.Sprintf("%d Revisions with Libra's labels and annotations, which have no effect without Libra", opted))
	}
	told, err := u.toldActivator(ctx)
	return append(left, told...), err
}

// toldActivator is what users set in the activator for Libra.
func (u Uninstall) toldActivator(ctx context.Context) ([]string, error) {
	var d appsv1.Deployment
	err := u.Client.Get(ctx, client.ObjectKey{Namespace: swap.Namespace, Name: swap.Name}, &d)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var told []string
	for _, c := range d.Spec.Template.Spec.Containers {
		for _, e := range c.Env {
			if strings.HasPrefix(e.Name, "LIBRA_") {
				told = append(told, e.Name)
			}
		}
	}
	slices.Sort(told)
	var left []string
	if len(told) > 0 {
		left = append(left, fmt.Sprintf("deployment/%s in %s has the variables %s; to remove them: kubectl -n %s set env deployment/%s %s-",
			d.Name, d.Namespace, strings.Join(told, ", "), d.Namespace, d.Name, strings.Join(told, "- ")))
	}
	for _, v := range d.Spec.Template.Spec.Volumes {
		if strings.HasPrefix(v.Name, namePrefix) && v.Secret != nil {
			left = append(left, fmt.Sprintf("deployment/%s in %s has the volume %s, of the Secret %s", d.Name, d.Namespace, v.Name, v.Secret.SecretName))
		}
	}
	return left, nil
}
