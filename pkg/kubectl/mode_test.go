package kubectl

import (
	"context"
	"strings"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"knative.dev/pkg/apis"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/api/v1alpha1"
	"libra.dev/libra/pkg/apiservertest"
	"libra.dev/libra/pkg/settings"
)

// modeOf returns the mode annotation of a Service.
func (p *plane) modeOf(namespace, name string) (mode string, set bool) {
	p.Helper()
	var s servingv1.Service
	p.do(p.client.Get(p.Context(), client.ObjectKey{Namespace: namespace, Name: name}, &s))
	mode, set = s.Spec.Template.Annotations[api.ModeAnnotation]
	return mode, set
}

func (p *plane) expectMode(namespace, name, want string) {
	p.Helper()
	if got, _ := p.modeOf(namespace, name); got != want {
		p.Errorf("the annotation of %s/%s is %q, want %q", namespace, name, got, want)
	}
}

func harvestPolicy(namespace string) *v1alpha1.HarvestPolicy {
	return &v1alpha1.HarvestPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: v1alpha1.HarvestPolicyName}}
}

// expectPolicy expects a mode in the HarvestPolicy, or that there is none.
func (p *plane) expectPolicy(namespace, want string) {
	p.Helper()
	policy := harvestPolicy(namespace)
	got := "none"
	if err := p.client.Get(p.Context(), client.ObjectKeyFromObject(policy), policy); client.IgnoreNotFound(err) != nil {
		p.Fatal(err)
	} else if err == nil {
		got = string(policy.Spec.Mode)
	}
	if got != want {
		p.Errorf("the HarvestPolicy of %s has the mode %q, want %q", namespace, got, want)
	}
}

func (p *plane) modes() {
	p.namespace("modes")
	p.service("modes", "cart", nil)
	p.service("modes", "thumb", map[string]string{api.ModeAnnotation: "observe"})
	other := p.service("modes", "other", nil)
	delete(other.Spec.Template.Labels, api.EnabledLabel)
	p.do(p.client.Update(p.Context(), other))

	for _, strategy := range []string{"client", "server"} {
		p.prints("Knative makes a new revision ("+strategy+" dry run)", "mode", "cart", "lend", "-n", "modes", "--dry-run", strategy)
		p.expectMode("modes", "cart", "")
	}
	p.golden("mode", "mode", "cart", "lend", "-n", "modes", "--timeout", "0s")
	p.expectMode("modes", "cart", "lend")
	p.prints("unchanged", "mode", "cart", "lend", "-n", "modes", "--timeout", "0s")

	for _, strategy := range []string{"client", "server"} {
		p.prints("without a rollout ("+strategy+" dry run)", "mode", "full", "-n", "modes", "--dry-run", strategy)
		p.expectPolicy("modes", "none")
	}
	p.golden("mode-namespace", "mode", "full", "-n", "modes")
	p.expectPolicy("modes", "full")
	for name, want := range map[string]string{"cart": "lend", "thumb": "observe", "other": ""} {
		p.expectMode("modes", name, want)
	}
	p.prints("unchanged", "mode", "full", "-n", "modes")
	p.do(p.client.Patch(p.Context(), harvestPolicy("modes"), mergePatch(map[string]any{"spec": map[string]any{"maxMode": "observe", "minLoan": "1s"}})))
	p.prints("no more than observe", "mode", "lend", "-n", "modes")
	p.prints("default", "mode", "default", "-n", "modes")
	p.expectPolicy("modes", "")
	p.do(p.client.Delete(p.Context(), harvestPolicy("modes")))
	p.namespace("empty")
	p.prints("No Service in the namespace has opted in yet", "mode", "lend", "-n", "empty")
	p.expectPolicy("empty", "lend")
	p.prints("default", "mode", "cart", "default", "-n", "modes", "--timeout", "0s")
	if _, set := p.modeOf("modes", "cart"); set {
		p.Error("default has left the annotation")
	}

	p.refuses("has not opted in", "mode", "other", "lend", "-n", "modes")
	p.refuses("no functions: name a Service", "mode", "lend")
	p.refuses(`mode is "much", want observe, lend, full, default`, "mode", "cart", "much", "-n", "modes")
	p.refuses(`--dry-run is "maybe"`, "mode", "cart", "lend", "-n", "modes", "--dry-run", "maybe")

	named := p.service("modes", "named", nil)
	named.Spec.Template.Name = "named-one"
	p.do(p.client.Update(p.Context(), named))
	out, err := p.run("mode", "named", "lend", "-n", "modes")
	if err == nil || !strings.Contains(out, "its template names the revision named-one") {
		p.Errorf("with a named revision the error is %v, after\n%s", err, out)
	}
	p.expectMode("modes", "named", "")
}

func (p *plane) allModes() {
	maxMode := func() string {
		var cm corev1.ConfigMap
		p.do(p.client.Get(p.Context(), client.ObjectKey{Namespace: settings.Namespace, Name: settings.ConfigMap}, &cm))
		return cm.Data["max-mode"]
	}
	p.prints("server dry run", "mode", "--all", "observe", "--dry-run=server")
	if got := maxMode(); got != "" {
		p.Errorf("after a dry run max-mode is %q", got)
	}
	p.golden("mode-all", "mode", "--all", "observe")
	if got := maxMode(); got != "observe" {
		p.Errorf("max-mode is %q, want observe", got)
	}
	p.prints("default   full   observe    in force", "mode", "full", "-n", settings.Namespace)
	p.namespace("bounded")
	p.service("bounded", "cart", nil)
	p.prints("the cluster or the namespace allows it no more than observe", "mode", "cart", "full", "-n", "bounded", "--timeout", "0s")
	p.do(p.client.Patch(p.Context(), harvestPolicy(settings.Namespace), mergePatch(map[string]any{"spec": map[string]any{"maxMode": "lend"}})))
	p.prints("HarvestPolicy libra-system/default allows no more than lend", "mode", "--all", "default")
	if got := maxMode(); got != "" {
		p.Errorf("max-mode is %q, want none", got)
	}
	p.do(p.client.Patch(p.Context(), harvestPolicy(settings.Namespace), mergePatch(map[string]any{"spec": map[string]any{"maxMode": nil}})))
	p.refuses("leave SERVICE out", "mode", "cart", "full", "--all")
	// The cluster's default is full, until config-libra counts again.
	p.prints("observe    in force", "mode", "observe", "-n", settings.Namespace)
	p.prints("default   observe    in force", "mode", "default", "-n", settings.Namespace)
	p.prints("This is the cluster's default", "mode", "default", "-n", settings.Namespace)
}

// modesOfAdmin sets modes as somebody who may change everything in a namespace, and read nothing outside.
func (p *plane) modesOfAdmin() {
	const user = "jane"
	p.namespace("admins")
	p.service("admins", "cart", nil)
	in := metav1.ObjectMeta{Namespace: "admins", Name: "admin"}
	p.create(&rbacv1.Role{ObjectMeta: in, Rules: []rbacv1.PolicyRule{{APIGroups: []string{"*"}, Resources: []string{"*"}, Verbs: []string{"*"}}}})
	p.create(&rbacv1.RoleBinding{ObjectMeta: in, Subjects: []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: user}},
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: in.Name}})
	apiservertest.AwaitRight(p.T, p.config, user, authorizationv1.ResourceAttributes{Namespace: "admins", Verb: "create", Group: v1alpha1.GroupVersion.Group, Resource: "harvestpolicies"})
	p.prints("The mode in force is not known: ", "mode", "observe", "-n", "admins", "--as", user)
	p.expectPolicy("admins", "observe")
	p.prints("The mode in force is not known: ", "mode", "cart", "lend", "-n", "admins", "--as", user, "--timeout", "0s")
	p.expectMode("admins", "cart", "lend")
	p.refuses("forbidden", "mode", "--all", "observe", "--as", user)
}

// rollouts has somebody do the work of Knative.
func (p *plane) rollouts() {
	p.namespace("rollouts")
	ready := p.service("rollouts", "ready", nil)
	p.knative(ready, func(s *servingv1.Service) {
		s.Status.LatestCreatedRevisionName, s.Status.LatestReadyRevisionName = "ready-00002", "ready-00002"
		s.Status.Conditions = append(s.Status.Conditions, apis.Condition{Type: servingv1.ServiceConditionConfigurationsReady, Status: corev1.ConditionTrue})
	})
	p.prints("revision ready-00002 is ready, and its requests have the mode", "mode", "ready", "lend", "-n", "rollouts")

	broken := p.service("rollouts", "broken", nil)
	p.knative(broken, func(s *servingv1.Service) {
		s.Status.LatestCreatedRevisionName, s.Status.LatestReadyRevisionName = "broken-00002", "broken-00001"
		s.Status.Conditions = append(s.Status.Conditions, apis.Condition{Type: servingv1.ServiceConditionConfigurationsReady, Status: corev1.ConditionFalse, Message: "no such image"})
	})
	out, err := p.run("mode", "broken", "lend", "-n", "rollouts")
	if err == nil || !strings.Contains(out, "no such image") {
		p.Errorf("of a revision that fails the error is %v, after\n%s", err, out)
	}

	// Then Knative reports the revision before as the latest, both created and ready.
	refused := p.service("rollouts", "refused", nil)
	p.knative(refused, func(s *servingv1.Service) {
		s.Status.LatestCreatedRevisionName, s.Status.LatestReadyRevisionName = "refused-00001", "refused-00001"
		s.Status.Conditions = append(s.Status.Conditions, apis.Condition{Type: servingv1.ServiceConditionConfigurationsReady, Status: corev1.ConditionFalse, Message: "a policy forbids it"})
	})
	out, err = p.run("mode", "refused", "lend", "-n", "rollouts")
	if err == nil || !strings.Contains(out, "a policy forbids it") {
		p.Errorf("of a revision that cannot be created the error is %v, after\n%s", err, out)
	}

	p.service("rollouts", "slow", nil)
	out, err = p.run("mode", "slow", "lend", "-n", "rollouts", "--timeout", "1s")
	if err == nil || !strings.Contains(out, "not ready after 1s") {
		p.Errorf("of a revision that does not come the error is %v, after\n%s", err, out)
	}
}

// knative writes the status of a Service that has another generation.
func (p *plane) knative(of *servingv1.Service, to func(*servingv1.Service)) {
	p.Helper()
	ctx, cancel := context.WithTimeout(p.Context(), 30*time.Second)
	done := make(chan struct{})
	p.Cleanup(func() { cancel(); <-done })
	was := of.Generation
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			var s servingv1.Service
			if err := p.client.Get(ctx, client.ObjectKeyFromObject(of), &s); err == nil && s.Generation > was {
				to(&s)
				s.Status.ObservedGeneration = s.Generation
				if p.client.Status().Update(ctx, &s) == nil {
					return
				}
			}
			time.Sleep(10 * time.Millisecond)
		}
	}()
}
