package stack

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"math/big"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// certificateValidity outlives any box.
const certificateValidity = 10 * 365 * 24 * time.Hour

// certificate is what KServe's webhooks are served with, and its own authority:
// in place of cert-manager. Fields are base64 of PEM, as a Secret has them.
type certificate struct {
	cert, key string
}

// webhookCertificate is the one on the cluster, or a new one.
func (a applier) webhookCertificate(ctx context.Context) (certificate, error) {
	secrets := schema.GroupVersionResource{Version: "v1", Resource: "secrets"}
	u, err := a.client.Resource(secrets).Namespace(kserveNamespace).Get(ctx, kserveSecret, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return newCertificate(time.Now())
	}
	if err != nil {
		return certificate{}, fmt.Errorf("read the certificate of kserve's webhooks: %w", err)
	}
	data, _, err := unstructured.NestedStringMap(u.Object, "data")
	return certificate{cert: data["tls.crt"], key: data["tls.key"]}, err
}

func newCertificate(now time.Time) (certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return certificate{}, err
	}
	host := kserveWebhook + "." + kserveNamespace + ".svc"
	template := &x509.Certificate{
		SerialNumber:          big.NewInt(now.UnixNano()),
		Subject:               pkix.Name{CommonName: host},
		DNSNames:              []string{host},
		NotBefore:             now.Add(-time.Hour),
		NotAfter:              now.Add(certificateValidity),
		IsCA:                  true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return certificate{}, err
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return certificate{}, err
	}
	encode := func(kind string, der []byte) string {
		return base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
	}
	return certificate{cert: encode("CERTIFICATE", der), key: encode("PRIVATE KEY", keyDER)}, nil
}

func (c certificate) secret() object {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1",
		"kind":       "Secret",
		"type":       "kubernetes.io/tls",
		"metadata":   map[string]any{"name": kserveSecret, "namespace": kserveNamespace},
		"data":       map[string]any{"tls.crt": c.cert, "tls.key": c.key},
	}}
}

// trustedBy makes the webhooks among the objects that KServe serves trust c.
func (c certificate) trustedBy(objects []object) {
	for _, o := range objects {
		webhooks, _ := o.Object["webhooks"].([]any)
		for _, w := range webhooks {
			w, ok := w.(map[string]any)
			if !ok {
				continue
			}
			if name, _, _ := unstructured.NestedString(w, "clientConfig", "service", "name"); name != kserveWebhook {
				continue
			}
			w["clientConfig"].(map[string]any)["caBundle"] = c.cert
		}
	}
}
