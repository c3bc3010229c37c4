package settings

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/apiservertest"
)

const manifests = "../../manifests/"

// server is an API server with the settings as they are shipped. live follows them.
type server struct {
	*testing.T
	config  *rest.Config
	kube    *kubernetes.Clientset
	objects dynamic.Interface
	live    *Live
}

func startServer(t *testing.T) *server {
	config := apiservertest.Start(t, manifests+"base/crds")
	config.QPS = -1
	s := &server{T: t, config: config}
	var err error
	if s.kube, err = kubernetes.NewForConfig(config); err != nil {
		t.Fatal(err)
	}
	if s.objects, err = dynamic.NewForConfig(config); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{Namespace, "shop"} {
		if _, err := s.kube.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	s.ship(must(client.New(config, client.Options{Scheme: clientgoscheme.Scheme})))
	if s.live, err = NewLive(s.kube, s.objects, func(err error) { t.Log("refused:", err) }); err != nil {
		t.Fatal(err)
	}
	var running sync.WaitGroup
	running.Go(func() { s.live.Run(t.Context()) })
	t.Cleanup(running.Wait)
	s.await("all is read", s.live.Synced)
	return s
}

func (s *server) in(t *testing.T) *server {
	of := *s
	of.T = t
	return &of
}

// as returns the server as a user sees it.
func (s *server) as(user string) *server {
	config := rest.CopyConfig(s.config)
	config.Impersonate.UserName = user
	of := *s
	var err error
	if of.objects, err = dynamic.NewForConfig(config); err != nil {
		s.Fatal(err)
	}
	return &of
}

// grant gives a user a right in the namespace shop.
func (s *server) grant(user string, rule rbacv1.PolicyRule) {
	s.Helper()
	name := metav1.ObjectMeta{Namespace: "shop", Name: user + "-" + rule.Resources[0]}
	_, err := s.kube.RbacV1().Roles("shop").Create(s.Context(), &rbacv1.Role{ObjectMeta: name, Rules: []rbacv1.PolicyRule{rule}}, metav1.CreateOptions{})
	if err == nil {
		_, err = s.kube.RbacV1().RoleBindings("shop").Create(s.Context(), &rbacv1.RoleBinding{
			ObjectMeta: name,
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name.Name},
			Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: user}},
		}, metav1.CreateOptions{})
	}
	if err != nil {
		s.Fatal(err)
	}
}

func must(c client.Client, err error) client.Client {
	if err != nil {
		panic(err)
	}
	return c
}

// ship creates the ConfigMap and the admission policies.
func (s *server) ship(kube client.Client) {
	s.Helper()
	files, err := filepath.Glob(manifests + "base/settings/policy/validating*.yaml")
	if err != nil || len(files) != 4 {
		s.Fatalf("the admission policies are in %q: %v", files, err)
	}
	for _, file := range append(files, manifests+"base/settings/configmap.yaml") {
		data, err := os.ReadFile(file)
		if err != nil {
			s.Fatal(err)
		}
		object := &unstructured.Unstructured{}
		if err := yaml.Unmarshal(data, &object.Object); err != nil {
			s.Fatal(err)
		}
		if object.GetKind() == "ConfigMap" {
			object.SetNamespace(Namespace)
		}
		if err := kube.Create(s.Context(), object); err != nil {
			s.Fatal(err)
		}
	}
}

func (s *server) await(what string, is func() bool) {
	s.Helper()
	for until := time.Now().Add(30 * time.Second); !is(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(until) {
			s.Fatalf("it does not come to be that %s", what)
		}
	}
}

// write replaces the policy of a namespace, or deletes it if spec is nil.
func (s *server) write(namespace string, spec map[string]any) error {
	of := s.objects.Resource(harvestPolicies).Namespace(namespace)
	err := of.Delete(s.Context(), "default", metav1.DeleteOptions{})
	if spec == nil || err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	_, err = of.Create(s.Context(), harvestPolicy(namespace, "default", spec), metav1.CreateOptions{FieldValidation: metav1.FieldValidationStrict})
	return err
}

func (s *server) configure(data string, run ...string) error {
	_, err := s.kube.CoreV1().ConfigMaps(Namespace).Patch(s.Context(), ConfigMap, types.MergePatchType, []byte(`{"data":`+data+`}`), metav1.PatchOptions{DryRun: run})
	return err
}

// One server runs all of it, because starting more takes longer.
func TestSettingsOfAnAPIServer(t *testing.T) {
	s := startServer(t)
	t.Run("what is refused", func(t *testing.T) {
		s := s.in(t)
		// The admission policies, which are not in the definition, take effect within moments.
		s.await("a namespace is refused a reserve", func() bool {
			err := s.write("shop", map[string]any{"cpuReserve": "1"})
			return err != nil && strings.Contains(err.Error(), "only HarvestPolicy libra-system/default")
		})
		s.await("an unknown key is refused", func() bool {
			err := s.configure(`{"modes":"full"}`, metav1.DryRunAll)
			return apierrors.IsInvalid(err) && strings.Contains(err.Error(), "there is no such setting: modes")
		})
		if err := s.write("shop", map[string]any{"mode": "fully"}); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "spec.mode") {
			t.Errorf("a mode that there is not is %v, want it refused by name", err)
		}
		if err := s.write("shop", map[string]any{"reserve": "1"}); err == nil {
			t.Error("a field that there is not is accepted")
		}
	})
	t.Run("who may join a domain", func(t *testing.T) {
		s := s.in(t)
		admin := s.as("dev")
		s.grant("dev", rbacv1.PolicyRule{Verbs: []string{"*"}, APIGroups: []string{"libra.dev"}, Resources: []string{"harvestpolicies"}})
		s.await("an admin of a namespace has its policy", func() bool { return admin.write("shop", map[string]any{"mode": "lend"}) == nil })
		change := func(spec string) error {
			_, err := admin.objects.Resource(harvestPolicies).Namespace("shop").Patch(t.Context(), "default", types.MergePatchType, []byte(`{"spec":`+spec+`}`), metav1.PatchOptions{})
			return err
		}
		refused := func(err error, domain string) {
			t.Helper()
			if want := "the verb join on " + domain + " of the resource lendingdomains in the API group libra.dev, in namespace shop"; !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), want) {
				t.Errorf("an admin of the namespace joins %s: %v, want it forbidden without %s", domain, err, want)
			}
		}
		refused(change(`{"domain":"team"}`), "team")
		if err := s.write("shop", map[string]any{"domain": "team"}); err != nil {
			t.Fatal(err)
		}
		s.await("its functions are in it", func() bool { return s.live.For("shop").DomainOf("shop") == "domain/team" })
		if err := change(`{"mode":"lend"}`); err != nil {
			t.Errorf("one who leaves the domain as it is: %v", err)
		}
		refused(change(`{"domain":"others"}`), "others")
		s.grant("dev", rbacv1.PolicyRule{Verbs: []string{"join"}, APIGroups: []string{"libra.dev"}, Resources: []string{"lendingdomains"}, ResourceNames: []string{"others"}})
		s.await("one who may join a domain does", func() bool { return change(`{"domain":"others"}`) == nil })
		refused(change(`{"domain":"team"}`), "team")
		if err := change(`{"domain":"shop"}`); err != nil {
			t.Errorf("one who leaves the domain: %v", err)
		}
		s.await("its functions are by themselves", func() bool { return s.live.For("shop").DomainOf("shop") == "shop" })
		if err := s.write("shop", nil); err != nil {
			t.Fatal(err)
		}
	})
	t.Run("which counts", func(t *testing.T) {
		s := s.in(t)
		// From the lowest precedence to the highest.
		want := Default
		step := func(name string, do error, change func(*Settings)) {
			t.Helper()
			if do != nil {
				t.Fatalf("%s: %v", name, do)
			}
			change(&want)
			s.await(name, func() bool { return cmp.Equal(s.live.For("shop"), want) && s.live.Source("shop", "n") == want.Source })
		}
		step("built in", nil, func(*Settings) {})
		step("the ConfigMap", s.configure(`{"mode":"lend","source":"owners"}`), func(s *Settings) { s.Mode, s.Source = api.ModeLend, api.SourceOwners })
		step("the cluster's default", s.write(Namespace, map[string]any{"mode": "full", "source": "node", "minLoan": "50ms", "cpuReserve": "1500m", "minCPU": "200m"}), func(s *Settings) {
			s.Mode, s.Source, s.MinLoan, s.CPUReserveMilli = api.ModeFull, api.SourceNode, 50*time.Millisecond, 1500
			s.Bounds.Keep.CPUMilli = 200
		})
		label := func(value string) error {
			patch := []byte(`{"metadata":{"labels":{"libra.dev/source":` + value + `}}}`)
			_, err := s.kube.CoreV1().Namespaces().Patch(t.Context(), "shop", types.MergePatchType, patch, metav1.PatchOptions{})
			return err
		}
		if err := label(`"owners"`); err != nil {
			t.Fatal(err)
		}
		s.await("the namespace's label", func() bool { return s.live.Source("shop", "n") == api.SourceOwners })
		step("the namespace's policy", s.write("shop", map[string]any{"mode": "lend", "source": "node", "minLoan": "0s"}), func(s *Settings) { s.Mode, s.MinLoan = api.ModeLend, 0 })
		if got := s.live.For("shop").ModeOf(map[string]string{api.ModeAnnotation: "full"}); got != api.ModeFull {
			t.Errorf("a revision's annotation full has it in %s", got)
		}
		step("what bounds all", s.configure(`{"max-mode":"observe"}`), func(s *Settings) { s.MaxMode = api.ModeObserve })
		step("and does not", s.configure(`{"max-mode":null}`), func(s *Settings) { s.MaxMode = api.ModeFull })
		step("the cluster's default bounds all", s.write(Namespace, map[string]any{"maxMode": "observe"}), func(s *Settings) {
			s.MaxMode, s.CPUReserveMilli, s.Bounds = api.ModeObserve, 0, Bounds{}
		})
		step("all is gone", errors.Join(label("null"), s.write(Namespace, nil), s.write("shop", nil), s.configure(`{"mode":null,"source":null}`)), func(s *Settings) { *s = Default })
	})
}
