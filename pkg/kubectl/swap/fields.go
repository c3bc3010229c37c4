package swap

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// containerFields is the path of the activator's container in managed fields.
var containerFields = []string{"f:spec", "f:template", "f:spec", "f:containers", `k:{"name":"` + Container + `"}`}

// ownsImage reports whether Libra was the last to set the image.
func ownsImage(d *appsv1.Deployment) bool {
	return slices.ContainsFunc(d.ManagedFields, func(e metav1.ManagedFieldsEntry) bool {
		_, container, err := fieldsOf(e)
		return e.Manager == FieldManager && err == nil && container["f:image"] != nil
	})
}

// fieldsOf returns the fields of an entry, and among them those of the activator's container.
func fieldsOf(e metav1.ManagedFieldsEntry) (fields, container map[string]any, err error) {
	fields = map[string]any{}
	if e.FieldsV1 != nil {
		err = json.Unmarshal(e.FieldsV1.Raw, &fields)
	}
	if err == nil {
		container, _, err = unstructured.NestedMap(fields, containerFields...)
	}
	if err != nil {
		err = fmt.Errorf("reading the fields of %s that %s manages: %w", where, e.Manager, err)
	}
	return fields, container, err
}

// disown gives up the fields that Libra owns by server-side apply, which would conflict with the owner's next
// apply, and removes the annotation.
func (s Swap) disown(ctx context.Context) error {
	err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		d, err := s.deployment(ctx)
		if err != nil {
			return err
		}
		patch, err := disown(d.ObjectMeta)
		if err != nil {
			return err
		}
		return s.Client.Patch(ctx, d, client.RawPatch(types.JSONPatchType, patch), client.FieldOwner(FieldManager))
	})
	if err != nil {
		return fmt.Errorf("giving up the fields of %s that Libra owns: %w", where, err)
	}
	return nil
}

// disown returns a JSON patch that removes our manager from the object's managed fields, gives the
// image back to those who manage the rest of its container, and removes our annotation. The patch fails
// if the object has changed since.
func disown(object metav1.ObjectMeta) ([]byte, error) {
	type operation struct {
		Op    string `json:"op"`
		Path  string `json:"path"`
		Value any    `json:"value,omitempty"`
	}
	var others []metav1.ManagedFieldsEntry
	for _, e := range object.ManagedFields {
		if e.Manager == FieldManager {
			continue
		}
		fields, container, err := fieldsOf(e)
		if err != nil {
			return nil, err
		}
		if container["f:name"] != nil {
			container["f:image"] = map[string]any{}
			if err := unstructured.SetNestedMap(fields, container, containerFields...); err != nil {
				return nil, err
			}
			raw, err := json.Marshal(fields)
			if err != nil {
				return nil, err
			}
			e.FieldsV1 = &metav1.FieldsV1{Raw: raw}
		}
		others = append(others, e)
	}
	if others == nil {
		others = []metav1.ManagedFieldsEntry{{}} // an empty list would be no change, and one empty entry empties it
	}
	operations := []operation{
		{"replace", "/metadata/resourceVersion", object.ResourceVersion},
		{"replace", "/metadata/managedFields", others},
	}
	if _, ok := object.Annotations[StockImageAnnotation]; ok {
		operations = append(operations, operation{Op: "remove", Path: "/metadata/annotations/" + strings.ReplaceAll(StockImageAnnotation, "/", "~1")})
	}
	return json.Marshal(operations)
}
