package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/utils/ptr"
	servingclient "knative.dev/serving/pkg/client/clientset/versioned"

	"libra.dev/libra/pkg/apiservertest"
	"libra.dev/libra/pkg/settings"
)

const (
	baseManifests = "manifests/base"

	applyTimeout   = time.Minute
	requestTimeout = 30 * time.Second
	tokenLifetime  = 24 * time.Hour
)

//go:embed stages.yaml
var stages []byte

// auditPolicy makes the API server log only the requests of those who are measured. Each request is logged
// twice: on arrival, which counts long-running ones, too, and when it has been answered.
const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [ResponseStarted]
rules:
- level: Metadata
  users: ["` + controllerUser + `"]
- level: None
`

// startCluster starts the control plane, with only Libra's own manifests in it.
func (s *site) startCluster(ctx context.Context) error {
	s.say("starting etcd, an API server and Redis")
	assets := filepath.Join(s.dir, "assets")
	if err := os.Mkdir(assets, 0o755); err != nil {
		return err
	}
	if err := apiservertest.Link(s.kubelite, assets); err != nil {
		return err
	}
	policy := filepath.Join(s.dir, "audit-policy.yaml")
	if err := os.WriteFile(policy, []byte(auditPolicy), 0o600); err != nil {
		return err
	}
	s.audit = &audit{path: filepath.Join(s.dir, "audit.log")}
	s.onClose(s.audit.close)

	plane := apiservertest.Environment(assets)
	plane.CRDs = []*apiextensionsv1.CustomResourceDefinition{revisions()}
	// envtest starts both in process groups of their own, and puts their files in TMPDIR.
	if err := os.Setenv("TMPDIR", s.dir); err != nil {
		return err
	}
	apiServer := plane.ControlPlane.GetAPIServer()
	apiServer.Configure().
		Set("audit-policy-file", policy).Set("audit-log-path", s.audit.path).
		// A cluster of this size gets more.
		Set("max-requests-inflight", "1000").Set("max-mutating-requests-inflight", "500")
	plane.ControlPlane.Etcd.Configure().Set("quota-backend-bytes", fmt.Sprint(8<<30)).Set("log-level", "warn")
	var err error
	if apiServer.Err, err = s.logFile("kube-apiserver"); err != nil {
		return err
	}
	if plane.ControlPlane.Etcd.Err, err = s.logFile("etcd"); err != nil {
		return err
	}
	s.onClose(plane.Stop)
	if s.config, err = apiservertest.StartEnvironment(plane); err != nil {
		return fmt.Errorf("start the control plane (its logs are in %s): %w", s.logs, err)
	}
	s.config.QPS = -1
	s.config.Timeout = requestTimeout
	s.kubeconfig = filepath.Join(s.dir, "admin.kubeconfig")
	if err := os.WriteFile(s.kubeconfig, plane.KubeConfig, 0o600); err != nil {
		return err
	}
	fast := rest.CopyConfig(s.config)
	fast.ContentType = runtime.ContentTypeProtobuf
	if s.kube, err = kubernetes.NewForConfig(fast); err != nil {
		return err
	}
	if s.knative, err = servingclient.NewForConfig(s.config); err != nil {
		return err
	}
	return errors.Join(s.startRedis(ctx), s.applyManifests(ctx, filepath.Join(assets, "kubectl")))
}

func (s *site) logFile(name string) (*os.File, error) {
	f, err := os.Create(filepath.Join(s.logs, name+".log"))
	if err == nil {
		s.onClose(f.Close)
	}
	return f, err
}

// applied has the arguments of `kubectl apply` for the manifests that the parts need on every cluster, in order.
var applied = [][]string{
	{"-f", filepath.Join(baseManifests, "core", "namespace.yaml")},
	{"-k", filepath.Join(baseManifests, "crds")},
	{"-k", filepath.Join(baseManifests, "settings")},
	{"-k", filepath.Join(baseManifests, "resizer")},
	{"-k", filepath.Join(baseManifests, "resizer", "policy")},
	{"-k", filepath.Join(baseManifests, "agent")},
}

// applyManifests gives the parts the accounts and the rights that they have on every cluster. Nothing here
// starts the pods of the Deployment and the DaemonSet.
func (s *site) applyManifests(ctx context.Context, kubectl string) error {
	for _, what := range applied {
		ctx, cancel := context.WithTimeout(ctx, applyTimeout)
		cmd := exec.CommandContext(ctx, kubectl, append([]string{"--kubeconfig", s.kubeconfig, "apply"}, what...)...)
		cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + s.dir}
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		said, err := cmd.CombinedOutput()
		cancel()
		if err != nil {
			return fmt.Errorf("kubectl apply %s: %w: %s", what[1], err, said)
		}
	}
	patch := []byte(`{"data":{"mode":"full"}}`)
	if _, err := s.kube.CoreV1().ConfigMaps(settings.Namespace).Patch(ctx, settings.ConfigMap, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		return fmt.Errorf("set the mode: %w", err)
	}
	return nil
}

// account writes the kubeconfig of a service account, which has that account's rights and no others.
func (s *site) account(ctx context.Context, namespace, name string) (path string, err error) {
	token, err := s.kube.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, name, &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: ptr.To(int64(tokenLifetime / time.Second))},
	}, metav1.CreateOptions{})
	if err != nil {
		return "", fmt.Errorf("request a token of service account %s/%s: %w", namespace, name, err)
	}
	path = filepath.Join(s.dir, name+".kubeconfig")
	return path, clientcmd.WriteToFile(tokenConfig(s.config, token.Status.Token), path)
}

func tokenConfig(admin *rest.Config, token string) clientcmdapi.Config {
	const name = "bench"
	config := clientcmdapi.NewConfig()
	config.Clusters[name] = &clientcmdapi.Cluster{Server: admin.Host, CertificateAuthorityData: admin.CAData}
	config.AuthInfos[name] = &clientcmdapi.AuthInfo{Token: token}
	config.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name}
	config.CurrentContext = name
	return *config
}

// revisions defines Knative's Revisions without their schema: nobody validates them here.
func revisions() *apiextensionsv1.CustomResourceDefinition {
	crd := &apiextensionsv1.CustomResourceDefinition{Spec: apiextensionsv1.CustomResourceDefinitionSpec{
		Group: "serving.knative.dev",
		Scope: apiextensionsv1.NamespaceScoped,
		Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: "revisions", Singular: "revision", Kind: "Revision", ListKind: "RevisionList"},
		Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
			Name: "v1", Served: true, Storage: true,
			Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{
				Type: "object", XPreserveUnknownFields: ptr.To(true),
			}},
		}},
	}}
	crd.Name = crd.Spec.Names.Plural + "." + crd.Spec.Group
	return crd
}
