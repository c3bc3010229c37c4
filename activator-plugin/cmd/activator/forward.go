package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"time"

	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/zap"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/utils/clock"

	netapi "knative.dev/networking/pkg/apis/networking"
	"knative.dev/networking/pkg/certificates"
	netcfg "knative.dev/networking/pkg/config"
	nsconfigmapinformer "knative.dev/pkg/injection/clients/namespacedkube/informers/core/v1/configmap"
	nssecretinformer "knative.dev/pkg/injection/clients/namespacedkube/informers/core/v1/secret"
	"knative.dev/pkg/system"

	"libra.dev/libra/activator-plugin/forward"
)

// forwarding has what passing requests on needs.
type forwarding struct {
	env     config
	kube    kubernetes.Interface
	network *netcfg.Config
	tls     bool
	logger  *zap.SugaredLogger
	mp      metric.MeterProvider
	tp      trace.TracerProvider
}

// forward returns a handler that passes on the requests which a placement policy has an activator in another zone
// place, and has next serve the rest. If activators cannot reach each other by address, next serves all of them.
func (l libra) forward(ctx context.Context, next http.Handler, f forwarding) http.Handler {
	if l.manager == nil {
		return next
	}
	logger := f.logger.Named("libra")
	if f.network.EnableMeshPodAddressability || f.network.MeshCompatibilityMode == netcfg.MeshCompatibilityModeEnabled {
		logger.Infow("Not passing requests on to activators in other zones, because activators in a mesh cannot be reached by address; requests are placed as topologyTolerance allows")
		return next
	}
	h, err := f.handler(ctx, next, l, logger)
	if err != nil {
		logger.Errorw("Cannot pass requests on to activators in other zones; requests are placed as topologyTolerance allows", zap.Error(err))
		return next
	}
	return h
}

func (f forwarding) handler(ctx context.Context, next http.Handler, l libra, logger *zap.SugaredLogger) (http.Handler, error) {
	var encrypted forward.TLSConfig
	if f.tls {
		encrypted = routingTLS(nssecretinformer.Get(ctx).Lister(), nsconfigmapinformer.Get(ctx).Lister())
	}
	others := forward.NewActivators(f.env.PodIP, f.env.MaxIdleProxyConns)
	if err := others.Follow(ctx, f.kube, system.Namespace(), logger); err != nil {
		return nil, err
	}
	return forward.NewHandler(next, forward.Options{
		Route:      l.manager.Route,
		Activators: others,
		Transport:  forward.NewTransport(f.env.MaxIdleProxyConns, f.env.MaxIdleProxyConnsPerHost, encrypted),
		Timeout: func(r *http.Request) time.Duration {
			all, _, _ := timeouts(r)
			return all
		},
		Clock:          clock.RealClock{},
		Logger:         logger,
		MeterProvider:  f.mp,
		TracerProvider: f.tp,
	})
}

// routingTLS accepts only servers that are activators, certified by an authority that Knative has activators trust.
func routingTLS(secrets corelisters.SecretLister, configMaps corelisters.ConfigMapLister) forward.TLSConfig {
	return func() (*tls.Config, error) {
		roots := x509.NewCertPool()
		secret, err := secrets.Secrets(system.Namespace()).Get(netcfg.ServingRoutingCertName)
		if err != nil {
			return nil, fmt.Errorf("reading the CA certificates that activators trust: %w", err)
		}
		roots.AppendCertsFromPEM(secret.Data[certificates.CaCertName])
		isBundle, err := labels.NewRequirement(netapi.TrustBundleLabelKey, selection.Exists, nil)
		if err != nil {
			return nil, err
		}
		bundles, err := configMaps.ConfigMaps(system.Namespace()).List(labels.NewSelector().Add(*isBundle))
		if err != nil {
			return nil, fmt.Errorf("reading the CA certificates that activators trust: %w", err)
		}
		for _, bundle := range bundles {
			for _, text := range bundle.Data {
				roots.AppendCertsFromPEM([]byte(text))
			}
		}
		return &tls.Config{RootCAs: roots, ServerName: certificates.DataPlaneRoutingSAN, MinVersion: tls.VersionTLS13}, nil
	}
}
