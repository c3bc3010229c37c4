package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"

	"libra.dev/libra/pkg/api"
)

// makeNamespace creates the functions' namespace, once an earlier one that is being
// deleted is gone. Loans there come from source, unless that is empty.
func (d *demo) makeNamespace(ctx context.Context, source api.Source) error {
	namespace := corev1.Namespace{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"}, ObjectMeta: metav1.ObjectMeta{Name: d.namespace}}
	if source != "" {
		namespace.Labels = map[string]string{api.SourceLabel: string(source)}
	}
	object, err := json.Marshal(namespace)
	if err != nil {
		return err
	}
	return eventually(ctx, removeTimeout, func(ctx context.Context) error {
		if err := d.kubectl.applyFrom(ctx, bytes.NewReader(object), "-f", "-"); err != nil {
			return err
		}
		var got corev1.Namespace
		if err := d.kubectl.get(ctx, &got, "namespace", d.namespace); err != nil {
			return err
		}
		if got.DeletionTimestamp != nil {
			return fmt.Errorf("namespace %s of an earlier evaluation is still terminating", d.namespace)
		}
		return nil
	})
}

// template is what a function's owner configured.
type template struct {
	limit       api.Resources
	concurrency int64
}

// configured returns the templates of the functions at a place, by name.
func (d *demo) configured(ctx context.Context) (map[string]template, error) {
	var list servingv1.ServiceList
	if err := d.kubectl.get(ctx, &list, "-n", d.namespace, "services.serving.knative.dev"); err != nil {
		return nil, err
	}
	found := map[string]template{}
	for _, s := range list.Items {
		spec := s.Spec.Template.Spec
		t := template{limit: api.FromList(spec.Containers[0].Resources.Limits)}
		if spec.ContainerConcurrency != nil {
			t.concurrency = *spec.ContainerConcurrency
		}
		found[s.Name] = t
	}
	return found, nil
}
