package stack

import (
	"context"
	"path/filepath"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"libra.dev/libra/loadtest/box/build"
	"libra.dev/libra/loadtest/box/versions"
)

const kourierGateway = "3scale-kourier-gateway"

// kourier returns Knative's ingress of that name: a controller, and one gateway. The gateway is upstream's Envoy,
// from the image of Istio's proxy.
func kourier(ctx context.Context) ([]object, error) {
	source, err := build.Download(ctx, "knative.dev/net-kourier", versions.KnativeNetKourier)
	if err != nil {
		return nil, err
	}
	objects, err := readObjects(filepath.Join(source.Dir, "config", "*.yaml"))
	if err != nil {
		return nil, err
	}
	// The gateway has one pod, and no metrics by which it could be scaled.
	objects = slices.DeleteFunc(objects, func(o object) bool {
		return o.GetKind() == "HorizontalPodAutoscaler" || o.GetKind() == "PodDisruptionBudget"
	})
	// Access logs cost processor time.
	if err := setData(objects, "config-kourier", map[string]string{"enable-service-access-logging": "false"}); err != nil {
		return nil, err
	}
	service, err := find(objects, "Service", "kourier")
	if err != nil {
		return nil, err
	}
	if err := unstructured.SetNestedField(service.Object, "ClusterIP", "spec", "type"); err != nil {
		return nil, err
	}
	gateway, err := find(objects, "Deployment", kourierGateway)
	if err != nil {
		return nil, err
	}
	return objects, editContainer(gateway, func(c map[string]any) error {
		c["image"] = proxyImage
		delete(c, "lifecycle") // the image has no shell
		// Upstream first probes after 10 s.
		return unstructured.SetNestedField(c, int64(1), "readinessProbe", "initialDelaySeconds")
	})
}
