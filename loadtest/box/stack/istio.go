package stack

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"sigs.k8s.io/yaml"

	"libra.dev/libra/loadtest/box/build"
	"libra.dev/libra/loadtest/box/versions"
)

const (
	istioNamespace  = "istio-system"
	externalGateway = "knative-gateway"
	localGateway    = "knative-local-gateway"
)

// istioValues are the settings of istiod's chart. The proxy is upstream's Envoy, which
// rejects a configuration that names Istio's own filters, so everything that would add
// them is off. Access logs are off, too: they cost processor time.
var istioValues = map[string]any{
	"image":            pilotImage,
	"autoscaleEnabled": false,
	"resources":        map[string]any{"requests": map[string]any{"memory": "128Mi"}, "limits": map[string]any{"memory": "1Gi"}},
	"telemetry":        map[string]any{"enabled": false},
	"env": map[string]any{
		"PILOT_ENABLE_METADATA_EXCHANGE": false,
		"PILOT_DISABLE_MX_ALPN":          true,
		"PILOT_ENABLE_ALPN_FILTER":       false,
	},
	"meshConfig": map[string]any{
		"enablePrometheusMerge": false,
		"accessLogFile":         "",
	},
	// The gateways' version of askSoon.
	"gatewayClasses": map[string]any{"istio": map[string]any{"deployment": map[string]any{
		"spec": map[string]any{"template": map[string]any{"spec": map[string]any{"containers": []any{map[string]any{
			"name": "istio-proxy", "readinessProbe": map[string]any{"periodSeconds": 1, "failureThreshold": 60},
		}}}}},
	}}},
	"global": map[string]any{
		"defaultPodDisruptionBudget": map[string]any{"enabled": false},
		"proxy": map[string]any{
			"image":     proxyImage,
			"resources": map[string]any{"requests": map[string]any{"cpu": gatewayCPURequest, "memory": "64Mi"}, "limits": map[string]any{"memory": "512Mi"}},
		},
	},
}

// istioAndGateways renders the Gateway API, istiod, Knative's ingress for that API, and
// the two Gateways that it uses, whose proxies istiod starts.
func istioAndGateways(helm string) func(context.Context) ([]object, error) {
	return func(ctx context.Context) ([]object, error) {
		source, err := build.Download(ctx, istio.Path, istio.Version)
		if err != nil {
			return nil, err
		}
		definitions, err := build.Download(ctx, "sigs.k8s.io/gateway-api", versions.GatewayAPI)
		if err != nil {
			return nil, err
		}
		charts := filepath.Join(source.Dir, "manifests", "charts")
		objects, err := readObjects(
			filepath.Join(definitions.Dir, "config", "crd", "standard", "gateway.networking.k8s.io_*.yaml"),
			filepath.Join(charts, "base", "files", "crd-all.gen.yaml"),
		)
		if err != nil {
			return nil, err
		}
		istiod, err := helmTemplate(ctx, helm, filepath.Join(charts, "istio-control", "istio-discovery"))
		if err != nil {
			return nil, err
		}
		ingress, err := gatewayAPI(ctx)
		if err != nil {
			return nil, err
		}
		gateways, err := ParseObjects(fmt.Appendf(nil, gatewayManifests, istioNamespace, externalGateway, localGateway))
		if err != nil {
			return nil, err
		}
		return slices.Concat(objects, istiod, ingress, gateways), nil
	}
}

const gatewayManifests = `apiVersion: v1
kind: Namespace
metadata:
  name: %[1]s
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata:
  name: %[2]s
  namespace: %[1]s
  annotations: {networking.istio.io/service-type: ClusterIP}
spec:
  gatewayClassName: istio
  listeners: [{name: default, port: 80, protocol: HTTP, allowedRoutes: {namespaces: {from: All}}}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata:
  name: %[3]s
  namespace: %[1]s
  annotations: {networking.istio.io/service-type: ClusterIP}
spec:
  gatewayClassName: istio
  listeners: [{name: default, port: 80, protocol: HTTP, allowedRoutes: {namespaces: {from: All}}}]
`

// helmTemplate renders istiod's chart.
func helmTemplate(ctx context.Context, helm, chart string) ([]object, error) {
	values, err := yaml.Marshal(istioValues)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "box-istio-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, "values.yaml")
	if err := os.WriteFile(file, values, 0o644); err != nil {
		return nil, err
	}
	out, err := run(ctx, dir, helm, "template", "istiod", chart,
		"--namespace", istioNamespace, "--kube-version", versions.Kubernetes, "--values", file)
	if err != nil {
		return nil, err
	}
	return ParseObjects(out)
}
