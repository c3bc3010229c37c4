// Package uninstall removes Libra from a cluster. It first restores everything that Libra has changed. Then it
// deletes Libra's own objects, in an order in which each part that restores something outlives the need for it.
package uninstall

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"libra.dev/libra/pkg/kubectl/swap"
	"libra.dev/libra/pkg/settings"
)

// Job is the name of the Job of manifests/uninstall, of its namespace and of its rights.
const Job = "libra-uninstall"

// checkNamespace is the namespace of the Job of manifests/check, if somebody has applied it.
const checkNamespace = "libra-check"

const lookEvery = time.Second

// Uninstall is one removal.
type Uninstall struct {
	Client client.Client
	Out    io.Writer
	// Timeout bounds each wait.
	Timeout time.Duration
	DryRun  bool
	// DeletePolicies deletes placement policies and other objects that users wrote, too.
	DeletePolicies bool
	// Labels removes Libra's labels from namespaces and nodes.
	Labels bool
	// WithJob deletes the Job's namespace and rights at the end.
	WithJob bool
}

// Run removes Libra, and says what it leaves. It can be run again after a failure.
func (u Uninstall) Run(ctx context.Context) error {
	if err := u.refuseScheduled(ctx); err != nil {
		return err
	}
	activator := swap.Swap{Client: u.Client, Out: u.Out, Timeout: u.Timeout, DryRun: u.DryRun}
	for i, step := range []step{
		{"stop new loans, with max-mode observe in " + settings.ConfigMap, u.observe},
		{"wait until every pod has what it is owed", u.awaitWhole},
		{"restore the stock activator", activator.Remove},
		{"wait until Libra's activators have finished their requests", u.awaitActivators},
		// The resizer may have heard only meanwhile that it is to change nothing.
		{"look again whether every pod has what it is owed", u.awaitWhole},
		{"remove the resizer", u.remover(&appsv1.Deployment{}, settings.Namespace, settings.Resizer)},
		{"remove the agents, and their files on the nodes", u.remover(&appsv1.DaemonSet{}, settings.AgentNamespace, settings.Agent)},
		{"remove the namespace of the agents", u.remover(&corev1.Namespace{}, "", settings.AgentNamespace)},
		{"remove the namespace of everything else", u.remover(&corev1.Namespace{}, "", settings.Namespace)},
	} {
		if err := u.take(ctx, step); err != nil {
			if i > 0 && !u.DryRun {
				err = errors.Join(err, errObserves)
			}
			return err
		}
	}
	// No part of Libra runs any more, and these steps do not wait for one another.
	var errs []error
	for _, step := range []step{
		{"remove rights and policies", u.removeShipped},
		{"remove definitions", u.removeDefinitions},
		{"remove labels, if --labels is set", u.labels},
		{"remove the check's Job", u.removeCheck},
	} {
		errs = append(errs, u.take(ctx, step))
	}
	if err := errors.Join(append(errs, u.tellLeft(ctx))...); err != nil || !u.WithJob || u.DryRun {
		return err
	}
	return u.removeJob(ctx)
}

// errObserves says what the first step has changed for functions, and goes with the error of a later one.
var errObserves = errors.New("until this is run again, Libra is still there and only observes. To let it act instead, set max-mode again to what it was: kubectl libra mode --all lend|full|default")

type step struct {
	what string
	do   func(context.Context) error
}

func (u Uninstall) take(ctx context.Context, s step) error {
	u.say("- %s", s.what)
	if err := s.do(ctx); err != nil {
		return fmt.Errorf("%s: %w", s.what, err)
	}
	return nil
}

// removeCheck deletes the namespace of the check's Job, unless it is somebody else's.
func (u Uninstall) removeCheck(ctx context.Context) error {
	var ns corev1.Namespace
	if err := u.Client.Get(ctx, client.ObjectKey{Name: checkNamespace}, &ns); err != nil || ns.Labels[partOf] != libra {
		return client.IgnoreNotFound(err)
	}
	return u.remover(&ns, "", checkNamespace)(ctx)
}

func (u Uninstall) say(format string, args ...any) {
	fmt.Fprintf(u.Out, format+"\n", args...) //nolint:errcheck // nobody is left to be told
}

// observe has Libra restore everything, whatever the functions' annotations say.
func (u Uninstall) observe(ctx context.Context) error {
	if u.DryRun {
		return nil
	}
	config := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: settings.Namespace, Name: settings.ConfigMap}}
	err := u.Client.Patch(ctx, config, client.RawPatch(types.MergePatchType, []byte(`{"data":{"max-mode":"observe"}}`)), client.FieldOwner(swap.FieldManager))
	return client.IgnoreNotFound(err)
}

// awaitActivators waits until those of Libra's activators that drain have ended: they themselves give
// back what their requests hold. Those on a node that is down hold nothing any more.
func (u Uninstall) awaitActivators(ctx context.Context) error {
	return u.await(ctx, func(ctx context.Context) (string, error) {
		up, _, err := u.ending(ctx, swap.Namespace, swap.Name)
		return strings.Join(up, ", "), err
	})
}

// ending names the pods of an app that are being deleted: those on nodes that are up, and those on nodes that are down, whose
// kubelets will not say that they have ended.
func (u Uninstall) ending(ctx context.Context, namespace, app string) (up, down []string, err error) {
	var pods corev1.PodList
	if err := u.Client.List(ctx, &pods, client.InNamespace(namespace), client.MatchingLabels{"app": app}); err != nil {
		return nil, nil, err
	}
	for _, p := range pods.Items {
		if p.DeletionTimestamp == nil {
			continue
		}
		isDown, err := u.isDown(ctx, p.Spec.NodeName)
		switch {
		case err != nil:
			return nil, nil, err
		case isDown:
			down = append(down, fmt.Sprintf("the pod %s on the node %s, which is down: kubectl -n %s delete pod %s --force", p.Name, p.Spec.NodeName, namespace, p.Name))
		default:
			up = append(up, p.Name)
		}
	}
	return up, down, nil
}

// isDown reports whether the control plane does not hear of a node.
func (u Uninstall) isDown(ctx context.Context, name string) (bool, error) {
	if name == "" {
		return false, nil
	}
	var node corev1.Node
	if err := u.Client.Get(ctx, client.ObjectKey{Name: name}, &node); err != nil {
		return false, client.IgnoreNotFound(err)
	}
	return slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionUnknown
	}), nil
}

// remover returns a step that deletes an object and all that it owns, and waits until they are gone.
func (u Uninstall) remover(o client.Object, namespace, name string) func(context.Context) error {
	return func(ctx context.Context) error {
		o.SetNamespace(namespace)
		o.SetName(name)
		if u.DryRun {
			return nil
		}
		if err := u.Client.Delete(ctx, o, client.PropagationPolicy(metav1.DeletePropagationForeground)); err != nil {
			return client.IgnoreNotFound(err)
		}
		return u.await(ctx, func(ctx context.Context) (string, error) {
			err := u.Client.Get(ctx, client.ObjectKeyFromObject(o), o)
			switch ns, is := o.(*corev1.Namespace); {
			case apierrors.IsNotFound(err):
				return "", nil
			case err == nil && is:
				return remaining(ns), nil
			case err != nil:
				return name, err
			}
			_, down, err := u.ending(ctx, namespace, name)
			return strings.Join(append([]string{name}, down...), "; "), err
		})
	}
}

// remaining returns why a namespace that is being deleted is still there.
func remaining(ns *corev1.Namespace) string {
	for _, c := range ns.Status.Conditions {
		if c.Status == corev1.ConditionTrue && c.Type == corev1.NamespaceContentRemaining {
			return ns.Name + ": " + c.Message
		}
	}
	return ns.Name
}

// await waits until nothing is left, and says now and then what is.
func (u Uninstall) await(ctx context.Context, left func(context.Context) (string, error)) error {
	if u.DryRun {
		return nil
	}
	return swap.Await(ctx, lookEvery, u.Timeout, func(left string) { u.say("  waiting: %s", left) }, left)
}

// removeJob deletes the Job's namespace, in which this may be running. The rights for that go with the namespace.
func (u Uninstall) removeJob(ctx context.Context) error {
	var ns corev1.Namespace
	if err := u.Client.Get(ctx, client.ObjectKey{Name: Job}, &ns); err != nil {
		return client.IgnoreNotFound(err)
	}
	owner := fmt.Appendf(nil, `{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"Namespace","name":%q,"uid":%q}]}}`, ns.Name, ns.UID)
	rights, err := u.shipped(ctx)
	if err != nil {
		return err
	}
	for _, o := range rights {
		if o.GetName() != Job {
			continue
		}
		if err := u.Client.Patch(ctx, &o, client.RawPatch(types.MergePatchType, owner), client.FieldOwner(swap.FieldManager)); err != nil {
			return fmt.Errorf("making the namespace %s the owner of %s: %w", Job, describe(&o), err)
		}
	}
	u.say("- remove the namespace %s, and this Job with it", Job)
	return u.Client.Delete(ctx, &ns)
}
