package main

import (
	"context"
	"testing"

	"go.opentelemetry.io/otel/metric/noop"
	"go.uber.org/zap"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	"knative.dev/pkg/injection/clients/dynamicclient"
	_ "knative.dev/pkg/system/testing"

	"libra.dev/libra/pkg/api/v1alpha1"
)

// Once start has returned, the policies that there are are in force.
func TestPlacementPoliciesAreInForceFromTheStart(t *testing.T) {
	var spec any = map[string]any{"blocks": []any{map[string]any{"workers": []any{map[string]any{"node": "a"}}}}}
	policy := &unstructured.Unstructured{Object: map[string]any{"spec": spec}}
	policy.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("ClusterPlacementPolicy"))
	policy.SetName("gpu")
	policy.SetGeneration(1)
	client := dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[schema.GroupVersionResource]string{
		v1alpha1.GroupVersion.WithResource("placementpolicies"):        "PlacementPolicyList",
		v1alpha1.GroupVersion.WithResource("clusterplacementpolicies"): "ClusterPlacementPolicyList",
	}, policy)
	ctx := context.WithValue(t.Context(), dynamicclient.Key{}, client)
	logger := zap.NewNop().Sugar()
	p, err := newPolicies(ctx, fake.NewClientset(), "activator-0", nil, nil, noop.NewMeterProvider(), logger)
	if err != nil {
		t.Fatal(err)
	}
	if p.programs().Of("shop", "gpu") != nil {
		t.Error("a policy is in force before it is followed")
	}
	p.start(ctx, logger)
	if p.programs().Of("shop", "gpu") == nil {
		t.Error("the policy is not in force")
	}
	if p.programs().Of("shop", "") != nil {
		t.Error("there is a policy of which nobody has said anything")
	}
}

func TestWithoutAClientThereAreNoPrograms(t *testing.T) {
	logger := zap.NewNop().Sugar()
	p, err := newPolicies(t.Context(), fake.NewClientset(), "activator-0", nil, nil, noop.NewMeterProvider(), logger)
	if err != nil {
		t.Fatal(err)
	}
	p.start(t.Context(), logger)
	if p.programs() != nil {
		t.Errorf("the programs are %v, want none, which is not a pointer to none", p.programs())
	}
}
