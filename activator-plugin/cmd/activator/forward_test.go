package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net/http"
	"testing"
	"time"

	"go.opentelemetry.io/otel/metric/noop"
	tracenoop "go.opentelemetry.io/otel/trace/noop"
	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	netapi "knative.dev/networking/pkg/apis/networking"
	netcfg "knative.dev/networking/pkg/config"
	"knative.dev/pkg/system"

	"libra.dev/libra/activator-plugin/forward"
	"libra.dev/libra/activator-plugin/invocation"
)

func authority(t *testing.T) (*x509.Certificate, []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: serial, NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	c, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return c, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func listed(objects ...any) cache.Indexer {
	i := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
	for _, o := range objects {
		_ = i.Add(o)
	}
	return i
}

// Activators trust each other by the CA of their certificate, and by the bundles that Knative trusts.
func TestRoutingTLSTrustsWhatKnativeDoes(t *testing.T) {
	t.Setenv(system.NamespaceEnvKey, "knative-serving")
	own, ownPEM := authority(t)
	bundled, bundledPEM := authority(t)
	_, otherPEM := authority(t)
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "knative-serving", Name: netcfg.ServingRoutingCertName}, Data: map[string][]byte{"ca.crt": ownPEM}}
	bundle := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "knative-serving", Name: "bundle", Labels: map[string]string{netapi.TrustBundleLabelKey: "true"}}, Data: map[string]string{"a": string(bundledPEM)}}
	other := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "knative-serving", Name: "other"}, Data: map[string]string{"a": string(otherPEM)}}
	config, err := routingTLS(corelisters.NewSecretLister(listed(secret)), corelisters.NewConfigMapLister(listed(bundle, other)))()
	if err != nil {
		t.Fatal(err)
	}
	want := x509.NewCertPool()
	want.AddCert(own)
	want.AddCert(bundled)
	if !config.RootCAs.Equal(want) || config.ServerName != "kn-routing" {
		t.Errorf("it trusts others than the two authorities, for %q", config.ServerName)
	}
	if _, err := routingTLS(corelisters.NewSecretLister(listed()), corelisters.NewConfigMapLister(listed()))(); err == nil {
		t.Error("without the certificate there is no error")
	}
}

func TestNothingIsPassedOnInAMesh(t *testing.T) {
	t.Setenv(system.NamespaceEnvKey, "knative-serving")
	next := http.NewServeMux()
	for name, tc := range map[string]struct {
		libra   libra
		network netcfg.Config
		passes  bool
	}{
		"off":                 {libra{}, netcfg.Config{}, false},
		"on":                  {libra{manager: &invocation.Manager{}}, netcfg.Config{MeshCompatibilityMode: netcfg.MeshCompatibilityModeAuto}, true},
		"passthrough":         {libra{manager: &invocation.Manager{}}, netcfg.Config{EnableMeshPodAddressability: true}, false},
		"by ClusterIP always": {libra{manager: &invocation.Manager{}}, netcfg.Config{MeshCompatibilityMode: netcfg.MeshCompatibilityModeEnabled}, false},
	} {
		h := tc.libra.forward(t.Context(), next, forwarding{
			env: config{PodIP: "10.0.0.1", MaxIdleProxyConns: 10}, kube: fake.NewClientset(), network: &tc.network,
			logger: zap.NewNop().Sugar(), mp: noop.NewMeterProvider(), tp: tracenoop.NewTracerProvider(),
		})
		if _, passes := h.(*forward.Handler); passes != tc.passes {
			t.Errorf("%s: requests may be passed on: %t, want %t", name, passes, tc.passes)
		}
	}
}
