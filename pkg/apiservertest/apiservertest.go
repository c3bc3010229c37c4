// Package apiservertest starts a real API server, with etcd, for a test or a benchmark.
package apiservertest

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"libra.dev/libra/pkg/boxcache"
)

const startTimeout = 2 * time.Minute

// Start starts an API server that has the definitions in the folders and runs until the test ends. It returns its
// administrator's configuration. The binaries are those in KUBEBUILDER_ASSETS, or the box's. Without either, the test is
// skipped.
func Start(t *testing.T, definitions ...string) *rest.Config {
	t.Helper()
	log.SetLogger(logr.Discard())
	plane := Environment(Binaries(t))
	plane.CRDDirectoryPaths = definitions
	t.Cleanup(func() {
		if err := plane.Stop(); err != nil {
			t.Error("Failed to stop the API server:", err)
		}
	})
	config, err := StartEnvironment(plane)
	if err != nil {
		t.Fatal("Failed to start the API server:", err)
	}
	return config
}

// Environment returns an API server with etcd, not started yet, which uses the binaries in a folder and prints nothing.
func Environment(binaries string) *envtest.Environment {
	plane := &envtest.Environment{
		BinaryAssetsDirectory:    binaries,
		UseExistingCluster:       ptr.To(false), // whatever the environment says
		ControlPlaneStartTimeout: startTimeout,
		ControlPlaneStopTimeout:  startTimeout,
		ErrorIfCRDPathMissing:    true,
	}
	plane.ControlPlane.GetAPIServer().Out, plane.ControlPlane.GetAPIServer().Err = io.Discard, io.Discard
	plane.ControlPlane.Etcd = &envtest.Etcd{Out: io.Discard, Err: io.Discard}
	return plane
}

// StartEnvironment starts the API server and returns its administrator's configuration. The caller must stop plane even if
// this fails.
func StartEnvironment(plane *envtest.Environment) (*rest.Config, error) {
	config, err := plane.Start()
	if err != nil {
		return nil, err
	}
	config.Proxy = func(*http.Request) (*url.URL, error) { return nil, nil }
	return config, nil
}

// Binaries returns a folder with etcd, kube-apiserver and kubectl. Without one, the test is skipped.
func Binaries(t *testing.T) string {
	t.Helper()
	if assets := os.Getenv("KUBEBUILDER_ASSETS"); assets != "" {
		return assets
	}
	kubelite, err := boxcache.Binary("kubelite")
	if err != nil {
		t.Fatal(err)
	}
	assets := t.TempDir()
	switch err := Link(kubelite, assets); {
	case errors.Is(err, fs.ErrNotExist):
		t.Skip("There is no API server to start: set KUBEBUILDER_ASSETS to a folder with etcd and kube-apiserver, or run `make box-build`")
	case err != nil:
		t.Fatal(err)
	}
	return assets
}

// Link links etcd, kube-apiserver and kubectl, in a folder that has none of them, to kubelite: Kubernetes in one binary.
func Link(kubelite, folder string) error {
	kubelite, err := filepath.Abs(kubelite)
	if err != nil {
		return err
	}
	if _, err := os.Stat(kubelite); err != nil {
		return err
	}
	// The binary acts as the program that it is called as.
	for _, name := range []string{"etcd", "kube-apiserver", "kubectl"} {
		if err := os.Symlink(kubelite, filepath.Join(folder, name)); err != nil {
			return err
		}
	}
	return nil
}

// AwaitRight waits until the API server lets a user do something: bindings take effect a moment after it has stored them.
func AwaitRight(t *testing.T, config *rest.Config, user string, to authorizationv1.ResourceAttributes) {
	t.Helper()
	reviews := kubernetes.NewForConfigOrDie(config).AuthorizationV1().SubjectAccessReviews()
	review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{User: user, ResourceAttributes: &to}}
	err := wait.PollUntilContextTimeout(t.Context(), 10*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
		answer, err := reviews.Create(ctx, review, metav1.CreateOptions{})
		return err == nil && answer.Status.Allowed, err
	})
	if err != nil {
		t.Fatalf("waiting until %s may %s %s: %v", user, to.Verb, to.Resource, err)
	}
}

// Kubeconfig returns the path of a file with which a command reaches the API server as config does.
func Kubeconfig(t *testing.T, config *rest.Config) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	err := clientcmd.WriteToFile(clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{"test": {Server: config.Host, CertificateAuthorityData: config.CAData}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{"test": {ClientCertificateData: config.CertData, ClientKeyData: config.KeyData}},
		Contexts:       map[string]*clientcmdapi.Context{"test": {Cluster: "test", AuthInfo: "test"}},
		CurrentContext: "test",
	}, path)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// Module returns the folder of a Go module that is in use, for the definitions of its kinds.
func Module(t *testing.T, path string) string {
	t.Helper()
	dir, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", path).Output()
	if err != nil {
		t.Fatalf("go list -m %s: %v", path, err)
	}
	return strings.TrimSpace(string(dir))
}
