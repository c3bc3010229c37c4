package kubectl

import (
	"bytes"
	"context"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"libra.dev/libra/pkg/settings"
)

// forwardedTo reaches a server in place of every pod.
func forwardedTo(t *testing.T, handler http.HandlerFunc) forward {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	base, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	return func(context.Context, *corev1.Pod, int32) (*url.URL, func(), error) { return base, func() {}, nil }
}

func cluster(objects ...client.Object) client.Client {
	return fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).
		WithIndex(&corev1.Pod{}, "spec.nodeName", func(o client.Object) []string { return []string{o.(*corev1.Pod).Spec.NodeName} }).Build()
}

// worker returns a new object each time, because clients write the
// version into what they are given.
func worker() *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "worker"}}
}

func agentPod() *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: settings.AgentNamespace, Name: "libra-agent-1", Labels: map[string]string{"app": settings.Agent}},
		Spec:       corev1.PodSpec{NodeName: "worker", Containers: []corev1.Container{{Ports: []corev1.ContainerPort{{Name: metricsPort, ContainerPort: 8080}}}}},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{
			{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(time.Now().Add(-time.Hour))},
		}},
	}
}

const agentMetrics = `# TYPE libra_agent_open gauge
libra_agent_open 1
# TYPE libra_agent_lendable_cpu gauge
libra_agent_lendable_cpu 1500
# TYPE libra_agent_lendable_memory_bytes gauge
libra_agent_lendable_memory_bytes 1.073741824e+09
# TYPE libra_agent_safeguards_total counter
libra_agent_safeguards_total{function="shop/a-00001"} 2
libra_agent_safeguards_total{function="shop/b-00001"} 3
# TYPE libra_agent_weights_pods gauge
libra_agent_weights_pods{level="0"} 1
libra_agent_weights_pods{level="3"} 2
`

func TestPool(t *testing.T) {
	var asked atomic.Int32
	to := forwardedTo(t, func(w http.ResponseWriter, r *http.Request) {
		text := agentMetrics + "# TYPE libra_agent_lent_cpu_total counter\nlibra_agent_lent_cpu_total "
		if asked.Add(1) == 1 {
			text += "100\n"
		} else {
			text += "1e6\n"
		}
		w.Write([]byte(text))
	})
	d, err := pool(t.Context(), cluster(worker(), agentPod()), to, "worker", time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	if !d.Open || d.LendableMilliCores != 1500 || d.LendableBytes != 1<<30 || d.Safeguards != 5 || d.InFlight != 3 || d.Ready == nil {
		t.Errorf("it is %+v", d)
	}
	if d.LentMilliCores <= 0 || d.BorrowedMilliCores != 0 {
		t.Errorf("lent are %v and borrowed %v, want the mean of what was counted between, and nothing", d.LentMilliCores, d.BorrowedMilliCores)
	}
	var out bytes.Buffer
	d.LentMilliCores = 250
	if err := (&output{outputTable}).print(&out, d.document(d.Ready.Add(time.Hour))); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"libra-agent-1, ready for 60m", "1.50 cores, 1024 MiB", "0.25 cores"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("there is no %q in\n%s", want, out.String())
		}
	}
}

func TestPoolSaysWhatIsMissing(t *testing.T) {
	metrics := func(text string) forward {
		return forwardedTo(t, func(w http.ResponseWriter, _ *http.Request) { w.Write([]byte(text)) })
	}
	away := forwardedTo(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) })
	for name, tc := range map[string]struct {
		kube client.Client
		to   forward
		want string
	}{
		"no node":          {cluster(), metrics(agentMetrics), `there is no node "worker"`},
		"no agent":         {cluster(worker()), metrics(agentMetrics), "no node agent runs on node worker: look at `kubectl -n libra-node get pods -o wide`"},
		"another's":        {cluster(worker(), agentPod()), metrics("# TYPE up gauge\nup 1\n"), "there is no libra_agent_open among 1 metrics"},
		"no metrics":       {cluster(worker(), agentPod()), metrics("<html>"), "parsing the metrics"},
		"an agent that is": {cluster(worker(), agentPod()), away, "answered 503 Service Unavailable, want 200"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := pool(t.Context(), tc.kube, tc.to, "worker", time.Millisecond); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("the error is %v, want %q in it", err, tc.want)
			}
		})
	}
}
