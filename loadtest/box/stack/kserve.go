package stack

import (
	"context"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"libra.dev/libra/loadtest/box/build"
	"libra.dev/libra/loadtest/box/versions"
)

const (
	kserveNamespace = "kserve"
	kserveWebhook   = "kserve-webhook-server-service"
	kserveSecret    = "kserve-webhook-server-cert"
)

// kserveIngress makes KServe route through the Gateways that Knative uses.
const kserveIngress = `{
  "enableGatewayApi": true,
  "kserveIngressGateway": "` + istioNamespace + `/` + externalGateway + `",
  "ingressGateway": "` + istioNamespace + `/` + externalGateway + `",
  "localGateway": "` + istioNamespace + `/` + localGateway + `",
  "localGatewayService": "` + localGateway + `-istio.` + istioNamespace + `.svc.cluster.local",
  "ingressDomain": "` + Domain + `",
  "ingressClassName": "istio",
  "domainTemplate": "{{ .Name }}.{{ .Namespace }}.{{ .IngressDomain }}",
  "urlScheme": "http",
  "disableIstioVirtualHost": true,
  "disableIngressCreation": false
}`

// kserve returns KServe's controller for inference services that are plain
// Deployments, without cert-manager and serving runtimes.
func kserve(ctx context.Context) ([]object, error) {
	source, err := build.Download(ctx, "github.com/kserve/kserve", versions.KServe)
	if err != nil {
		return nil, err
	}
	config := filepath.Join(source.Dir, "config")
	objects, err := readObjects(
		// The definitions without schemas save the API server 250 MB.
		filepath.Join(config, "crd", "minimal", "serving.kserve.io_*.yaml"),
		filepath.Join(config, "crd", "minimal", "clusterstoragecontainer", "serving.kserve.io_*.yaml"),
		filepath.Join(config, "base", "namespace.yaml"),
		filepath.Join(config, "configmap", "inferenceservice.yaml"),
		filepath.Join(config, "rbac", "service_account.yaml"),
		filepath.Join(config, "rbac", "role*.yaml"),
		filepath.Join(config, "rbac", "leader_election_*.yaml"),
		filepath.Join(config, "manager", "manager.yaml"),
		filepath.Join(config, "manager", "service.yaml"),
		filepath.Join(config, "webhook", "manifests.yaml"),
		filepath.Join(config, "webhook", "service.yaml"),
	)
	if err != nil {
		return nil, err
	}
	inNamespace(objects, kserveNamespace)
	variables := strings.NewReplacer("$(webhookServiceName)", kserveWebhook, "$(kserveNamespace)", kserveNamespace)
	for _, o := range objects {
		if _, err := mapStrings(o.Object, func(s string) (string, error) { return variables.Replace(s), nil }); err != nil {
			return nil, err
		}
	}
	if err := setData(objects, "inferenceservice-config", map[string]string{
		"ingress": kserveIngress,
		"deploy":  `{"defaultDeploymentMode": "Standard"}`,
	}); err != nil {
		return nil, err
	}
	manager, err := find(objects, "Deployment", "kserve-controller-manager")
	if err != nil {
		return nil, err
	}
	return objects, editContainer(manager, func(c map[string]any) error {
		c["imagePullPolicy"] = "IfNotPresent"
		// Upstream first probes after 30 s, and starves on a tenth of a core.
		for _, set := range []struct {
			value any
			path  []string
		}{
			{int64(1), []string{"readinessProbe", "initialDelaySeconds"}},
			{int64(1), []string{"readinessProbe", "periodSeconds"}},
			{"1", []string{"resources", "limits", "cpu"}},
			{"500Mi", []string{"resources", "limits", "memory"}},
		} {
			if err := unstructured.SetNestedField(c, set.value, set.path...); err != nil {
				return err
			}
		}
		return nil
	})
}

// inNamespace does what kustomize's namespace field does.
func inNamespace(objects []object, namespace string) {
	for _, o := range objects {
		if !slices.Contains(clusterScoped, o.GetKind()) {
			o.SetNamespace(namespace)
		}
		subjects, _ := o.Object["subjects"].([]any)
		for _, s := range subjects {
			if s, ok := s.(map[string]any); ok && s["kind"] == "ServiceAccount" {
				s["namespace"] = namespace
			}
		}
	}
}

var clusterScoped = []string{"Namespace", "CustomResourceDefinition", "ClusterRole", "ClusterRoleBinding",
	"MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"}
