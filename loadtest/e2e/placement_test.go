//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"knative.dev/serving/pkg/apis/autoscaling"
	"knative.dev/serving/pkg/apis/serving"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"
	kubeclient "sigs.k8s.io/controller-runtime/pkg/client"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/api/v1alpha1"
)

const (
	// inForceWithin is far longer than it takes until all requests follow an edit, which bench-place
	// measures.
	inForceWithin = time.Minute
	// computed is more CPU time than a function's pod uses to answer readiness probes, and less than one
	// request with chosenBody takes.
	computed = 10 * time.Millisecond
	// round is how many requests it takes for chance to leave out one of two pods in only one of 512 rounds.
	round = 10
)

var chosenBody = text(3, 1<<20)

// A request that a policy leaves no place for is answered with 503, and an edit of the policy decides about
// the requests after it. Without a policy, the setting chooses among the pods.
func TestPlacementIsAsPoliciesAndSettingsSay(t *testing.T) {
	ctx := t.Context()
	awaitOneActivator(ctx, t)
	namespace := newNamespace(ctx, t, "placed", api.SourceNode)
	const tag = "nearby"
	service := deployPlaced(ctx, t, namespace, tag)
	functions := functionsOf(ctx, t, namespace, service, 2)

	t.Run("policy", func(t *testing.T) { followsPolicy(t, namespace, service, tag) })
	t.Run("round-robin", func(t *testing.T) {
		chosenBy(t, "round-robin", namespace, service, functions, func(used []time.Duration) error {
			if slices.Min(used) < computed {
				return fmt.Errorf("of two pods in turn one had no request: they used %v", used)
			}
			return nil
		})
	})
	t.Run("hash", func(t *testing.T) {
		chosenBy(t, "hash", namespace, service, functions, func(used []time.Duration) error {
			// If both pods are on one node, either may be chosen.
			if onSeveralNodes(functions) && (slices.Min(used) >= computed || slices.Max(used) < computed) {
				return fmt.Errorf("requests did not all go to one pod: they used %v", used)
			}
			return nil
		})
	})
}

// awaitOneActivator waits until the activators from before a roll-out have ended: while there are several,
// each has its own pods.
func awaitOneActivator(ctx context.Context, t *testing.T) {
	t.Helper()
	eventually(t, 3*time.Minute, "end of all activators but one", func() error {
		pods, err := kube.CoreV1().Pods(servingNamespace).List(ctx, metav1.ListOptions{LabelSelector: "app=activator"})
		if err == nil && len(pods.Items) != 1 {
			err = fmt.Errorf("there are %d", len(pods.Items))
		}
		return err
	})
}

func onSeveralNodes(functions []function) bool {
	return slices.ContainsFunc(functions, func(f function) bool { return f.node != functions[0].node })
}

// deployPlaced deploys a function with two pods and the label of a policy, and returns its name.
func deployPlaced(ctx context.Context, t *testing.T, namespace, tag string) string {
	t.Helper()
	revision := deployChanged(ctx, t, namespace, "compression", "placed", func(template *servingv1.RevisionTemplateSpec) {
		for key, value := range map[string]string{
			autoscaling.MinScaleAnnotationKey: "2", autoscaling.MaxScaleAnnotationKey: "2", api.ModeAnnotation: string(api.ModeFull),
		} {
			metav1.SetMetaDataAnnotation(&template.ObjectMeta, key, value)
		}
		metav1.SetMetaDataLabel(&template.ObjectMeta, api.PlacementLabel, tag)
		template.Spec.ContainerConcurrency = ptr.To[int64](4)
	})
	return revision.Labels[serving.ServiceLabelKey]
}

func followsPolicy(t *testing.T, namespace, service, tag string) {
	ctx := t.Context()
	objects := objectClient(t)
	policy := &v1alpha1.PlacementPolicy{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: tag},
		Spec: v1alpha1.PlacementPolicySpec{
			Blocks:   []v1alpha1.Block{{Workers: []v1alpha1.Worker{{Node: "no-such-node"}}}},
			Followup: v1alpha1.FollowupFail,
		},
	}
	if err := objects.Create(ctx, policy); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := objects.Delete(context.WithoutCancel(ctx), policy); kubeclient.IgnoreNotFound(err) != nil {
			t.Errorf("removing the policy: %v", err)
		}
	})
	refusedBefore := placementChoices(ctx, t, "placement_policy")["refused"]
	eventually(t, inForceWithin, "refusal by the policy", func() error {
		status, reason, err := answerOf(ctx, namespace, service)
		if err == nil && (status != http.StatusServiceUnavailable || !strings.Contains(reason, tag)) {
			err = fmt.Errorf("it answers %d, %s: %q", status, api.ReasonHeader, reason)
		}
		return err
	})
	if refused := placementChoices(ctx, t, "placement_policy")["refused"]; refused <= refusedBefore {
		t.Errorf("%v requests were counted as refused, and %v before", refused, refusedBefore)
	}
	eventually(t, inForceWithin, "status of the policy", func() error {
		if err := objects.Get(ctx, kubeclient.ObjectKeyFromObject(policy), policy); err != nil {
			return err
		}
		s := policy.Status
		if !meta.IsStatusConditionTrue(s.Conditions, v1alpha1.Accepted) || !slices.Equal(s.UnmatchedBlocks, []int32{0}) || len(s.Activators) == 0 {
			return fmt.Errorf("it is %+v", s)
		}
		return nil
	})
	expectEvent(ctx, t, namespace, tag, "BlocksMatchNoNode")

	policy.Spec.Followup = v1alpha1.FollowupDefault
	if err := objects.Patch(ctx, policy, kubeclient.RawPatch(types.MergePatchType, []byte(`{"spec": {"followup": "default"}}`))); err != nil {
		t.Fatal(err)
	}
	eventually(t, inForceWithin, "answer by the default", func() error {
		status, reason, err := answerOf(ctx, namespace, service)
		if err == nil && status != http.StatusOK {
			err = fmt.Errorf("it answers %d, %s: %q", status, api.ReasonHeader, reason)
		}
		return err
	})
	eventually(t, inForceWithin, "generation in force", func() error {
		err := objects.Get(ctx, kubeclient.ObjectKeyFromObject(policy), policy)
		if err == nil && !slices.ContainsFunc(policy.Status.Activators, func(a v1alpha1.ActivatorStatus) bool { return a.CompiledGeneration == policy.Generation }) {
			err = fmt.Errorf("activators have %+v, and the policy is of generation %d", policy.Status.Activators, policy.Generation)
		}
		return err
	})
}

// chosenBy sets the policy that chooses pods. It expects that soon a round of requests uses CPU in the
// function's pods as it should, and that the choices are counted.
func chosenBy(t *testing.T, policy, namespace, service string, functions []function, want func(used []time.Duration) error) {
	ctx := t.Context()
	setSetting(ctx, t, "placement", fmt.Sprintf("%q", policy))
	t.Cleanup(func() { setSetting(context.WithoutCancel(ctx), t, "placement", "null") })
	awaitChoicesBy(ctx, t, policy, namespace, service)
	before := placementChoices(ctx, t, policy)
	eventually(t, inForceWithin, "choices by "+policy, func() error {
		used := make([]time.Duration, len(functions))
		for i, f := range functions {
			used[i] = -usedCPU(t, f)
		}
		for range round {
			if _, err := sendIn(ctx, namespace, service, chosenBody); err != nil {
				t.Fatal(err)
			}
		}
		for i, f := range functions {
			used[i] += usedCPU(t, f)
		}
		return want(used)
	})
	after := placementChoices(ctx, t, policy)
	if chosen := after["moved"] + after["kept"] - before["moved"] - before["kept"]; chosen < round {
		t.Errorf("%v choices by %s were counted for %d requests: %v, and %v before", chosen, policy, round, after, before)
	}
}

// awaitChoicesBy sends requests until one is counted as placed by the policy.
func awaitChoicesBy(ctx context.Context, t *testing.T, policy, namespace, service string) {
	t.Helper()
	before := placementChoices(ctx, t, policy)
	eventually(t, inForceWithin, "a first choice by "+policy, func() error {
		if _, err := sendIn(ctx, namespace, service, chosenBody); err != nil {
			return err
		}
		if after := placementChoices(ctx, t, policy); maps.Equal(before, after) {
			return errors.New("none was counted")
		}
		return nil
	})
}

// objectClient returns a client for objects of Libra's own kinds.
func objectClient(t *testing.T) kubeclient.Client {
	t.Helper()
	scheme := runtime.NewScheme()
	err := v1alpha1.AddToScheme(scheme)
	c, clientErr := kubeclient.New(config, kubeclient.Options{Scheme: scheme})
	if err := errors.Join(err, clientErr); err != nil {
		t.Fatal(err)
	}
	return c
}

// answerOf returns the status that a request gets and, if Libra refused it, the reason.
func answerOf(ctx context.Context, namespace, service string) (status int, reason string, err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, gateway, bytes.NewReader([]byte("hello")))
	if err != nil {
		return 0, "", err
	}
	request.Host = service + "." + namespace + "." + *domain
	response, err := client.Do(request)
	if err != nil {
		return 0, "", err
	}
	defer response.Body.Close()
	_, err = io.Copy(io.Discard, response.Body)
	return response.StatusCode, response.Header.Get(api.ReasonHeader), err
}

// expectEvent waits for an Event about an object.
func expectEvent(ctx context.Context, t *testing.T, namespace, object, reason string) {
	t.Helper()
	eventually(t, inForceWithin, "Event "+reason, func() error {
		_, err := eventOf(ctx, namespace, object, reason)
		return err
	})
}

// eventOf returns an Event about an object.
func eventOf(ctx context.Context, namespace, object, reason string) (corev1.Event, error) {
	events, err := kube.CoreV1().Events(namespace).List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.name=" + object})
	if err != nil {
		return corev1.Event{}, err
	}
	var there []string
	for _, e := range events.Items {
		if e.Reason == reason {
			return e, nil
		}
		there = append(there, e.Reason)
	}
	return corev1.Event{}, fmt.Errorf("there are only %q", there)
}

// placementChoices returns how many requests all activators have placed by a policy, by outcome.
func placementChoices(ctx context.Context, t *testing.T, policy string) map[string]float64 {
	t.Helper()
	counts := map[string]float64{}
	pods, err := kube.CoreV1().Pods(servingNamespace).List(ctx, metav1.ListOptions{LabelSelector: "app=activator"})
	if err != nil {
		t.Fatal(err)
	}
	for _, pod := range pods.Items {
		if pod.DeletionTimestamp != nil {
			continue
		}
		for _, m := range metricOfActivator(ctx, t, pod, "libra_placement_choices_total").GetMetric() {
			if labelOf(m, "policy") == policy {
				counts[labelOf(m, "outcome")] += m.GetCounter().GetValue()
			}
		}
	}
	return counts
}

func metricOfActivator(ctx context.Context, t *testing.T, pod corev1.Pod, name string) *dto.MetricFamily {
	t.Helper()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://%s:%d/metrics", pod.Status.PodIP, api.ActivatorMetricsPort), nil)
	if err != nil {
		t.Fatal(err)
	}
	return metricOf(t, client, request, name)
}

// metricOf returns one of the metrics that a part exports, or nil if it has none of the name.
func metricOf(t *testing.T, c *http.Client, request *http.Request, name string) *dto.MetricFamily {
	t.Helper()
	response, err := c.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s", request.URL, response.Status)
	}
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(response.Body)
	if err != nil {
		t.Fatalf("%s: %v", request.URL, err)
	}
	return families[name]
}

func labelOf(m *dto.Metric, name string) string {
	for _, l := range m.GetLabel() {
		if l.GetName() == name {
			return l.GetValue()
		}
	}
	return ""
}
