package stack

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"

	"libra.dev/libra/loadtest/box/layout"
)

const (
	applyTimeout = time.Minute
	readyTimeout = 2 * time.Minute
)

// laterNamespaces are the namespaces of things that are not part of the stack.
var laterNamespaces = []string{"libra-system", metav1.NamespaceSystem}

// annotateNamespaces annotates the namespaces among objects, and adds the later ones.
func annotateNamespaces(objects []object, annotations map[string]string) []object {
	for _, name := range laterNamespaces {
		o := &unstructured.Unstructured{}
		o.SetAPIVersion("v1")
		o.SetKind("Namespace")
		o.SetName(name)
		objects = append(objects, o)
	}
	for _, o := range objects {
		if o.GetKind() != "Namespace" {
			continue
		}
		all := maps.Clone(annotations)
		maps.Copy(all, o.GetAnnotations())
		o.SetAnnotations(all)
	}
	return objects
}

// Install puts the named parts of the stack on a node that has their images, and returns when all of
// it works. It applies what Build rendered, with a field manager of the box's own; a second Install
// changes only what others changed in the meantime. The annotations are for the platform's
// namespaces, and for those that Libra and the cluster's own parts will be in.
func Install(ctx context.Context, l layout.Layout, config *rest.Config, parts []string, annotations map[string]string, log Logf) error {
	start := time.Now()
	a, err := newApplier(config)
	if err != nil {
		return err
	}
	certificate, err := a.webhookCertificate(ctx)
	if err != nil {
		return err
	}
	what := strings.Join(parts, ", ")
	var all []object
	for _, phase := range phases {
		objects, err := rendered(l, parts, phase)
		if err != nil {
			return err
		}
		if phase == phases[0] && annotations != nil {
			objects = annotateNamespaces(objects, annotations)
		}
		if phase == phases[1] {
			if err := setIngress(objects, parts); err != nil {
				return err
			}
			if slices.Contains(parts, partKServe) {
				objects = append(objects, certificate.secret())
			}
		}
		certificate.trustedBy(objects)
		if err := a.applyAll(ctx, objects); err != nil {
			return err
		}
		all = append(all, objects...)
	}
	log("%s: %d objects applied in %.0f s", what, len(all), time.Since(start).Seconds())

	if err := a.waitReady(ctx, readinessOf(all), readyTimeout, log); err != nil {
		return err
	}
	log("%s: ready after %.0f s", what, time.Since(start).Seconds())
	return nil
}
