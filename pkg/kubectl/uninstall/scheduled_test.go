package uninstall

import (
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/clock"
	"knative.dev/serving/pkg/apis/serving"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"libra.dev/libra/pkg/settings"
)

func revisionOf(name, scheduler string, state servingv1.RoutingState) *servingv1.Revision {
	r := &servingv1.Revision{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, Labels: map[string]string{}}}
	if state != servingv1.RoutingStateUnset {
		r.Labels[serving.RoutingStateLabelKey] = string(state)
	}
	r.Spec.SchedulerName = scheduler
	return r
}

// Their next pods would wait for ever, which nobody would see before a function scales up.
func TestFunctionsThatNameTheSchedulerKeepLibra(t *testing.T) {
	scheme := runtime.NewScheme()
	utilruntime.Must(clientgoscheme.AddToScheme(scheme))
	utilruntime.Must(servingv1.AddToScheme(scheme))
	var many []client.Object
	for i := range namedMost + 2 {
		many = append(many, revisionOf(fmt.Sprintf("many-%02d", i), scheduler, servingv1.RoutingStateActive))
	}
	for name, tc := range map[string]struct {
		revisions []client.Object
		says, not []string
	}{
		"routed, about to be, and not any more": {
			revisions: []client.Object{
				revisionOf("routed", scheduler, servingv1.RoutingStateActive), revisionOf("new", scheduler, servingv1.RoutingStatePending),
				revisionOf("unset", scheduler, servingv1.RoutingStateUnset), revisionOf("old", scheduler, servingv1.RoutingStateReserve),
				revisionOf("plain", "", servingv1.RoutingStateActive),
			},
			says: []string{"nothing was changed", "3 Revisions", "shop/routed", "shop/new", "shop/unset. ", "schedulerName"},
			not:  []string{"shop/old", "shop/plain"},
		},
		"more than can be named": {
			revisions: many,
			says:      []string{fmt.Sprint(len(many), " Revisions"), "shop/many-09 and 2 more"},
			not:       []string{"shop/many-10"},
		},
	} {
		for _, dryRun := range []bool{false, true} {
			t.Run(fmt.Sprint(name, ", dry run ", dryRun), func(t *testing.T) {
				config := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: settings.Namespace, Name: settings.ConfigMap}}
				kube := fake.NewClientBuilder().WithScheme(scheme).WithObjects(config).WithObjects(tc.revisions...).Build()
				err := Uninstall{Client: kube, Clock: clock.RealClock{}, Out: io.Discard, Timeout: time.Nanosecond, DryRun: dryRun}.Run(t.Context())
				if err == nil {
					t.Fatal("it goes on")
				}
				for _, words := range tc.says {
					if !strings.Contains(err.Error(), words) {
						t.Errorf("the error is %q, want %q in it", err, words)
					}
				}
				for _, words := range tc.not {
					if strings.Contains(err.Error(), words) {
						t.Errorf("the error is %q, want no %q in it", err, words)
					}
				}
				if err := kube.Get(t.Context(), client.ObjectKeyFromObject(config), config); err != nil || config.Data["max-mode"] != "" {
					t.Errorf("max-mode is %q after a refusal (%v), want it as it was", config.Data["max-mode"], err)
				}
			})
		}
	}
}

func TestFunctionsOfOtherSchedulersDoNotKeepLibra(t *testing.T) {
	scheme := runtime.NewScheme()
	utilruntime.Must(servingv1.AddToScheme(scheme))
	kube := fake.NewClientBuilder().WithScheme(scheme).WithObjects(
		revisionOf("plain", "", servingv1.RoutingStateActive), revisionOf("other", "volcano", servingv1.RoutingStateActive),
		revisionOf("old", scheduler, servingv1.RoutingStateReserve)).Build()
	if err := (Uninstall{Client: kube}).refuseScheduled(t.Context()); err != nil {
		t.Error(err)
	}
}
