//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log"
	"maps"
	"net/http"
	"net/url"
	"os"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	servingclient "knative.dev/serving/pkg/client/clientset/versioned"
)

var (
	kubeconfig  = flag.String("kubeconfig", "", "kubeconfig of the box")
	resultsPath = flag.String("results", "", "results.json of a demo run on the box")
	imagesPath  = flag.String("images", "", "images.json of the box")
	boxCommand  = flag.String("box", "", "the box command, for tests that take a node away")
	domain      = flag.String("domain", "box.test", "domain of the functions")

	config  *rest.Config
	kube    kubernetes.Interface
	knative servingclient.Interface
	gateway string
	// functionsNode is the node that the functions of the namespace default are on.
	functionsNode = boxNode
)

// The demo ran on the box before, and then "demo install --activator --functions --redis-auth":
// Libra is installed, with TLS and users in Redis, the functions are deployed and the predictor
// has learned them.
func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	flag.Parse()
	var err error
	if config, err = clientcmd.BuildConfigFromFlags("", *kubeconfig); err != nil {
		log.Fatalf("kubeconfig %q: %v; `make e2e` passes that of the box", *kubeconfig, err)
	}
	config.Proxy = func(*http.Request) (*url.URL, error) { return nil, nil }
	kube = kubernetes.NewForConfigOrDie(config)
	knative = servingclient.NewForConfigOrDie(config)
	service, err := kube.CoreV1().Services("istio-system").Get(context.Background(), "knative-gateway-istio", metav1.GetOptions{})
	if err != nil {
		log.Fatalf("finding the gateway: %v", err)
	}
	gateway = "http://" + service.Spec.ClusterIP
	if _, err := kube.CoreV1().Nodes().Get(context.Background(), firstWorker, metav1.GetOptions{}); err == nil {
		functionsNode = firstWorker // "demo install" puts them there
	}
	credentials, err := os.MkdirTemp("", "redis")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(credentials)
	if err := useClusterDNS(context.Background()); err != nil {
		log.Fatalf("names of the cluster: %v", err)
	}
	if redisServer, err = redisAs(context.Background(), libraNamespace, redisAdmin, credentials); err != nil {
		log.Fatalf("Redis: %v; `make e2e` installs with --redis-auth", err)
	}
	code := m.Run()
	if refused, err := refusedRights(context.Background()); err != nil || len(refused) > 0 {
		log.Printf("FAIL: Redis refused a part what it asked for: %q, %v", refused, err)
		return max(code, 1)
	}
	return code
}

// The durations of requests are printed, not judged: on a busy machine the few requests of a
// demo decide nothing. Another test covers what Libra does to limits.
func TestDemoResults(t *testing.T) {
	data, err := os.ReadFile(*resultsPath)
	if err != nil {
		t.Fatal(err)
	}
	var results struct {
		Metrics map[string]float64 `json:"metrics"`
	}
	if err := json.Unmarshal(data, &results); err != nil {
		t.Fatalf("%s: %v", *resultsPath, err)
	}
	for name, holds := range map[string]func(float64) bool{
		"failed_requests":    func(v float64) bool { return v == 0 },
		"container_restarts": func(v float64) bool { return v == 0 },
		// Some requests each, and as many in one arm as in another.
		"requests_40": func(v float64) bool { return v > 20 },
		"requests_90": func(v float64) bool { return v > 40 },
		// Recorded evaluations have 0.04 to 0.07.
		"libra_cores_40": func(v float64) bool { return v > 0.01 && v < 0.2 },
	} {
		if value, ok := results.Metrics[name]; !ok || !holds(value) {
			t.Errorf("%s = %v (there: %v)", name, value, ok)
		}
	}
	// A ratio that could not be measured is left out, and one with a single slice has no
	// interval.
	for _, ratio := range []string{
		"p50_computing_libra_40", "p95_computing_libra_90", "p95_computing_no_limits_90", "p95_computing_again_90", "p95_waiting_libra_90", "bystander_p95_libra_90",
	} {
		_, there := results.Metrics[ratio]
		low, lowThere := results.Metrics[ratio+"_low"]
		high, highThere := results.Metrics[ratio+"_high"]
		if !there || !lowThere || !highThere || low >= high {
			t.Errorf("%s (there: %v) is from %v (there: %v) to %v (there: %v)", ratio, there, low, lowThere, high, highThere)
		}
	}
}

func TestLimitsMoveUnderLoadAndReturn(t *testing.T) {
	ctx := t.Context()
	all := findAll(ctx, t)
	donor, borrower := all["uploader"], all["compression"]
	functions := slices.Collect(maps.Values(all))
	before := restarts(ctx, t, functions...)
	waitWhole(t, time.Now().Add(wholeWithin), functions...)

	watched := watchQuotas(ctx, donor, borrower)
	running := startLoad(ctx)
	watched.awaitLoan(t, donor, borrower)
	ended := running.stop(t)
	waitWhole(t, ended.Add(wholeWithin), functions...)
	watched.stop()
	t.Logf("%s went down to %dm of %dm, %s up to %dm of %dm; both are back",
		donor.name, watched.least(donor), donor.allocation.CPUMilli,
		borrower.name, watched.most(borrower), borrower.allocation.CPUMilli)
	if after := restarts(ctx, t, functions...); after != before {
		t.Errorf("%d containers restarted", after-before)
	}
}

func TestFaults(t *testing.T) {
	tests := []struct {
		name string
		// killed, unless empty, selects the pod to kill. The cluster restarts it by itself.
		killed string
		// fault breaks something in mid-run and returns what mends it.
		fault func(ctx context.Context, t *testing.T) (mend func())
	}{{
		name: "predictor stopped",
		fault: func(ctx context.Context, t *testing.T) func() {
			id := container(ctx, t, "serving.kserve.io/inferenceservice=libra")
			signal(t, id, syscall.SIGSTOP)
			return func() { signal(t, id, syscall.SIGCONT) }
		},
	}, {
		name: "redis stopped",
		fault: func(ctx context.Context, t *testing.T) func() {
			id := container(ctx, t, "app=libra-redis")
			signal(t, id, syscall.SIGSTOP)
			return func() { signal(t, id, syscall.SIGCONT) }
		},
	}, {
		name:  "redis gone",
		fault: withoutRedis,
	}, {
		name:   "resizer killed",
		killed: resizerSelector,
	}, {
		name:   "agent killed",
		killed: agentSelector,
	}, {
		name:  "agent stopped",
		fault: stopAgent,
	}}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			ctx := t.Context()
			all := findAll(ctx, t)
			donor, borrower := all["uploader"], all["compression"]
			functions := slices.Collect(maps.Values(all))
			before := restarts(ctx, t, functions...)
			watched := watchQuotas(ctx, donor, borrower)
			defer watched.stop()
			running := startLoad(ctx)
			watched.awaitLoan(t, donor, borrower)
			var dead string
			if test.killed != "" {
				dead = container(ctx, t, test.killed)
				signal(t, dead, syscall.SIGKILL)
			} else {
				defer test.fault(ctx, t)()
			}
			// Long enough for leases to expire, and for requests to begin and end in the fault.
			<-time.After(8 * time.Second)
			ended := running.stop(t)
			if dead != "" {
				eventually(t, time.Minute, "new container of "+test.killed, func() error {
					if container(ctx, t, test.killed) == dead {
						return errors.New("it is still the one that was killed")
					}
					return nil
				})
				ended = time.Now()
			}
			waitWhole(t, ended.Add(wholeWithin), functions...)
			if after := restarts(ctx, t, functions...); after != before {
				t.Errorf("%d containers restarted", after-before)
			}
		})
	}
}

func TestOptedOutServiceIsLeftAlone(t *testing.T) {
	ctx := t.Context()
	plain := find(ctx, t, "plain")
	running := startLoad(ctx)
	for range 20 {
		if err := send(ctx, "plain", []byte("8")); err != nil {
			t.Errorf("request failed: %v", err)
		}
	}
	running.stop(t)
	pod, err := kube.CoreV1().Pods(functionsNamespace).Get(ctx, plain.pod, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range pod.ManagedFields {
		if entry.Subresource == "resize" {
			t.Errorf("pod %s was resized by %s at %v", pod.Name, entry.Manager, entry.Time)
		}
	}
	if pod.Generation != 1 {
		t.Errorf("the spec of pod %s changed: generation %d", pod.Name, pod.Generation)
	}
}

func scale(ctx context.Context, t *testing.T, deployment string, replicas int32) {
	t.Helper()
	// The test's own context is done when a clean-up runs.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
	defer cancel()
	deployments := kube.AppsV1().Deployments(libraNamespace)
	current, err := deployments.GetScale(ctx, deployment, metav1.GetOptions{})
	if err != nil {
		t.Fatalf("reading the scale of %s: %v", deployment, err)
	}
	current.Spec.Replicas = replicas
	if _, err := deployments.UpdateScale(ctx, deployment, current, metav1.UpdateOptions{}); err != nil {
		t.Fatalf("scaling %s to %d: %v", deployment, replicas, err)
	}
}

// quotaWatch keeps the extremes of the functions' CPU quotas since it started.
type quotaWatch struct {
	cancel context.CancelFunc
	done   chan struct{}

	mu        sync.Mutex
	low, high map[string]int64
}

func watchQuotas(ctx context.Context, functions ...function) *quotaWatch {
	ctx, cancel := context.WithCancel(ctx)
	w := &quotaWatch{cancel: cancel, done: make(chan struct{}), low: map[string]int64{}, high: map[string]int64{}}
	for _, f := range functions {
		w.low[f.name], w.high[f.name] = f.allocation.CPUMilli, f.allocation.CPUMilli
	}
	go func() {
		defer close(w.done)
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			for _, f := range functions {
				limits, err := f.cgroups.Limits()
				if err != nil {
					continue
				}
				w.mu.Lock()
				w.low[f.name] = min(w.low[f.name], limits.CPUMilli)
				w.high[f.name] = max(w.high[f.name], limits.CPUMilli)
				w.mu.Unlock()
			}
		}
	}()
	return w
}

// awaitLoan waits, under load, until a loan has been seen. While the borrower was learned, its
// limit hid how much more it can use, so that dozens of requests may pass first.
func (w *quotaWatch) awaitLoan(t *testing.T, donor, borrower function) {
	t.Helper()
	defer func() {
		if t.Failed() {
			tellOfLending(t, donor, borrower)
		}
	}()
	eventually(t, 3*time.Minute, "loan seen in the cgroups", func() error {
		least, most := w.least(donor), w.most(borrower)
		if least < donor.allocation.CPUMilli && most > borrower.allocation.CPUMilli {
			return nil
		}
		return fmt.Errorf("%s was never below %dm (least %dm), %s never above %dm (most %dm)",
			donor.name, donor.allocation.CPUMilli, least, borrower.name, borrower.allocation.CPUMilli, most)
	})
}

func (w *quotaWatch) least(f function) int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.low[f.name]
}

func (w *quotaWatch) most(f function) int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.high[f.name]
}

func (w *quotaWatch) stop() {
	w.cancel()
	<-w.done
}
