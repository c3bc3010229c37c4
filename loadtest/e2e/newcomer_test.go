//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/utils/ptr"
	"knative.dev/serving/pkg/apis/serving"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"

	"libra.dev/libra/pkg/api"
)

// copyLabel is on the Services that tests deploy.
const copyLabel = "libra.dev/e2e-copy"

// A function that is new to Libra is learned on the running cluster from its requests alone: it becomes
// modelled, and borrows by its model.
func TestNewFunctionIsLearnedFromLiveTraffic(t *testing.T) {
	ctx := t.Context()
	parts := []string{"serving.kserve.io/inferenceservice=libra", resizerSelector, "app=libra-agent", "app=libra-redis"}
	before := map[string][]string{}
	for _, selector := range parts {
		before[selector] = containersOf(ctx, t, selector)
	}

	deployed := deployCopy(ctx, t, "compression", "newcomer", nil)
	newcomer, revision := deployed.Labels[serving.ServiceLabelKey], nameOf(deployed)
	if stage, err := stageOf(ctx, revision); err == nil {
		t.Fatalf("the predictor knows %s before its first request: %s", revision, stage)
	}
	function := find(ctx, t, newcomer)
	watched := watchQuotas(ctx, function)
	defer watched.stop()

	running := startLoadOf(ctx, map[string][]byte{"uploader": uploaderBody, newcomer: compressionBody})
	eventually(t, 3*time.Minute, "model of "+revision, func() error {
		stage, err := stageOf(ctx, revision)
		if err != nil {
			return err
		}
		if stage != "modelled" && stage != "drifted" {
			return fmt.Errorf("it is %s", stage)
		}
		return nil
	})
	eventually(t, 3*time.Minute, "loan to "+newcomer, func() error {
		if most := watched.most(function); most <= function.allocation.CPUMilli {
			return fmt.Errorf("it was never above %dm", function.allocation.CPUMilli)
		}
		return nil
	})
	ended := running.stop(t)
	waitWhole(t, ended.Add(wholeWithin), function)

	for _, selector := range parts {
		if now := containersOf(ctx, t, selector); !slices.Equal(now, before[selector]) {
			t.Errorf("%s was restarted: its containers %s are now %s", selector, before[selector], now)
		}
	}
}

// Where the owner says so, the size of an input is a number in its JSON body, and the function gets that
// body.
func TestSizeInAJSONBodyIsLearned(t *testing.T) {
	ctx := t.Context()
	deployed := deployCopy(ctx, t, "compression", "sized", map[string]string{api.InputSizeAnnotation: "json:/table/rows"})
	name, revision := deployed.Labels[serving.ServiceLabelKey], nameOf(deployed)
	const rows = 1_000_000 // more than a body has bytes
	sent := 0
	eventually(t, 3*time.Minute, "size of the inputs of "+revision, func() error {
		for range 5 {
			sent++
			body, err := json.Marshal(map[string]any{"table": map[string]int{"rows": rows * (1 + sent%4)}, "text": string(text(uint64(sent), 10<<10*(1+sent%4)))})
			if err != nil {
				t.Fatal(err)
			}
			if err := send(ctx, name, body); err != nil {
				t.Fatalf("request failed: %v", err)
			}
		}
		known, err := explanationOf(ctx, revision)
		if err == nil && known.LargestSize != 4*rows {
			err = fmt.Errorf("the largest that was learned from is %d, of %d requests", known.LargestSize, sent)
		}
		return err
	})
}

// deployCopy deploys a Knative Service with the template of another and more annotations, waits until it is
// ready, and returns its revision. The name is new, so that nothing knows it from an earlier run. The Service
// is deleted at the end of the test.
func deployCopy(ctx context.Context, t *testing.T, of, prefix string, annotations map[string]string) *servingv1.Revision {
	t.Helper()
	left, err := knative.ServingV1().Services(functionsNamespace).List(ctx, metav1.ListOptions{LabelSelector: copyLabel})
	if err != nil {
		t.Fatalf("listing what runs that were killed left: %v", err)
	}
	for i := range left.Items {
		removeService(t, functionsNamespace, left.Items[i].Name)
	}
	return deployCopyIn(ctx, t, functionsNamespace, of, prefix, annotations)
}

// deployCopyIn is deployCopy into a namespace.
func deployCopyIn(ctx context.Context, t *testing.T, namespace, of, prefix string, annotations map[string]string) *servingv1.Revision {
	t.Helper()
	return deployChanged(ctx, t, namespace, of, prefix, func(template *servingv1.RevisionTemplateSpec) {
		for key, value := range annotations {
			metav1.SetMetaDataAnnotation(&template.ObjectMeta, key, value)
		}
	})
}

// deployChanged is deployCopyIn with any change of the template.
func deployChanged(ctx context.Context, t *testing.T, namespace, of, prefix string, change func(*servingv1.RevisionTemplateSpec)) *servingv1.Revision {
	t.Helper()
	original, err := knative.ServingV1().Services(functionsNamespace).Get(ctx, of, metav1.GetOptions{})
	if err != nil {
		t.Fatalf("reading the Service %s: %v", of, err)
	}
	services := knative.ServingV1().Services(namespace)
	name := prefix + "-" + rand.String(5)
	service := &servingv1.Service{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{copyLabel: of}}}
	service.Spec.Template = *original.Spec.Template.DeepCopy()
	service.Spec.Template.Name = ""
	change(&service.Spec.Template)
	// Registered before the creation, whose answer may be lost.
	t.Cleanup(func() { removeService(t, namespace, name) })
	if _, err := services.Create(ctx, service, metav1.CreateOptions{}); err != nil {
		t.Fatalf("creating the Service %s: %v", name, err)
	}

	var revision *servingv1.Revision
	eventually(t, 2*time.Minute, "ready Service "+name, func() error {
		service, err := services.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if !service.IsReady() {
			return fmt.Errorf("its conditions are %v", service.Status.Conditions)
		}
		revision, err = knative.ServingV1().Revisions(namespace).Get(ctx, service.Status.LatestReadyRevisionName, metav1.GetOptions{})
		return err
	})
	return revision
}

// nameOf returns the predictor's name for a function.
func nameOf(revision *servingv1.Revision) string { return revision.Namespace + "/" + revision.Name }

// removeService removes a function without the half minute that its pods have to drain.
func removeService(t *testing.T, namespace, name string) {
	t.Helper()
	// The test's own context is done when a clean-up runs.
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	// The error does not matter if there is no Service, and shows below if there is one.
	_ = knative.ServingV1().Services(namespace).Delete(ctx, name, metav1.DeleteOptions{})
	selector := metav1.ListOptions{LabelSelector: serving.ServiceLabelKey + "=" + name}
	eventually(t, 2*time.Minute, "end of the pods of "+name, func() error {
		pods, err := kube.CoreV1().Pods(namespace).List(ctx, selector)
		if err != nil || len(pods.Items) == 0 {
			return err
		}
		err = kube.CoreV1().Pods(namespace).DeleteCollection(ctx, metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}, selector)
		return errors.Join(fmt.Errorf("%d are left", len(pods.Items)), err)
	})
}

// stageOf returns the stage that a function is in.
func stageOf(ctx context.Context, function string) (string, error) {
	known, err := explanationOf(ctx, function)
	return known.Stage, err
}

// explanation is part of what the predictor's explain route says about a function.
type explanation struct {
	Stage       string `json:"stage"`
	LargestSize int64  `json:"largest_size"`
}

func explanationOf(ctx context.Context, function string) (known explanation, err error) {
	body, err := kube.CoreV1().RESTClient().Get().
		AbsPath("/api/v1/namespaces/" + libraNamespace + "/services/libra-predictor:80/proxy/libra/v1/functions/" + function).
		DoRaw(ctx)
	if err != nil {
		return known, fmt.Errorf("explaining %s: %w: %.200s", function, err, body)
	}
	if err := json.Unmarshal(body, &known); err != nil {
		return known, fmt.Errorf("explaining %s: %w: %.200s", function, err, body)
	}
	if known.Stage == "" {
		return known, errors.New("the explanation of " + function + " has no stage")
	}
	return known, nil
}
