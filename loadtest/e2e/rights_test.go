//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/settings"
	"libra.dev/libra/resizer/actuate"
)

const (
	controllerAccount = "system:serviceaccount:" + libraNamespace + ":libra-resizer"
	agentAccount      = "system:serviceaccount:" + agentNamespace + ":libra-agent"

	resizePolicy = "libra-resizer"
	// nowhere is a label that no node has, and nothing a resource that does not exist.
	nowhere = "e2e.libra.dev/nowhere"
	nothing = "none"
)

var dryRun = []string{metav1.DryRunAll}

// The resizer's account can do to pods that opted in what the resizer does, and nothing else
// to these or to others.
func TestTheResizersAccountChangesOnlyLimitsOfPodsThatOptedIn(t *testing.T) {
	ctx := t.Context()
	namespace := newNamespace(ctx, t, "rights", api.SourceOwners)
	optedIn := createUnscheduled(ctx, t, namespace, "opted-in", map[string]string{api.EnabledLabel: api.EnabledValue})
	other := createUnscheduled(ctx, t, namespace, "other", nil)
	account := as(controllerAccount)
	clients := kubernetes.NewForConfigOrDie(account).CoreV1()
	pods := clients.Pods(namespace)
	resize := func(pod *corev1.Pod, container, resources string) error {
		patch := fmt.Sprintf(`{"spec":{"containers":[{"name":%q,"resources":%s}]}}`, container, resources)
		// A dry run, because what has been resized once may be resized again.
		_, err := pods.Patch(ctx, pod.Name, types.StrategicMergePatchType, []byte(patch),
			metav1.PatchOptions{FieldManager: actuate.FieldManager, DryRun: dryRun}, "resize")
		return err
	}
	const raised = `{"limits":{"cpu":"900m"}}`
	eventually(t, time.Minute, "policy in force", func() error {
		return refusedByPolicy(resize(other, api.UserContainer, raised), "lacks the label")
	})
	for name, refused := range map[string]struct {
		pod                       *corev1.Pod
		container, patch, because string
	}{
		"requests":               {optedIn, api.UserContainer, `{"requests":{"cpu":"150m"}}`, "requests"},
		"requests, with limits":  {optedIn, api.UserContainer, `{"requests":{"cpu":"150m"},"limits":{"cpu":"900m"}}`, "requests"},
		"queue-proxy's limits":   {optedIn, api.QueueProxyContainer, raised, "queue-proxy"},
		"a pod not opted in":     {other, api.UserContainer, raised, "lacks the label"},
		"queue-proxy's requests": {optedIn, api.QueueProxyContainer, `{"requests":{"cpu":"30m"}}`, "requests"},
	} {
		if err := refusedByPolicy(resize(refused.pod, refused.container, refused.patch), refused.because); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}

	// Who applies what is there already becomes its manager, and could change it next.
	limits := userContainerOf(t, other).Resources.Limits
	same := fmt.Appendf(nil, `{"apiVersion":"v1","kind":"Pod","metadata":{"name":%q},"spec":{"containers":[{"name":%q,"resources":{"limits":{"cpu":%q}}}]}}`,
		other.Name, api.UserContainer, limits.Cpu().String())
	_, applied := pods.Patch(ctx, other.Name, types.ApplyPatchType, same, metav1.PatchOptions{FieldManager: actuate.FieldManager, Force: new(true)}, "resize")
	if err := refusedByPolicy(applied, "lacks the label"); err != nil {
		t.Errorf("applying the limits of a pod that did not opt in: %v", err)
	}

	// As the resizer does it.
	writer, err := ctrlclient.New(account, ctrlclient.Options{})
	if err != nil {
		t.Fatal(err)
	}
	setLimits := func(what string, limits api.Resources) {
		t.Helper()
		if err := actuate.SetLimits(ctx, writer, optedIn, api.UserContainer, limits); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if got := api.FromList(userContainerOf(t, optedIn).Resources.Limits); limits.CPUMilli != 0 && got.CPUMilli != limits.CPUMilli || limits.MemoryBytes != 0 && got.MemoryBytes != limits.MemoryBytes {
			t.Fatalf("%s: the limits are %v", what, got)
		}
	}
	owed := api.FromList(userContainerOf(t, optedIn).Resources.Limits)
	setLimits("more CPU", api.Resources{CPUMilli: 2 * owed.CPUMilli})
	setLimits("more of both", api.Resources{CPUMilli: 3 * owed.CPUMilli, MemoryBytes: 2 * owed.MemoryBytes})
	setLimits("a nudge", api.Resources{CPUMilli: 3*owed.CPUMilli + 1, MemoryBytes: 2 * owed.MemoryBytes})
	optOut := fmt.Appendf(nil, `{"metadata":{"labels":{%q:null}}}`, api.EnabledLabel)
	if _, err := kube.CoreV1().Pods(namespace).Patch(ctx, optedIn.Name, types.MergePatchType, optOut, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	setLimits("back, after it opted out", owed)

	_, created := pods.Create(ctx, unscheduled(namespace, "created", nil), metav1.CreateOptions{DryRun: dryRun})
	_, patched := pods.Patch(ctx, optedIn.Name, types.MergePatchType, []byte(`{"metadata":{"labels":{"a":"b"}}}`), metav1.PatchOptions{DryRun: dryRun})
	_, secret := clients.Secrets(libraNamespace).Get(ctx, nothing, metav1.GetOptions{})
	_, allSecrets := clients.Secrets(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
	for what, err := range map[string]error{
		"creating a pod":   created,
		"deleting a pod":   pods.Delete(ctx, optedIn.Name, metav1.DeleteOptions{DryRun: dryRun}),
		"patching a pod":   patched,
		"reading a Secret": secret,
		"listing Secrets":  allSecrets,
	} {
		if err := notGranted(err); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// The agent changes cgroups, and nothing in the API server.
func TestTheAgentsAccountChangesNothing(t *testing.T) {
	ctx := t.Context()
	namespace := newNamespace(ctx, t, "rights", api.SourceOwners)
	optedIn := createUnscheduled(ctx, t, namespace, "opted-in", map[string]string{api.EnabledLabel: api.EnabledValue})
	account := kubernetes.NewForConfigOrDie(as(agentAccount)).CoreV1()

	configMaps := account.ConfigMaps(libraNamespace)
	if _, err := configMaps.Get(ctx, settings.ConfigMap, metav1.GetOptions{}); err != nil {
		t.Errorf("reading the settings: %v", err)
	}
	_, otherConfigMap := configMaps.Get(ctx, "kube-root-ca.crt", metav1.GetOptions{})
	_, allConfigMaps := configMaps.List(ctx, metav1.ListOptions{})
	_, secret := account.Secrets(libraNamespace).Get(ctx, nothing, metav1.GetOptions{})
	_, allSecrets := account.Secrets(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
	patch := []byte(`{"spec":{"containers":[{"name":"user-container","resources":{"limits":{"cpu":"900m"}}}]}}`)
	_, resized := account.Pods(namespace).Patch(ctx, optedIn.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{DryRun: dryRun}, "resize")
	_, patched := account.Pods(namespace).Patch(ctx, optedIn.Name, types.MergePatchType, []byte(`{"metadata":{"labels":{"a":"b"}}}`), metav1.PatchOptions{DryRun: dryRun})
	for what, err := range map[string]error{
		"reading another ConfigMap": otherConfigMap,
		"listing ConfigMaps":        allConfigMaps,
		"reading a Secret":          secret,
		"listing Secrets":           allSecrets,
		"resizing a pod":            resized,
		"patching a pod":            patched,
		"deleting a pod":            account.Pods(namespace).Delete(ctx, optedIn.Name, metav1.DeleteOptions{DryRun: dryRun}),
	} {
		if err := notGranted(err); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// need is what a part of Libra asks of the API server.
type need struct {
	group, resource string
	verbs           []string
	namespace, name string // if it asks for one alone
}

// needs has the needs of each part with an account: those in the ClusterRole of its name, and
// those beyond it.
var needs = map[string]struct {
	account      string
	role, beyond []need
}{
	"libra-resizer": {
		account: controllerAccount,
		role: []need{
			{resource: "pods", verbs: []string{"list", "watch"}},
			{resource: "pods/resize", verbs: []string{"patch"}},
			{group: "serving.knative.dev", resource: "revisions", verbs: []string{"list", "watch"}},
			{group: "libra.dev", resource: "functionreports", verbs: []string{"create", "delete", "get", "list"}},
			{group: "libra.dev", resource: "functionreports/status", verbs: []string{"update"}},
			{group: "libra.dev", resource: "harvestpolicies/status", verbs: []string{"patch"}},
			{group: "events.k8s.io", resource: "events", verbs: []string{"create", "patch"}},
		},
		beyond: append([]need{
			{group: "coordination.k8s.io", resource: "leases", verbs: []string{"create"}, namespace: libraNamespace},
			{group: "coordination.k8s.io", resource: "leases", verbs: []string{"get", "update"}, namespace: libraNamespace, name: "libra-resizer"},
		}, ofSettings...),
	},
	"libra-agent": {
		account: agentAccount,
		role: []need{
			{resource: "pods", verbs: []string{"list", "watch"}},
			{group: "serving.knative.dev", resource: "revisions", verbs: []string{"get"}},
		},
		beyond: ofSettings,
	},
}

// ofSettings is what a part needs to follow the settings, and to know how much CPU a node
// has.
var ofSettings = []need{
	{resource: "namespaces", verbs: []string{"list", "watch"}},
	{resource: "nodes", verbs: []string{"list", "watch"}},
	{group: "libra.dev", resource: "harvestpolicies", verbs: []string{"list", "watch"}},
	{resource: "configmaps", verbs: []string{"list", "watch"}, namespace: libraNamespace, name: settings.ConfigMap},
}

// A missing rule stops a part, but shows in no other test until the part comes to need it. A
// superfluous rule shows nowhere else.
func TestAccountsHaveTheRightsThatTheyNeedAndNoMore(t *testing.T) {
	ctx := t.Context()
	for name, of := range needs {
		for _, n := range slices.Concat(of.role, of.beyond) {
			for _, verb := range n.verbs {
				resource, subresource, _ := strings.Cut(n.resource, "/")
				review, err := kube.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{
					Spec: authorizationv1.SubjectAccessReviewSpec{User: of.account, ResourceAttributes: &authorizationv1.ResourceAttributes{
						Namespace: n.namespace, Verb: verb, Group: n.group, Resource: resource, Subresource: subresource, Name: n.name,
					}},
				}, metav1.CreateOptions{})
				if err != nil {
					t.Fatal(err)
				}
				if !review.Status.Allowed {
					t.Errorf("%s may not %s %s of group %q: %s", of.account, verb, n.resource, n.group, review.Status.Reason)
				}
			}
		}
		role, err := kube.RbacV1().ClusterRoles().Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(grantsOf(rulesOf(of.role)), grantsOf(role.Rules)); diff != "" {
			t.Errorf("ClusterRole %s grants other than is needed (-needed +granted):\n%s", name, diff)
		}
	}
}

func rulesOf(needs []need) []rbacv1.PolicyRule {
	var rules []rbacv1.PolicyRule
	for _, n := range needs {
		rules = append(rules, rbacv1.PolicyRule{APIGroups: []string{n.group}, Resources: []string{n.resource}, Verbs: n.verbs})
	}
	return rules
}

// grantsOf splits rules into sorted grants, so that it does not matter how the rules are
// grouped.
func grantsOf(rules []rbacv1.PolicyRule) []string {
	var grants []string
	for _, rule := range rules {
		for _, group := range rule.APIGroups {
			for _, resource := range rule.Resources {
				for _, verb := range rule.Verbs {
					grants = append(grants, fmt.Sprintf("%s %s of group %q, names %v", verb, resource, group, rule.ResourceNames))
				}
			}
		}
		if len(rule.NonResourceURLs) > 0 {
			grants = append(grants, fmt.Sprintf("%v %v", rule.Verbs, rule.NonResourceURLs))
		}
	}
	slices.Sort(grants)
	return slices.Compact(grants)
}

// as returns the configuration of a client that acts as a service account.
func as(account string) *rest.Config {
	c := rest.CopyConfig(config)
	c.Impersonate.UserName = account
	return c
}

// refusedByPolicy returns an error unless err is the admission policy's refusal for a reason.
func refusedByPolicy(err error, because string) error {
	if apierrors.IsForbidden(err) && strings.Contains(err.Error(), "ValidatingAdmissionPolicy '"+resizePolicy+"'") && strings.Contains(err.Error(), because) {
		return nil
	}
	return fmt.Errorf("want the policy's refusal that tells of %q, got %w", because, orAccepted(err))
}

// notGranted returns an error unless err says that no role grants what was asked.
func notGranted(err error) error {
	if apierrors.IsForbidden(err) && strings.Contains(err.Error(), " cannot ") {
		return nil
	}
	return fmt.Errorf("want that no role grants it, got %w", orAccepted(err))
}

var errAccepted = errors.New("no error: it was accepted")

func orAccepted(err error) error {
	if err == nil {
		return errAccepted
	}
	return err
}

// unscheduled returns a pod that looks like a function's to the API server, and runs nowhere.
// It has no Revision and no node, so that Libra does nothing with it.
func unscheduled(namespace, name string, labels map[string]string) *corev1.Pod {
	amounts := func(cpu, memory string) corev1.ResourceList {
		return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse(memory)}
	}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: labels},
		Spec: corev1.PodSpec{
			NodeSelector: map[string]string{nowhere: ""},
			Containers: []corev1.Container{
				{Name: api.UserContainer, Image: nothing, Resources: corev1.ResourceRequirements{Requests: amounts("100m", "64Mi"), Limits: amounts("500m", "256Mi")}},
				{Name: api.QueueProxyContainer, Image: nothing, Resources: corev1.ResourceRequirements{Requests: amounts("25m", "50Mi")}},
			},
		},
	}
}

// createUnscheduled creates an unscheduled pod, which is deleted with its namespace.
func createUnscheduled(ctx context.Context, t *testing.T, namespace, name string, labels map[string]string) *corev1.Pod {
	t.Helper()
	var pod *corev1.Pod
	// The namespace's ServiceAccount takes a moment.
	eventually(t, time.Minute, "pod "+name, func() (err error) {
		pod, err = kube.CoreV1().Pods(namespace).Create(ctx, unscheduled(namespace, name, labels), metav1.CreateOptions{})
		return err
	})
	return pod
}
