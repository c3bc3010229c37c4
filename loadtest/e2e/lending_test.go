//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"libra.dev/libra/pkg/pool"
)

// tellOfLending logs what decides whether anything is lent: the node's pool, what the
// predictor answers for each function, and the last log lines of Libra's parts.
func tellOfLending(t *testing.T, functions ...function) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 30*time.Second)
	defer cancel()
	if state, err := readPool(ctx); err != nil {
		t.Logf("the pool: %v", err)
	} else {
		t.Logf("the pool: %+v", state)
	}
	for _, f := range functions {
		explanation, err := explain(ctx, f)
		t.Logf("the predictor of %s: %s (error: %v)", f.name, explanation, err)
	}
	tellLastLines(ctx, t, libraNamespace, "")
	tellLastLines(ctx, t, agentNamespace, "")
	tellLastLines(ctx, t, "knative-serving", "app=activator")
}

func tellLastLines(ctx context.Context, t *testing.T, namespace, selector string) {
	t.Helper()
	pods, err := kube.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		t.Logf("pods of %s: %v", namespace, err)
		return
	}
	for _, pod := range pods.Items {
		log, err := kube.CoreV1().Pods(namespace).GetLogs(pod.Name, &corev1.PodLogOptions{
			Container: pod.Spec.Containers[0].Name, TailLines: new(int64(30)),
		}).DoRaw(ctx)
		t.Logf("the last lines of %s (error: %v):\n%s", pod.Name, err, log)
	}
}

func readPool(ctx context.Context) (pool.State, error) {
	pools := pool.NewRedis(redisServer)
	defer pools.Close() //nolint:errcheck // read only
	return pools.Read(ctx, functionsNode)
}

// explain returns the predictor's explanation of a function: its answer, and the basis for
// that.
func explain(ctx context.Context, f function) (string, error) {
	service, err := kube.CoreV1().Services(libraNamespace).Get(ctx, "libra-predictor", metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	size := len(donorAndBorrower[f.name])
	url := fmt.Sprintf("http://%s/libra/v1/functions/%s/%s?size=%d", service.Spec.ClusterIP, functionsNamespace, f.revision, size)
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	response, err := client.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return string(body), err
}
