package uninstall

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"knative.dev/serving/pkg/apis/serving"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/api/v1alpha1"
	"libra.dev/libra/pkg/kubectl/swap"
	"libra.dev/libra/pkg/settings"
)

const (
	// partOf is on everything that is shipped, and namePrefix begins all names outside Libra's namespaces. Either
	// alone may be somebody else's.
	partOf     = "app.kubernetes.io/part-of"
	libra      = "libra"
	namePrefix = "libra-"

	// reports is the only definition whose objects Libra writes itself.
	reports = "functionreports.libra.dev"
)

// shippedKinds are the kinds of Libra's objects outside its own namespaces, in the order in which they go.
var shippedKinds = []schema.GroupVersionKind{
	{Group: "admissionregistration.k8s.io", Version: "v1", Kind: "MutatingAdmissionPolicyBinding"},
	{Group: "admissionregistration.k8s.io", Version: "v1", Kind: "MutatingAdmissionPolicy"},
	// As clusters before 1.36 have them.
	{Group: "admissionregistration.k8s.io", Version: "v1beta1", Kind: "MutatingAdmissionPolicyBinding"},
	{Group: "admissionregistration.k8s.io", Version: "v1beta1", Kind: "MutatingAdmissionPolicy"},
	{Group: "admissionregistration.k8s.io", Version: "v1", Kind: "ValidatingAdmissionPolicyBinding"},
	{Group: "admissionregistration.k8s.io", Version: "v1", Kind: "ValidatingAdmissionPolicy"},
	{Group: "monitoring.coreos.com", Version: "v1", Kind: "PodMonitor"},
	{Group: "rbac.authorization.k8s.io", Version: "v1", Kind: "RoleBinding"},
	{Group: "rbac.authorization.k8s.io", Version: "v1", Kind: "Role"},
	{Group: "rbac.authorization.k8s.io", Version: "v1", Kind: "ClusterRoleBinding"},
	{Group: "rbac.authorization.k8s.io", Version: "v1", Kind: "ClusterRole"},
}

var definitionKind = schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"}

// each calls do with the objects of a kind, or not at all if the cluster does not have the kind.
func (u Uninstall) each(ctx context.Context, kind schema.GroupVersionKind, do func(*metav1.PartialObjectMetadata), options ...client.ListOption) error {
	for next := ""; ; {
		var page metav1.PartialObjectMetadataList
		page.SetGroupVersionKind(kind.GroupVersion().WithKind(kind.Kind + "List"))
		if err := u.Client.List(ctx, &page, append(slices.Clone(options), client.Limit(atATime), client.Continue(next))...); err != nil {
			if meta.IsNoMatchError(err) {
				return nil
			}
			return fmt.Errorf("listing the objects of the kind %s: %w", kind.Kind, err)
		}
		for i := range page.Items {
			page.Items[i].SetGroupVersionKind(kind)
			do(&page.Items[i])
		}
		if next = page.Continue; next == "" {
			return nil
		}
	}
}

// list returns the objects of a kind, without their managed fields.
func (u Uninstall) list(ctx context.Context, kind schema.GroupVersionKind, options ...client.ListOption) (all []metav1.PartialObjectMetadata, err error) {
	err = u.each(ctx, kind, func(o *metav1.PartialObjectMetadata) {
		o.ManagedFields = nil
		all = append(all, *o)
	}, options...)
	return all, err
}

// shipped returns Libra's objects of these kinds, by label and name.
func (u Uninstall) shipped(ctx context.Context) ([]metav1.PartialObjectMetadata, error) {
	var all []metav1.PartialObjectMetadata
	for _, kind := range shippedKinds {
		found, err := u.list(ctx, kind, client.MatchingLabels{partOf: libra})
		if err != nil {
			return nil, err
		}
		for _, o := range found {
			if strings.HasPrefix(o.Name, namePrefix) {
				all = append(all, o)
			}
		}
	}
	return all, nil
}

// describe names an object as kubectl does.
func describe(o *metav1.PartialObjectMetadata) string {
	name := strings.ToLower(o.Kind) + "/" + o.Name
	if o.Namespace != "" {
		name += " in " + o.Namespace
	}
	return name
}

func (u Uninstall) removeShipped(ctx context.Context) error {
	all, err := u.shipped(ctx)
	if err != nil {
		return err
	}
	var errs []error // one that may not be deleted does not keep the others
	for _, o := range all {
		if o.Name == Job {
			continue
		}
		errs = append(errs, u.remove(ctx, &o))
	}
	return errors.Join(errs...)
}

func (u Uninstall) remove(ctx context.Context, o *metav1.PartialObjectMetadata) error {
	u.say("  %s", describe(o))
	if u.DryRun {
		return nil
	}
	if err := client.IgnoreNotFound(u.Client.Delete(ctx, o)); err != nil {
		return fmt.Errorf("deleting %s: %w", describe(o), err)
	}
	return nil
}

// removeDefinitions deletes the definitions whose objects Libra wrote, or that have no objects. Objects that users
// wrote are theirs, and would go with their definition.
func (u Uninstall) removeDefinitions(ctx context.Context) error {
	definitions, err := u.definitions(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for _, d := range definitions {
		if d.Name != reports && !u.DeletePolicies {
			written, err := u.objectsOf(ctx, d.Name)
			if err != nil {
				errs = append(errs, err)
				continue
			}
			if len(written) > 0 {
				u.say("  %s stays, because users wrote objects of it (--delete-policies deletes both): %s", describe(&d), strings.Join(written, ", "))
				continue
			}
		}
		errs = append(errs, u.remove(ctx, &d))
	}
	return errors.Join(errs...)
}

func (u Uninstall) definitions(ctx context.Context) ([]metav1.PartialObjectMetadata, error) {
	all, err := u.list(ctx, definitionKind)
	return slices.DeleteFunc(all, func(d metav1.PartialObjectMetadata) bool {
		return !strings.HasSuffix(d.Name, "."+v1alpha1.GroupVersion.Group)
	}), err
}

// objectsOf names the objects of a definition.
func (u Uninstall) objectsOf(ctx context.Context, definition string) ([]string, error) {
	resource, group, _ := strings.Cut(definition, ".")
	kind, err := u.Client.RESTMapper().KindFor(schema.GroupVersionResource{Group: group, Resource: resource})
	if meta.IsNoMatchError(err) {
		return nil, nil // the definition is going
	}
	if err != nil {
		return nil, err
	}
	objects, err := u.list(ctx, kind)
	var names []string
	for _, o := range objects {
		// The cluster's default goes with Libra's namespace, which is still there in a dry run.
		if o.Namespace != settings.Namespace {
			names = append(names, describe(&o))
		}
	}
	return names, err
}

// labels removes Libra's labels from namespaces and nodes, if it is asked to.
func (u Uninstall) labels(ctx context.Context) error {
	labelled, err := u.labelled(ctx)
	if err != nil || !u.Labels {
		return err
	}
	for _, o := range labelled {
		keys := librasLabels(&o)
		u.say("  %s: %s", describe(&o), strings.Join(keys, ", "))
		if u.DryRun {
			continue
		}
		none := map[string]any{}
		for _, k := range keys {
			none[k] = nil
		}
		patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": none}})
		if err != nil {
			return err
		}
		if err := u.Client.Patch(ctx, &o, client.RawPatch(types.MergePatchType, patch), client.FieldOwner(swap.FieldManager)); err != nil {
			return fmt.Errorf("removing labels from %s: %w", describe(&o), err)
		}
	}
	return nil
}

// labelled returns the namespaces and nodes that have labels of Libra's.
func (u Uninstall) labelled(ctx context.Context) ([]metav1.PartialObjectMetadata, error) {
	var all []metav1.PartialObjectMetadata
	for _, kind := range []string{"Namespace", "Node"} {
		found, err := u.list(ctx, corev1.SchemeGroupVersion.WithKind(kind))
		if err != nil {
			return nil, err
		}
		all = append(all, found...)
	}
	return slices.DeleteFunc(all, func(o metav1.PartialObjectMetadata) bool { return len(librasLabels(&o)) == 0 }), nil
}

func librasLabels(o *metav1.PartialObjectMetadata) []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(o.Labels)), func(k string) bool {
		return !strings.HasPrefix(k, v1alpha1.GroupVersion.Group+"/")
	})
}

// revisions returns how many Revisions have opted in, which means nothing without Libra, and the Services of those that are
// copies of the duplicator's.
func (u Uninstall) revisions(ctx context.Context) (optedIn int, copies []client.ObjectKey, err error) {
	err = u.each(ctx, servingv1.SchemeGroupVersion.WithKind("Revision"), func(o *metav1.PartialObjectMetadata) {
		switch {
		case api.IsCopy(o.Labels):
			copies = append(copies, client.ObjectKey{Namespace: o.Namespace, Name: o.Labels[serving.ServiceLabelKey]})
		case api.OptedIn(o.Labels):
			optedIn++
		}
	}, client.HasLabels{api.EnabledLabel})
	return optedIn, copies, err
}
