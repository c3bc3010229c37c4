package main

import (
	"testing"

	"go.opentelemetry.io/otel/metric/noop"
	"go.uber.org/zap"
	"k8s.io/client-go/kubernetes/fake"

	configmapinformer "knative.dev/pkg/configmap/informer"
)

// Stock starts without the ConfigMap config-autoscaler.
func TestConfigAutoscalerNeedNotBe(t *testing.T) {
	kube := fake.NewClientset()
	l := startLibra(withDynamic(t.Context()), kube, "activator-0", noop.NewMeterProvider(), nil, zap.NewNop().Sugar())
	defer l.stop()
	for _, l := range []libra{l, {}} {
		configMaps := configmapinformer.NewInformedWatcher(kube, "knative-serving")
		l.watch(configMaps, "knative-serving")
		if err := configMaps.Start(t.Context().Done()); err != nil {
			t.Error("Start() =", err)
		}
	}
}
