package stack

import (
	"context"

	"libra.dev/libra/loadtest/box/build"
	"libra.dev/libra/loadtest/box/versions"
)

type upstream struct {
	module   build.Module
	binaries []build.Binary
}

// The modules of this repository that upstream's are built beside: Libra's, with the libraries of
// Kubernetes that Knative has, and the box's, with those of the box's Kubernetes.
const (
	besideLibra = "go.mod"
	besideBox   = "loadtest/box/go.mod"
)

var (
	istio = build.Module{
		Path: "istio.io/istio", Version: versions.Istio, Beside: besideBox,
		// Istio's go.mod requires commits of these that were never published.
		Replace: []string{
			"istio.io/api => istio.io/api " + versions.IstioAPI,
			"istio.io/client-go => istio.io/client-go " + versions.IstioClientGo,
			"github.com/envoyproxy/go-control-plane/envoy => github.com/envoyproxy/go-control-plane/envoy " + versions.EnvoyControlPlane,
			"github.com/envoyproxy/go-control-plane/contrib => github.com/envoyproxy/go-control-plane/contrib " + versions.EnvoyControlPlaneContrib,
		},
	}

	// istiod and the agent beside Envoy use different parts of Envoy's API:
	// each is built with the tags of Istio's own Makefile.
	pilot = withOptions(istio, istioOptions("vtprotobuf", "disable_pgv"))
	agent = withOptions(istio, istioOptions("agent", "disable_pgv"))

	upstreams = []upstream{
		{build.Module{
			Path: "github.com/containerd/containerd/v2", Version: versions.Containerd, Beside: besideLibra,
			Options: build.Options{LDFlags: []string{"-X github.com/containerd/containerd/v2/version.Version=" + versions.Containerd}},
		}, []build.Binary{
			{Name: "containerd", Package: "cmd/containerd"},
			{Name: "containerd-shim-runc-v2", Package: "cmd/containerd-shim-runc-v2"},
			{Name: "ctr", Package: "cmd/ctr"},
		}},
		{build.Module{Path: "knative.dev/serving", Version: versions.KnativeServing, Beside: besideLibra}, []build.Binary{
			{Name: "knative-activator", Package: "cmd/activator"},
			{Name: "knative-autoscaler", Package: "cmd/autoscaler"},
			{Name: "knative-controller", Package: "cmd/controller"},
			{Name: "knative-webhook", Package: "cmd/webhook"},
			{Name: "knative-queue", Package: "cmd/queue"},
		}},
		{build.Module{Path: "knative.dev/net-gateway-api", Version: versions.KnativeNetGatewayAPI, Beside: besideLibra}, []build.Binary{
			{Name: "knative-net-gateway-api", Package: "cmd/controller"},
		}},
		{build.Module{Path: "knative.dev/net-kourier", Version: versions.KnativeNetKourier, Beside: besideLibra}, []build.Binary{
			{Name: "knative-net-kourier", Package: "cmd/kourier"},
		}},
		{pilot, []build.Binary{{Name: "pilot-discovery", Package: "pilot/cmd/pilot-discovery"}}},
		{agent, []build.Binary{{Name: "pilot-agent", Package: "pilot/cmd/pilot-agent"}}},
		// It replaces the libraries of Kubernetes by earlier ones than what Libra requires works with.
		{build.Module{Path: "github.com/kserve/kserve", Version: versions.KServe}, []build.Binary{
			{Name: "kserve-manager", Package: "cmd/manager"},
		}},
		{build.Module{Path: "helm.sh/helm/v4", Version: versions.Helm, Beside: besideBox}, []build.Binary{{Name: "helm", Package: "cmd/helm"}}},
		k6,
		prometheus,
	}

	// prometheus discovers only pods, and has no web pages: it answers queries,
	// not people.
	prometheus = upstream{build.Module{
		Path: "github.com/prometheus/prometheus", Version: versions.Prometheus, Beside: besideLibra,
		Options: build.Options{
			Tags:    []string{"remove_all_sd", "enable_kubernetes_sd"},
			LDFlags: []string{"-X github.com/prometheus/common/version.Version=" + versions.Prometheus},
		},
	}, []build.Binary{{Name: "prometheus", Package: "cmd/prometheus"}, {Name: "promtool", Package: "cmd/promtool"}}}

	k6 = upstream{build.Module{Path: "go.k6.io/k6", Version: versions.K6, Beside: besideLibra}, []build.Binary{{Name: "k6", Package: "."}}}
)

func withOptions(m build.Module, o build.Options) build.Module {
	m.Options = o
	return m
}

func istioOptions(tags ...string) build.Options {
	const pkg = "istio.io/istio/pkg/version"
	return build.Options{Tags: tags, LDFlags: []string{
		"-X " + pkg + ".buildVersion=" + versions.IstioBuild,
		"-X " + pkg + ".buildStatus=Clean",
	}}
}

func buildBinaries(ctx context.Context, b build.Builder, upstreams ...upstream) error {
	for _, u := range upstreams {
		if err := b.Module(ctx, u.module, u.binaries...); err != nil {
			return err
		}
	}
	return nil
}
