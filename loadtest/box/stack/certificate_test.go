package stack

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

func TestCertificate(t *testing.T) {
	c, err := newCertificate()
	if err != nil {
		t.Fatal(err)
	}
	decode := func(s string) []byte {
		data, err := base64.StdEncoding.DecodeString(s)
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	pair, err := tls.X509KeyPair(decode(c.cert), decode(c.key))
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(decode(c.cert)) {
		t.Fatal("the certificate is no authority")
	}
	leaf, err := x509.ParseCertificate(pair.Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	if _, err := leaf.Verify(x509.VerifyOptions{DNSName: "kserve-webhook-server-service.kserve.svc", Roots: roots}); err != nil {
		t.Error(err)
	}
}

func TestTrustedBy(t *testing.T) {
	objects := parse(t, `kind: ValidatingWebhookConfiguration
metadata: {name: v}
webhooks:
- {name: ours, clientConfig: {service: {name: kserve-webhook-server-service}}}
- {name: another, clientConfig: {service: {name: webhook}}}
---
kind: Service
metadata: {name: s}
`)
	certificate{cert: "Q0E="}.trustedBy(objects)
	webhooks, _, err := unstructured.NestedSlice(objects[0].Object, "webhooks")
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{"Q0E=", ""} {
		if got, _, _ := unstructured.NestedString(webhooks[i].(map[string]any), "clientConfig", "caBundle"); got != want {
			t.Errorf("caBundle of webhook %d = %q, want %q", i, got, want)
		}
	}
}
