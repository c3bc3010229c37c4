//go:build skew

package skew

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"knative.dev/serving/pkg/apis/serving"

	"libra.dev/libra/loadtest/containers"
	"libra.dev/libra/pkg/api"
)

var kubeconfig = flag.String("kubeconfig", "", "kubeconfig of a box, which `make upgrade-test` has up")

const (
	images  = "out/images.json"
	domain  = "box.test"
	takes   = 10 * time.Minute // each step of a release
	drained = 3 * time.Minute
)

// TestUpgrade has all parts of another commit on a box, gives it this one's under load, in the
// order of docs/install.md, and goes back.
func TestUpgrade(t *testing.T) {
	if *kubeconfig == "" {
		t.Fatal("no -kubeconfig: want that of a box, as `make upgrade-test` passes it")
	}
	root := git(t, ".", "rev-parse", "--show-toplevel")
	old, ours := release{t, treeOf(t, root, *base)}, release{t, root}
	for _, r := range []release{old, ours} {
		r.run("make", "bin/box", "bin/demo")
		r.run("bin/box", "load", "--out", images)
	}
	old.run("bin/demo", "install", "--activator", "--functions", "--kubeconfig", *kubeconfig, "--images", images)

	c := connect(t)
	traffic := c.start(map[string][]byte{"uploader": prose(2 << 20), "compression": prose(3 << 20)})
	c.lends(time.Minute)

	before := c.activators()
	ours.install()
	c.awaitEnd(before)
	up := c.lends(resumes)
	t.Logf("from %s to this commit: lends %s after the last activator of before", *base, up)

	// Back: the activator first.
	next := c.activators()
	c.setActivator(old)
	c.awaitEnd(next)
	old.install()
	down := c.lends(resumes)
	t.Logf("and back: lends %s after all parts were those of before", down)

	sent, failures := traffic.stop()
	for _, err := range failures {
		t.Errorf("a request failed: %v", err)
	}
	record(t, root, "out/upgrade-test", map[string]float64{
		"requests": float64(sent), "failed_requests": float64(len(failures)), "resumed_s": max(up, down).Seconds(),
	})
}

// release is a commit, checked out.
type release struct {
	t    *testing.T
	tree string
}

func (r release) run(name string, args ...string) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), takes)
	defer cancel()
	if strings.HasPrefix(name, "bin/") {
		name = filepath.Join(r.tree, name)
	}
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = r.tree, os.Stdout, os.Stderr
	if err := cmd.Run(); err != nil {
		r.t.Fatalf("%s %s in %s: %v", name, strings.Join(args, " "), r.tree, err)
	}
}

// install applies the manifests, waits for their rollouts, and then gives the activator its image.
func (r release) install() {
	r.t.Helper()
	r.run("bin/demo", "install", "--activator", "--kubeconfig", *kubeconfig, "--images", images)
}

func (r release) activatorImage() string {
	r.t.Helper()
	data, err := os.ReadFile(filepath.Join(r.tree, images))
	if err != nil {
		r.t.Fatal(err)
	}
	var references map[string]string
	if err := json.Unmarshal(data, &references); err != nil {
		r.t.Fatal(err)
	}
	return references["libra-activator"]
}

// cluster is the box, from outside.
type cluster struct {
	t       *testing.T
	kube    kubernetes.Interface
	gateway string
}

func connect(t *testing.T) cluster {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	config.Proxy = func(*http.Request) (*url.URL, error) { return nil, nil }
	return cluster{t, kubernetes.NewForConfigOrDie(config), gatewayOf(t, config)}
}

func gatewayOf(t *testing.T, config *rest.Config) string {
	t.Helper()
	service, err := kubernetes.NewForConfigOrDie(config).CoreV1().Services("istio-system").Get(t.Context(), "knative-gateway-istio", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return "http://" + service.Spec.ClusterIP
}

func (c cluster) setActivator(r release) {
	c.t.Helper()
	patch := fmt.Appendf(nil, `{"spec": {"template": {"spec": {"containers": [{"name": "activator", "image": %q}]}}}}`, r.activatorImage())
	if _, err := c.kube.AppsV1().Deployments("knative-serving").Patch(c.t.Context(), "activator", types.StrategicMergePatchType, patch, metav1.PatchOptions{}); err != nil {
		c.t.Fatal(err)
	}
}

// activators are the IDs of their containers.
func (c cluster) activators() (ids []string) {
	c.t.Helper()
	pods, err := c.kube.CoreV1().Pods("knative-serving").List(c.t.Context(), metav1.ListOptions{LabelSelector: "app=activator"})
	if err != nil {
		c.t.Fatal(err)
	}
	for _, pod := range pods.Items {
		ids = append(ids, containerID(pod, "activator"))
	}
	return ids
}

func containerID(pod corev1.Pod, container string) string {
	for _, status := range pod.Status.ContainerStatuses {
		if status.Name == container {
			_, id, _ := strings.Cut(status.ContainerID, "://")
			return id
		}
	}
	return ""
}

// awaitEnd waits until containers have ended. An activator drains for most of a minute, with its
// pod there or, as the demo deletes it, without.
func (c cluster) awaitEnd(ids []string) {
	c.t.Helper()
	from := time.Now()
	for _, id := range ids {
		for {
			if _, err := containers.Find(id); errors.Is(err, fs.ErrNotExist) {
				break
			} else if err != nil {
				c.t.Fatal(err)
			}
			if time.Since(from) > drained {
				c.t.Fatalf("the activator's container %s has not ended after %s", id, drained)
			}
			time.Sleep(50 * time.Millisecond)
		}
	}
}

// lends waits until the borrower's cgroup comes to have more CPU than its owner configured, and
// returns for how long. What it has at first may be left from before.
func (c cluster) lends(most time.Duration) time.Duration {
	c.t.Helper()
	from := time.Now()
	pods, err := c.kube.CoreV1().Pods("default").List(c.t.Context(), metav1.ListOptions{LabelSelector: serving.ServiceLabelKey + "=compression"})
	if err != nil || len(pods.Items) != 1 {
		c.t.Fatalf("the borrower has %d pods (%v), want 1", len(pods.Items), err)
	}
	container, err := containers.Find(containerID(pods.Items[0], api.UserContainer))
	if err != nil {
		c.t.Fatal(err)
	}
	owed := pods.Items[0].Spec.Containers[0].Resources.Limits.Cpu().MilliValue()
	for was := owed + 1; ; {
		limits, err := container.Limits()
		if err != nil {
			c.t.Fatal(err)
		}
		took := time.Since(from)
		if was <= owed && limits.CPUMilli > owed {
			return took
		}
		was = limits.CPUMilli
		if took > most {
			c.t.Fatalf("the borrower has %dm of %dm: nothing was lent for %s", limits.CPUMilli, owed, most)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// traffic is requests to some functions, one to each at a time, until it is stopped.
type traffic struct {
	end  context.CancelFunc
	done sync.WaitGroup

	mu       sync.Mutex
	sent     int
	failures []error
}

func (c cluster) start(bodies map[string][]byte) *traffic {
	ctx, end := context.WithCancel(c.t.Context())
	l := &traffic{end: end}
	for function, body := range bodies {
		l.done.Go(func() {
			for ctx.Err() == nil {
				err := c.send(function, body)
				l.mu.Lock()
				if l.sent++; err != nil {
					l.failures = append(l.failures, fmt.Errorf("%s: %w", function, err))
				}
				l.mu.Unlock()
			}
		})
	}
	return l
}

// stop lets the requests in flight end.
func (l *traffic) stop() (sent int, failures []error) {
	l.end()
	l.done.Wait()
	return l.sent, l.failures
}

// client goes to the gateway itself, whatever proxy the environment names.
var client = &http.Client{Transport: &http.Transport{}, Timeout: time.Minute}

func (c cluster) send(function string, body []byte) error {
	request, err := http.NewRequest(http.MethodPost, c.gateway, bytes.NewReader(body))
	if err != nil {
		return err
	}
	request.Host = function + ".default." + domain
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %.200s", response.Status, answer)
	}
	return err
}

// prose is size bytes that compress well.
func prose(size int) []byte {
	const line = "the quick brown fox jumps over the lazy dog, and what it has jumped over so far is %d\n"
	var body bytes.Buffer
	for n := 0; body.Len() < size; n++ {
		fmt.Fprintf(&body, line, n*n)
	}
	return body.Bytes()[:size]
}
