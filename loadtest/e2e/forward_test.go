//go:build e2e

package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"knative.dev/serving/pkg/apis/autoscaling"
	"knative.dev/serving/pkg/apis/serving"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"

	"libra.dev/libra/pkg/api"
)

const (
	// farAway is the time that is added to a round trip to the far worker, as in tAPP's test of locality.
	farAway = 80 * time.Millisecond
	// As in that test: the number of users, and of requests that each sends to each of both functions.
	localityUsers    = 4
	requestsOfAUser  = 50
	queryOfNearStore = "2ms" // as long as a near worker's query took there
	rowsOfAReader    = 2000  // fetched 50 at a time
	readerPods       = 4
	atOnceInAReader  = 10
	leastCPUOfServed = 10 * time.Millisecond
	storeName        = "store"
)

// tAPP's case of locality: functions read from a store that is near one worker and far from the other, with an activator
// on each. A policy keeps one function in the zone of the store: the activator outside the zone passes its requests on
// to the one inside. Requests to the other function go where Knative sends them.
func TestAPolicyKeepsAFunctionNearItsData(t *testing.T) {
	if *boxCommand == "" {
		t.Skip("-box says what to move a worker away with")
	}
	ctx := t.Context()
	names := workers(ctx, t)
	near, far := names[0], names[len(names)-1]
	spreadActivators(ctx, t, near, far)
	activators := activatorsOn(ctx, t)
	zone := zoneOf(ctx, t, near)

	namespace := newNamespace(ctx, t, "locality", api.SourceNode)
	applyPolicy(t, namespace, "near-the-data", fmt.Sprintf(
		`{"blocks": [{"controller": {"zone": %q, "topologyTolerance": "none"}, "workers": [{"set": {"matchLabels": {"topology.kubernetes.io/zone": %q}}}]}], "followup": "fail"}`, zone, zone))
	deployStore(ctx, t, namespace, near)
	tagged := deployReader(ctx, t, namespace, map[string]string{api.PlacementLabel: "near-the-data"}, api.ModeFull)
	untagged := deployReader(ctx, t, namespace, nil, api.ModeLend)
	pods := functionsOf(ctx, t, namespace, tagged, readerPods)
	on := map[string]int{}
	for _, f := range pods {
		on[f.node]++
	}
	if on[near] == 0 || on[far] == 0 {
		t.Fatalf("its pods are on %v, want some on %s and %s", on, near, far)
	}
	moveAway(t, far)
	order := orderOf(rowsOfAReader)
	ask := func(function string) time.Duration {
		began := time.Now()
		if _, err := sendIn(ctx, namespace, function, order); err != nil {
			t.Error(err)
		}
		return time.Since(began)
	}
	// Once no request is refused any more, the policy is in force on both activators, and both know each other.
	eventually(t, 2*time.Minute, "answers to all requests", func() error {
		for range 10 {
			if _, err := sendIn(ctx, namespace, tagged, orderOf(1)); err != nil {
				return err
			}
		}
		return nil
	})
	forwardedBefore := map[string]float64{}
	for node, pod := range activators {
		forwardedBefore[node] = forwards(ctx, t, pod)["forwarded"]
	}
	usedBefore := map[string]time.Duration{}
	for _, f := range pods {
		usedBefore[f.pod] = usedCPU(t, f)
	}

	var mu sync.Mutex
	took := map[string][]time.Duration{}
	var users sync.WaitGroup
	for range localityUsers {
		users.Go(func() {
			for range requestsOfAUser {
				both := []string{tagged, untagged}
				rand.Shuffle(len(both), func(i, j int) { both[i], both[j] = both[j], both[i] })
				for _, function := range both {
					d := ask(function)
					mu.Lock()
					took[function] = append(took[function], d)
					mu.Unlock()
				}
			}
		})
	}
	users.Wait()

	for _, f := range pods {
		switch used := usedCPU(t, f) - usedBefore[f.pod]; {
		case f.node == near && used < leastCPUOfServed:
			t.Logf("pod %s on %s has used %v: no request came to it", f.pod, f.node, used)
		case f.node == far && used >= leastCPUOfServed:
			t.Errorf("pod %s on %s has used %v: requests came to it", f.pod, f.node, used)
		}
	}
	for node, pod := range activators {
		outcomes := forwards(ctx, t, pod)
		passed := outcomes["forwarded"] - forwardedBefore[node]
		t.Logf("the activator on %s has passed %v of %d requests on; in all: %v", node, passed, len(took[tagged]), outcomes)
		if (node == far) != (passed > 0) {
			t.Errorf("the activator on %s has passed on %v requests", node, passed)
		}
	}
	low, ratio, high := ratioOfMeans(took[tagged], took[untagged])
	t.Logf("%d requests each, store %v away from %s: tagged mean %v P50 %v, untagged mean %v P50 %v; ratio of means %.3f (95 %%: %.3f to %.3f)",
		len(took[tagged]), farAway, far, mean(took[tagged]), median(took[tagged]), mean(took[untagged]), median(took[untagged]), ratio, low, high)
	t.Logf("tagged: %v", rounded(took[tagged]))
	t.Logf("untagged: %v", rounded(took[untagged]))
}

// spreadActivators runs an activator on each of two workers, until the test ends.
func spreadActivators(ctx context.Context, t *testing.T, on ...string) {
	t.Helper()
	const selector = "scheduler.alpha.kubernetes.io/node-selector"
	namespaces := kube.CoreV1().Namespaces()
	before, err := namespaces.Get(ctx, servingNamespace, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	annotate := func(ctx context.Context, value any) {
		patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]any{selector: value}}})
		if err == nil {
			_, err = namespaces.Patch(ctx, servingNamespace, types.MergePatchType, patch, metav1.PatchOptions{})
		}
		if err != nil {
			t.Errorf("saying where pods of %s go: %v", servingNamespace, err)
		}
	}
	t.Cleanup(func() {
		if value, ok := before.Annotations[selector]; ok {
			annotate(context.Background(), value)
		}
		patchActivator(context.Background(), t, []byte(`{spec: {replicas: 1, template: {spec: {affinity: null, topologySpreadConstraints: null}}}}`))
	})
	annotate(ctx, nil)
	hosts, err := json.Marshal(on)
	if err != nil {
		t.Fatal(err)
	}
	patchActivator(ctx, t, fmt.Appendf(nil, `{spec: {replicas: %d, template: {spec: {
  affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: %s, operator: In, values: %s}]}]}}},
  topologySpreadConstraints: [{maxSkew: 1, topologyKey: %[2]s, whenUnsatisfiable: DoNotSchedule, labelSelector: {matchLabels: {app: activator}}, matchLabelKeys: [pod-template-hash]}]}}}}`,
		len(on), corev1.LabelHostname, hosts))
}

// activatorsOn waits until two activators are ready, on two nodes, and returns them by node.
func activatorsOn(ctx context.Context, t *testing.T) map[string]corev1.Pod {
	t.Helper()
	on := map[string]corev1.Pod{}
	eventually(t, time.Minute, "activator on each worker", func() error {
		pods, err := readyPods(ctx, servingNamespace, "app=activator")
		if err != nil {
			return err
		}
		clear(on)
		for _, p := range pods {
			on[p.Spec.NodeName] = p
		}
		if len(pods) != 2 || len(on) != 2 {
			return fmt.Errorf("ready activators: %d, on %d nodes", len(pods), len(on))
		}
		return nil
	})
	return on
}

func zoneOf(ctx context.Context, t *testing.T, name string) string {
	t.Helper()
	node, err := kube.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return node.Labels[corev1.LabelTopologyZone]
}

// applyPolicy creates a PlacementPolicy in a namespace, from a spec in JSON.
func applyPolicy(t *testing.T, namespace, name, spec string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), name+".json")
	policy := fmt.Sprintf(`{"apiVersion": "libra.dev/v1alpha1", "kind": "PlacementPolicy", "metadata": {"name": %q, "namespace": %q}, "spec": %s}`, name, namespace, spec)
	if err := os.WriteFile(path, []byte(policy), 0o600); err != nil {
		t.Fatal(err)
	}
	kubectl(t, "apply", "-f", path)
}

// deployStore deploys a copy of the functions' store on a node, in a namespace.
func deployStore(ctx context.Context, t *testing.T, namespace, node string) {
	t.Helper()
	deployments, services := kube.AppsV1().Deployments(functionsNamespace), kube.CoreV1().Services(functionsNamespace)
	original, err := deployments.Get(ctx, storeName, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	reached, err := services.Get(ctx, storeName, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	deployment := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: storeName}, Spec: *original.Spec.DeepCopy()}
	pod := &deployment.Spec.Template.Spec
	pod.NodeSelector = map[string]string{corev1.LabelHostname: node}
	pod.Containers[0].Env = append(pod.Containers[0].Env, corev1.EnvVar{Name: "STORE_QUERY_TIME", Value: queryOfNearStore})
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: storeName}}
	service.Spec.Selector, service.Spec.Ports = reached.Spec.Selector, reached.Spec.Ports
	if _, err := kube.AppsV1().Deployments(namespace).Create(ctx, deployment, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := kube.CoreV1().Services(namespace).Create(ctx, service, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	kubectl(t, "-n", namespace, "rollout", "status", "--timeout=2m", "deployment/"+storeName)
}

// deployReader deploys a function that reads from the namespace's store, and returns its name.
func deployReader(ctx context.Context, t *testing.T, namespace string, labels map[string]string, mode api.Mode) string {
	t.Helper()
	scale := strconv.Itoa(readerPods)
	revision := deployChanged(ctx, t, namespace, "dynamichtml", "reader", func(template *servingv1.RevisionTemplateSpec) {
		for key, value := range map[string]string{
			autoscaling.MinScaleAnnotationKey: scale, autoscaling.MaxScaleAnnotationKey: scale, api.ModeAnnotation: string(mode),
		} {
			metav1.SetMetaDataAnnotation(&template.ObjectMeta, key, value)
		}
		for key, value := range labels {
			metav1.SetMetaDataLabel(&template.ObjectMeta, key, value)
		}
		template.Spec.ContainerConcurrency = ptr.To(int64(atOnceInAReader))
	})
	return revision.Labels[serving.ServiceLabelKey]
}

// orderOf returns the order of a page with so many rows.
func orderOf(rows int) []byte {
	ids := make([]int, rows)
	for i := range ids {
		ids[i] = i
	}
	body, _ := json.Marshal(map[string]any{"title": "stock", "ids": ids})
	return body
}

// moveAway makes a worker far away, until the test ends.
func moveAway(t *testing.T, node string) {
	t.Helper()
	cmd := exec.Command(*boxCommand, "link-delay", node, farAway.String())
	said, err := cmd.StderrPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(cmd.Process.Signal(os.Interrupt), cmd.Wait()); err != nil {
			t.Errorf("%s link-delay: %v", *boxCommand, err)
		}
	})
	line, err := bufio.NewReader(said).ReadString('\n')
	if err != nil || !strings.Contains(line, "away") {
		t.Fatalf("%s link-delay: %q, %v", *boxCommand, line, err)
	}
	go io.Copy(io.Discard, said) //nolint:errcheck // it says no more
}

// forwards returns how many requests an activator had to pass on, by outcome.
func forwards(ctx context.Context, t *testing.T, activator corev1.Pod) map[string]float64 {
	t.Helper()
	outcomes := map[string]float64{}
	for _, m := range metricOfActivator(ctx, t, activator, "libra_placement_forwards_total").GetMetric() {
		outcomes[labelOf(m, "outcome")] += m.GetCounter().GetValue()
	}
	return outcomes
}

func mean(of []time.Duration) time.Duration {
	sum := time.Duration(0)
	for _, d := range of {
		sum += d
	}
	return (sum / time.Duration(max(1, len(of)))).Round(time.Millisecond)
}

func median(of []time.Duration) time.Duration {
	return slices.Sorted(slices.Values(of))[len(of)/2].Round(time.Millisecond)
}

func rounded(of []time.Duration) (all []time.Duration) {
	for _, d := range of {
		all = append(all, d.Round(time.Millisecond))
	}
	return all
}

// ratioOfMeans returns the ratio with its 95 % bootstrap interval.
func ratioOfMeans(a, b []time.Duration) (low, ratio, high float64) {
	resampled := func(of []time.Duration) (sum float64) {
		for range of {
			sum += of[rand.IntN(len(of))].Seconds()
		}
		return sum / float64(len(of))
	}
	var ratios []float64
	for range 2000 {
		ratios = append(ratios, resampled(a)/resampled(b))
	}
	slices.Sort(ratios)
	return ratios[len(ratios)*25/1000], mean(a).Seconds() / mean(b).Seconds(), ratios[len(ratios)*975/1000]
}
