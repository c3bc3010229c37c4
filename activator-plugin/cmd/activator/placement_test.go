package main

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/metric/noop"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/clock"
	"knative.dev/pkg/injection/clients/dynamicclient"
	_ "knative.dev/pkg/system/testing"
	"knative.dev/serving/pkg/apis/serving"

	"libra.dev/libra/activator-plugin/invocation"
	"libra.dev/libra/activator-plugin/placement"
	"libra.dev/libra/activator-plugin/placement/tapp"
	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/api/v1alpha1"
)

// withDynamic returns a context with a client for a cluster that has these policies.
func withDynamic(ctx context.Context, policies ...runtime.Object) context.Context {
	kinds := map[schema.GroupVersionResource]string{}
	for resource, kind := range map[string]string{
		"placementpolicies": "PlacementPolicy", "clusterplacementpolicies": "ClusterPlacementPolicy", "harvestpolicies": "HarvestPolicy",
	} {
		kinds[v1alpha1.GroupVersion.WithResource(resource)] = kind + "List"
	}
	return context.WithValue(ctx, dynamicclient.Key{}, dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), kinds, policies...))
}

// policiesOf returns the policies of a cluster.
func policiesOf(ctx context.Context, t *testing.T, kube kubernetes.Interface) *tapp.Policies {
	t.Helper()
	p, err := newPolicies(ctx, kube, "activator-0", nil, nil, noop.NewMeterProvider(), zap.NewNop().Sugar())
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// onNodeA returns policies of a cluster with one policy, which allows the node a.
func onNodeA(t *testing.T, name string) (context.Context, *tapp.Policies) {
	t.Helper()
	var spec any = map[string]any{"blocks": []any{map[string]any{"workers": []any{map[string]any{"node": "a"}}}}}
	policy := &unstructured.Unstructured{Object: map[string]any{"spec": spec}}
	policy.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("ClusterPlacementPolicy"))
	policy.SetName(name)
	policy.SetGeneration(1)
	ctx := withDynamic(t.Context(), policy)
	return ctx, policiesOf(ctx, t, fake.NewClientset())
}

// Once start has returned, the existing policies are in force.
func TestPlacementPoliciesAreInForceFromTheStart(t *testing.T) {
	ctx, p := onNodeA(t, "gpu")
	if p.Of("shop", "gpu") != nil {
		t.Error("a policy is in force before it is followed")
	}
	startPolicies(ctx, p, zap.NewNop().Sugar())
	if p.Of("shop", "gpu") == nil {
		t.Error("the policy is not in force")
	}
	if p.Of("shop", "") != nil {
		t.Error("there is a policy of which nobody has said anything")
	}
}

// A request is not refused because its pod has not been read yet, either.
func TestTheStartWaitsForPods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, p := onNodeA(t, v1alpha1.DefaultName)
		kube := fake.NewClientset(&corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "query", Labels: map[string]string{
				api.EnabledLabel: api.EnabledValue, serving.RevisionLabelKey: "query-00001",
			}},
			Spec: corev1.PodSpec{NodeName: "a"},
			Status: corev1.PodStatus{
				Phase: corev1.PodRunning, PodIPs: []corev1.PodIP{{IP: "10.0.0.1"}},
				Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
			},
		})
		kube.PrependReactor("list", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
			select {
			case <-time.After(placementTimeout / 2):
			case <-ctx.Done():
			}
			return false, nil, nil
		})
		pods, err := invocation.NewPods(kube, zap.NewNop().Sugar())
		if err != nil {
			t.Fatal(err)
		}
		manager, err := invocation.NewManager(invocation.Options{
			Clock: clock.RealClock{}, Logger: zap.NewNop().Sugar(), MeterProvider: noop.NewMeterProvider(), Pods: pods, Programs: p,
		})
		if err != nil {
			t.Fatal(err)
		}
		go pods.Run(ctx)
		startPolicies(ctx, p, zap.NewNop().Sugar(), pods.HasSynced)
		revision := manager.Slots().Of(types.NamespacedName{Namespace: "shop", Name: "query-00001"}, 1)
		if c := revision.Take("10.0.0.1:8012", placement.Ask{Program: p.Of("shop", ""), Now: time.Now()}); c.Outcome != placement.NoChoice {
			t.Errorf("a request to the only pod is %s, want %s", c.Outcome, placement.NoChoice)
		}
	})
}

func TestTheStartWaitsNoLongerThanItMay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, p := onNodeA(t, "gpu")
		core, logs := observer.New(zap.WarnLevel)
		began := time.Now()
		startPolicies(ctx, p, zap.New(core).Sugar(), func() bool { return false })
		if waited := time.Since(began); waited != placementTimeout || logs.Len() != 1 {
			t.Errorf("it starts after %v and logs %v; want %v, and that once", waited, logs.All(), placementTimeout)
		}
	})
}
