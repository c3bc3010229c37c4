package cluster

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"libra.dev/libra/loadtest/box/layout"
)

// RESTConfig returns the administrator's access to the API server. It trusts only our own
// authority: while our API server does not listen, something elsewhere might answer at
// its address.
func RESTConfig(l layout.Layout) (*rest.Config, error) {
	config, err := clientcmd.BuildConfigFromFlags("", l.Kubeconfig())
	if err != nil {
		return nil, err
	}
	config.Proxy = func(*http.Request) (*url.URL, error) { return nil, nil }
	config.QPS = -1 // there is nobody else to be fair to
	return config, nil
}

// api has the few requests to the API server that the node's own commands need.
type api struct{ client kubernetes.Interface }

func newAPI(l layout.Layout) (api, error) {
	config, err := RESTConfig(l)
	if err != nil {
		return api{}, err
	}
	config.Timeout = 5 * time.Second
	client, err := kubernetes.NewForConfig(config)
	return api{client}, err
}

// readyAPI waits for the API server until starting returns an error.
func readyAPI(ctx context.Context, l layout.Layout, starting func() error) (api, error) {
	a, err := newAPI(l)
	if err != nil {
		return a, err
	}
	return a, poll(ctx, 50*time.Millisecond, func() (bool, string, error) {
		if err := starting(); err != nil {
			return false, "", err
		}
		err := a.client.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
		return err == nil, fmt.Sprintf("the API server is not ready (%v)", err), nil
	})
}

// unready says which node is not Ready, and why; it is empty if all are.
func (a api) unready(ctx context.Context, members []member) (string, error) {
	for _, m := range members {
		ready, reason, err := a.nodeReady(ctx, m.name())
		if err != nil {
			return "", err
		}
		if !ready {
			return fmt.Sprintf("node %s is not Ready: %s", m.name(), reason), nil
		}
	}
	return "", nil
}

// nodeReady says whether a node is Ready, and why if it is not.
func (a api) nodeReady(ctx context.Context, name string) (ready bool, reason string, err error) {
	node, err := a.client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return false, "", err
	}
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status == corev1.ConditionTrue, c.Message, nil
		}
	}
	return false, "it has not reported yet", nil
}

// readySince says whether a node is Ready and has said so at the time since or later.
func (a api) readySince(ctx context.Context, name string, since time.Time) (bool, error) {
	node, err := a.client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return false, err
	}
	for _, c := range node.Status.Conditions {
		// Times have whole seconds.
		if c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue && !c.LastHeartbeatTime.Time.Before(since.Truncate(time.Second)) {
			return true, nil
		}
	}
	return false, errors.New("it has not reported since it was started")
}

// usable says what pods on new nodes would still lack.
func (a api) usable(ctx context.Context, members []member) (lacks string) {
	unready, err := a.unready(ctx, members)
	switch {
	case err != nil:
		return err.Error()
	case unready != "":
		return unready
	}
	if _, err := a.client.CoreV1().ServiceAccounts(metav1.NamespaceDefault).Get(ctx, "default", metav1.GetOptions{}); err != nil {
		return err.Error()
	}
	if err := dnsReady(ctx); err != nil {
		return fmt.Sprintf("DNS is not ready: %v", err)
	}
	return ""
}

func dnsReady(ctx context.Context) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://%s:%d/ready", nodeIP, dnsReadyPort), nil)
	if err != nil {
		return err
	}
	resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 2 * time.Second}).Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("the DNS server answers %s", resp.Status)
	}
	return nil
}

// grantDNS lets the DNS server read the objects that names come from.
func (a api) grantDNS(ctx context.Context) error {
	role := &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: dnsUser},
		Rules: []rbacv1.PolicyRule{
			{APIGroups: []string{""}, Resources: []string{"services", "namespaces"}, Verbs: []string{"list", "watch"}},
			{APIGroups: []string{"discovery.k8s.io"}, Resources: []string{"endpointslices"}, Verbs: []string{"list", "watch"}},
		},
	}
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: dnsUser},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: dnsUser},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: dnsUser}},
	}
	if _, err := a.client.RbacV1().ClusterRoles().Create(ctx, role, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("create the role of the DNS server: %w", err)
	}
	if _, err := a.client.RbacV1().ClusterRoleBindings().Create(ctx, binding, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("create the role of the DNS server: %w", err)
	}
	return nil
}

func (a api) pods(ctx context.Context) ([]corev1.Pod, error) {
	list, err := a.client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}

// trouble says why a pod is neither Ready nor finished; it is empty otherwise.
func trouble(p corev1.Pod) string {
	if p.Status.Phase == corev1.PodSucceeded {
		return ""
	}
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
			return ""
		}
	}
	parts := []string{string(p.Status.Phase)}
	for _, c := range p.Status.ContainerStatuses {
		if c.Ready {
			continue
		}
		part := c.Name + " not ready"
		if c.State.Waiting != nil {
			part = c.Name + " " + c.State.Waiting.Reason
		}
		if c.RestartCount > 0 {
			part += fmt.Sprintf(" (restarts: %d)", c.RestartCount)
		}
		parts = append(parts, part)
	}
	return strings.Join(parts, ", ")
}

// workload is something that `kubectl logs` takes by name.
type workload struct{ kind, namespace, name string }

func (a api) workloads(ctx context.Context) ([]workload, error) {
	var found []workload
	apps := a.client.AppsV1()
	deployments, err := apps.Deployments(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	for _, d := range deployments.Items {
		found = append(found, workload{"deploy", d.Namespace, d.Name})
	}
	daemonSets, err := apps.DaemonSets(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	for _, d := range daemonSets.Items {
		found = append(found, workload{"ds", d.Namespace, d.Name})
	}
	return found, nil
}
