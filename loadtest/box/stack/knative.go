package stack

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"libra.dev/libra/loadtest/box/build"
	"libra.dev/libra/loadtest/box/versions"
)

// Domain is the domain of Knative services on the box: <service>.<namespace>.<Domain>.
const Domain = "box.test"

// ingressClasses maps each part that can be the ingress to its class in Knative.
var ingressClasses = map[string]string{
	partIstio:   "gateway-api.ingress.networking.knative.dev",
	partKourier: "kourier.ingress.networking.knative.dev",
}

// knative returns Knative Serving without an ingress, from the modules that the
// binaries are built from.
func knative(ctx context.Context) ([]object, error) {
	serving, err := build.Download(ctx, "knative.dev/serving", versions.KnativeServing)
	if err != nil {
		return nil, err
	}
	gomod, err := os.ReadFile(serving.GoMod)
	if err != nil {
		return nil, err
	}
	required := map[string]string{} // the folder of each module that Serving requires
	for _, path := range []string{"knative.dev/networking", "knative.dev/caching"} {
		version, err := build.Requirement(gomod, path)
		if err != nil {
			return nil, err
		}
		source, err := build.Download(ctx, path, version)
		if err != nil {
			return nil, err
		}
		required[path] = source.Dir
	}

	core := filepath.Join(serving.Dir, "config", "core")
	networking := filepath.Join(required["knative.dev/networking"], "config")
	objects, err := readObjects(
		filepath.Join(core, "*.yaml"),
		filepath.Join(core, "200-roles", "*.yaml"),
		filepath.Join(core, "300-resources", "*.yaml"),
		filepath.Join(core, "configmaps", "*.yaml"),
		filepath.Join(core, "deployments", "activator.yaml"),
		filepath.Join(core, "deployments", "autoscaler.yaml"),
		filepath.Join(core, "deployments", "controller.yaml"),
		filepath.Join(core, "deployments", "webhook.yaml"),
		filepath.Join(core, "webhooks", "*.yaml"),
		filepath.Join(networking, "*.yaml"),
		filepath.Join(required["knative.dev/caching"], "config", "*.yaml"),
	)
	if err != nil {
		return nil, err
	}
	for name, data := range map[string]map[string]string{
		"config-domain":     {Domain: ""},
		"config-deployment": {"queue-sidecar-cpu-request": queueCPURequest},
	} {
		if err := setData(objects, name, data); err != nil {
			return nil, err
		}
	}
	return objects, nil
}

// setIngress makes Knative use the ingress that is among the parts.
func setIngress(objects []object, parts []string) error {
	for part, class := range ingressClasses {
		if slices.Contains(parts, part) {
			return setData(objects, "config-network", map[string]string{"ingress-class": class})
		}
	}
	return fmt.Errorf("none of these parts is an ingress: %s", strings.Join(parts, ", "))
}

// gatewayAPI returns Knative's ingress that makes routes of the Gateway API.
func gatewayAPI(ctx context.Context) ([]object, error) {
	ingress, err := build.Download(ctx, "knative.dev/net-gateway-api", versions.KnativeNetGatewayAPI)
	if err != nil {
		return nil, err
	}
	config := filepath.Join(ingress.Dir, "config")
	objects, err := readObjects(
		filepath.Join(config, "200-clusterrole.yaml"),
		filepath.Join(config, "300-controller.yaml"),
		filepath.Join(config, "config-gateway.yaml"),
	)
	if err != nil {
		return nil, err
	}
	return objects, setData(objects, "config-gateway", map[string]string{
		"external-gateways": gatewayClass(externalGateway),
		"local-gateways":    gatewayClass(localGateway),
	})
}

// gatewayClass is the entry of a Gateway in Knative's settings. Istio names a
// Gateway's Service after the Gateway and its class.
func gatewayClass(gateway string) string {
	return fmt.Sprintf(`- class: istio
  gateway: %[1]s/%[2]s
  service: %[1]s/%[2]s-istio
  supported-features: [HTTPRouteRequestTimeout]
`, istioNamespace, gateway)
}
