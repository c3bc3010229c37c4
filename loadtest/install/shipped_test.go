//go:build install

package install

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"knative.dev/serving/pkg/apis/serving"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"libra.dev/libra/loadtest/containers"
	"libra.dev/libra/pkg/api"
)

const (
	stall = "stall"          // its functions have ceilings; those of the shop lend to one another
	loans = 15 * time.Second // within which a loan is made, if the node has the CPU for it
	whole = time.Minute      // from the deletion of libra.yaml until no trace of it is in a pod

	uninstallFile = "libra-uninstall.yaml"
	kserveFile    = "libra-predictor-kserve.yaml"
	plainFile     = "libra-predictor-plain.yaml"
	activatorFile = "libra-activator.yaml"
	samplesFile   = "libra-samples.yaml"

	prometheusOperator = "github.com/prometheus-operator/prometheus-operator@v0.85.0"
)

// TestNothingShippedBreaksKnative deletes files of a release while functions lend and borrow: each file from a whole installation,
// and all of them in some orders.
func TestNothingShippedBreaksKnative(t *testing.T) {
	began := time.Now()
	u := newUser(t)
	u.step("release", u.released)
	u.definesMonitors()
	u.installs(kserveFile)
	load := u.startBorrowing()
	watch := u.watchActivators()
	safe := map[string]bool{}

	deletes := func(file string) {
		u.step("without "+file, func() {
			wait := ""
			if file == samplesFile {
				wait = " --wait=false" // Knative takes minutes to end their pods, and others go on deleting meanwhile
			}
			u.sh("kubectl delete --ignore-not-found --timeout=3m -f " + file + wait)
			if file == "libra.yaml" {
				u.awaitWhole()
			}
		})
		if load.failures() > 0 || watch.missed() != nil {
			u.Fatalf("without %s %d requests failed, and of activators: %v", file, load.failures(), watch.missed())
		}
		safe[file] = true
	}
	lent := 0
	undoes := func() { // there is something for a deletion to undo
		if u.awaitCeilings() {
			lent++
		}
	}
	undoes()
	for _, file := range u.shipped(kserveFile) {
		deletes(file)
		u.installs(kserveFile)
		undoes()
	}
	reversed := u.shipped(kserveFile)
	slices.Reverse(reversed)
	random := u.shipped(plainFile)
	seed := uint64(time.Now().UnixNano())
	rand.New(rand.NewPCG(seed, 0)).Shuffle(len(random), func(i, j int) { random[i], random[j] = random[j], random[i] })
	t.Logf("the random order of seed %d is %q", seed, random)
	for i, order := range [][]string{reversed, random} {
		for _, file := range order {
			deletes(file)
		}
		u.awaitWhole()
		if i == 0 {
			u.installs(plainFile)
			undoes()
		}
	}

	// Knative's own manifest over Libra's.
	u.installs(plainFile)
	u.step("stock Knative applied", func() { u.stockActivator() })
	var over func()
	u.step("replacement noticed", func() { over = u.noticesStock() })
	u.step("Job run again", func() { u.runsJobAgain(); over() })

	u.step("remove", func() { u.types("remove") })
	answered, failed := load.stop()
	u.awaitRemoved()
	u.awaitWhole()
	if err := watch.stop(); err != nil {
		t.Error(err)
	}
	if failed > 0 || answered == 0 {
		t.Errorf("%d requests were answered and %d failed", answered, failed)
	}
	for _, file := range []string{"libra-check.yaml", samplesFile} {
		u.sh("kubectl delete --ignore-not-found -f " + file)
	}
	u.sh("kubectl delete namespace " + namespace + " " + stall)
	u.record(map[string]any{
		"shipped_files_deleted_safely": slices.Sorted(maps.Keys(safe)),
		"shipped_minutes":              time.Since(began).Minutes(), "shipped_seconds": u.took, "shipped_requests": answered, "shipped_failed_requests": failed,
		"shipped_order_seed": seed, "shipped_installations_lent": lent,
	})
}

// shipped returns the files of the release with one of the predictors, in the order in which they are applied. The file that takes
// Libra off is applied at the end, and deletes itself.
func (u *user) shipped(predictor string) (files []string) {
	u.Helper()
	found, err := filepath.Glob(filepath.Join(u.dist, "*.yaml"))
	if err != nil {
		u.Fatal(err)
	}
	for _, path := range found {
		file := filepath.Base(path)
		if file == uninstallFile || (file == kserveFile || file == plainFile) && file != predictor {
			continue
		}
		files = append(files, file)
	}
	first := []string{"libra.yaml", predictor, activatorFile}
	files = slices.DeleteFunc(files, func(f string) bool { return slices.Contains(first, f) })
	return append(first, files...)
}

// installs applies all files, whether or not they are applied already.
func (u *user) installs(predictor string) {
	u.Helper()
	for _, file := range u.shipped(predictor) {
		if file == samplesFile {
			var ns corev1.Namespace
			if u.kube.Get(u.Context(), client.ObjectKey{Name: samples}, &ns) == nil && ns.DeletionTimestamp != nil {
				u.sh("kubectl wait --for=delete --timeout=5m namespace/" + samples)
			}
		}
		if file == "libra-check.yaml" {
			u.sh("kubectl delete --ignore-not-found -f " + file) // its Job has run, and cannot be changed
		}
		u.sh("kubectl apply --server-side -f " + file)
	}
	u.sh("kubectl -n libra-system wait --for=condition=complete --timeout=5m job/libra-activator-install")
	u.sh("kubectl -n libra-system rollout status --timeout=5m deployment/libra-resizer")
	u.sh("kubectl -n libra-node rollout status --timeout=5m daemonset/libra-agent")
	u.sh(`kubectl -n libra-system patch configmap config-libra --type merge -p '{"data":{"mode":"full"}}'`)
}

// startBorrowing deploys the functions of the samples in two namespaces, in mode full: in one with source owners, in the other
// with ceilings. This test sends their load.
func (u *user) startBorrowing() *load {
	u.Helper()
	text, err := os.ReadFile(filepath.Join(u.dist, samplesFile))
	if err != nil {
		u.Fatal(err)
	}
	for in, source := range map[string]api.Source{namespace: api.SourceOwners, stall: api.SourceNode} {
		var functions, others []string
		for document := range strings.SplitSeq(string(text), "\n---\n") {
			switch {
			case strings.Contains(document, "kind: Job"):
			case strings.Contains(document, "serving.knative.dev"):
				functions = append(functions, document)
			default:
				others = append(others, document)
			}
		}
		u.applies(others, map[string]string{samples: in})
		// Look-ups of the store's name by functions with requests of 10m have timed out while a release was installed with all the
		// CPU of the node.
		store := u.sh("kubectl -n " + in + " get service store -o jsonpath={.spec.clusterIP}")
		u.applies(functions, map[string]string{"http://store": "http://" + store, "libra.dev/mode: observe": "libra.dev/mode: full", "cpu: 50m": "cpu: 10m", samples: in})
		u.sh("kubectl label --overwrite namespace " + in + " " + api.SourceLabel + "=" + string(source))
	}
	// No more is lent in the shop than the node has idle.
	functions := []function{{name: compression, step: 400_000, in: namespace}, {name: "uploader", step: 300_000, in: namespace}, {name: "uploader", step: 100_000, in: stall}}
	for _, in := range []string{namespace, stall} {
		u.sh("kubectl -n " + in + " wait --for=condition=ready --timeout=5m ksvc --all")
	}
	return u.send(functions...)
}

// applies applies documents of a file, after it has replaced the keys of replaced in them by their values.
func (u *user) applies(documents []string, replaced map[string]string) {
	u.Helper()
	text := strings.Join(documents, "\n---\n")
	for from, to := range replaced {
		if !strings.Contains(text, from) {
			u.Fatalf("there is no %q in %s", from, samplesFile)
		}
		text = strings.ReplaceAll(text, from, to)
	}
	path := filepath.Join(u.TempDir(), "applied.yaml")
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		u.Fatal(err)
	}
	u.sh("kubectl apply --server-side -f " + path)
}

func (l *load) failures() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.failed
}

// awaitCeilings waits until the functions of the stall have ceilings, and reports whether something was lent in the shop meanwhile
// or soon after. Nothing is on a machine that others keep busy.
func (u *user) awaitCeilings() (lent bool) {
	u.Helper()
	u.until(learned, "ceilings of "+stall, func() error {
		pods := u.functionPods(stall)
		for _, p := range pods {
			if p.spec.CPUMilli <= p.owed.CPUMilli {
				return fmt.Errorf("pod %s has a limit of %dm in its spec, as its Revision", p.name, p.spec.CPUMilli)
			}
		}
		if len(pods) == 0 {
			return errors.New("there is no pod")
		}
		return nil
	})
	_, lent = u.loan(loans)
	return lent
}

// functionPod is what a pod of a function may use.
type functionPod struct {
	name                string
	owed, spec, inForce api.Resources
}

func (u *user) functionPods(in string) (found []functionPod) {
	u.Helper()
	var pods corev1.PodList
	if err := u.kube.List(u.Context(), &pods, client.InNamespace(in), client.HasLabels{serving.RevisionLabelKey}); err != nil {
		u.Fatal(err)
	}
	for _, pod := range pods.Items {
		if pod.DeletionTimestamp != nil || pod.Status.Phase != corev1.PodRunning {
			continue
		}
		var revision servingv1.Revision
		if err := u.kube.Get(u.Context(), client.ObjectKey{Namespace: in, Name: pod.Labels[serving.RevisionLabelKey]}, &revision); err != nil {
			u.Fatal(err)
		}
		p := functionPod{name: in + "/" + pod.Name, owed: api.FromList(revision.Spec.GetContainer().Resources.Limits)}
		for _, c := range pod.Spec.Containers {
			if c.Name == api.UserContainer {
				p.spec = api.FromList(c.Resources.Limits)
			}
		}
		container, err := containers.Find(containerID(pod, api.UserContainer))
		if err == nil {
			p.inForce, err = container.Limits()
		}
		if err != nil {
			u.Logf("pod %s: %v", pod.Name, err) // it is being replaced
			continue
		}
		found = append(found, p)
	}
	return found
}

// awaitWhole waits until every pod has what its Revision says, in its spec and in force.
func (u *user) awaitWhole() {
	u.Helper()
	began := time.Now()
	u.until(whole, "whole pods", func() error {
		var errs []error
		n := 0
		for _, in := range []string{namespace, stall} {
			for _, p := range u.functionPods(in) {
				n++
				if p.spec.CPUMilli != p.owed.CPUMilli || p.inForce.CPUMilli != p.owed.CPUMilli || p.spec.MemoryBytes < p.owed.MemoryBytes || p.inForce.MemoryBytes < p.owed.MemoryBytes {
					errs = append(errs, fmt.Errorf("pod %s has %+v in its spec and %+v in force, want %+v", p.name, p.spec, p.inForce, p.owed))
				}
			}
		}
		if n < 4 {
			errs = append(errs, fmt.Errorf("there are %d pods, want 4", n))
		}
		return errors.Join(errs...)
	})
	u.Logf("all pods are whole after %.1f s", time.Since(began).Seconds())
}

// activatorWatch watches all the time whether an activator is ready.
type activatorWatch struct {
	cancel context.CancelFunc
	done   sync.WaitGroup
	mu     sync.Mutex
	err    error
	looks  int
}

func (u *user) watchActivators() *activatorWatch {
	ctx, cancel := context.WithCancel(u.Context())
	w := &activatorWatch{cancel: cancel}
	w.done.Go(func() {
		for ctx.Err() == nil {
			var slices discoveryv1.EndpointSliceList
			err := u.kube.List(ctx, &slices, client.InNamespace("knative-serving"), client.MatchingLabels{discoveryv1.LabelServiceName: "activator-service"})
			ready := 0
			for _, s := range slices.Items {
				for _, e := range s.Endpoints {
					if e.Conditions.Ready == nil || *e.Conditions.Ready {
						ready++
					}
				}
			}
			w.mu.Lock()
			w.looks++
			if err == nil && ready == 0 && w.err == nil {
				w.err = fmt.Errorf("no activator was ready at %s", time.Now().Format(time.TimeOnly))
			}
			w.mu.Unlock()
			select {
			case <-time.After(100 * time.Millisecond):
			case <-ctx.Done():
			}
		}
	})
	return w
}

// missed returns an error that says when no activator was ready, or nil.
func (w *activatorWatch) missed() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}

func (w *activatorWatch) stop() error {
	w.cancel()
	w.done.Wait()
	if w.looks == 0 {
		return errors.New("activators were never looked at")
	}
	return w.err
}

// definesMonitors defines the kinds of the Prometheus operator on the cluster. The operator does not run.
func (u *user) definesMonitors() {
	u.Helper()
	out, err := exec.CommandContext(u.Context(), "go", "mod", "download", "-json", prometheusOperator).Output()
	if err != nil {
		u.Fatalf("go mod download %s: %v\n%s", prometheusOperator, err, out)
	}
	var module struct{ Dir string }
	if err := yaml.Unmarshal(out, &module); err != nil {
		u.Fatal(err)
	}
	u.sh("kubectl apply --server-side -f " + filepath.Join(module.Dir, "example/prometheus-operator-crd"))
}

// stockActivator applies the Deployment of Knative's own manifest, as an upgrade of Knative does.
func (u *user) stockActivator() {
	u.Helper()
	path := filepath.Join(filepath.Dir(filepath.Dir(*kubelitePath)), "manifests", "knative-3-workloads.yaml")
	text, err := os.ReadFile(path)
	if err != nil {
		u.Fatal(err)
	}
	for document := range bytes.SplitSeq(text, []byte("---\n")) {
		var d appsv1.Deployment
		if err := yaml.Unmarshal(document, &d); err != nil || d.Kind != "Deployment" || d.Name != "activator" {
			continue
		}
		stock := filepath.Join(u.TempDir(), "activator.yaml")
		if err := os.WriteFile(stock, document, 0o644); err != nil {
			u.Fatal(err)
		}
		u.sh("kubectl apply --server-side --force-conflicts -f " + stock)
		u.sh("kubectl -n knative-serving rollout status --timeout=5m deployment/activator")
		return
	}
	u.Fatalf("%s has no activator", path)
}
