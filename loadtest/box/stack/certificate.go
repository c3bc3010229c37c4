package stack

import (
	"context"
	"encoding/base64"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	certutil "k8s.io/client-go/util/cert"
)

// certificate is the serving certificate of KServe's webhooks, followed by its authority's, in
// place of cert-manager's. The fields are base64 of PEM, as in a Secret.
type certificate struct {
	cert, key string
}

// webhookCertificate returns the certificate on the cluster, or a new one.
func (a applier) webhookCertificate(ctx context.Context) (certificate, error) {
	secrets := schema.GroupVersionResource{Version: "v1", Resource: "secrets"}
	u, err := a.client.Resource(secrets).Namespace(kserveNamespace).Get(ctx, kserveSecret, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return newCertificate()
	}
	if err != nil {
		return certificate{}, fmt.Errorf("read the certificate of kserve's webhooks: %w", err)
	}
	data, _, err := unstructured.NestedStringMap(u.Object, "data")
	return certificate{cert: data["tls.crt"], key: data["tls.key"]}, err
}

func newCertificate() (certificate, error) {
	cert, key, err := certutil.GenerateSelfSignedCertKey(kserveWebhook+"."+kserveNamespace+".svc", nil, nil)
	encode := base64.StdEncoding.EncodeToString
	return certificate{cert: encode(cert), key: encode(key)}, err
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

// trustedBy makes KServe's webhooks among the objects trust c.
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
