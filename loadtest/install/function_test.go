//go:build install

package install

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const domain = "box.test"

// load is one request after the other to the function.
type load struct {
	cancel context.CancelFunc
	done   sync.WaitGroup

	mu               sync.Mutex
	answered, failed int
}

// startFunction deploys a function that opted in, and sends requests to it until the load is stopped.
func (u *user) startFunction() *load {
	u.Helper()
	text, err := os.ReadFile(*functionsPath)
	if err != nil {
		u.Fatal(err)
	}
	var images map[string]string
	if err := json.Unmarshal(text, &images); err != nil {
		u.Fatal(err)
	}
	manifest, err := os.ReadFile(filepath.Join(root, "loadtest/functions/manifests", function+".yaml"))
	if err != nil {
		u.Fatal(err)
	}
	service := strings.Replace(string(manifest), "image: libra-fn-"+function, "image: "+images["libra-fn-"+function], 1)
	path := filepath.Join(u.TempDir(), "function.yaml")
	if err := os.WriteFile(path, []byte(service), 0o644); err != nil {
		u.Fatal(err)
	}
	u.sh("kubectl create namespace " + namespace)
	u.sh("kubectl -n " + namespace + " apply -f " + path)
	u.sh("kubectl -n " + namespace + " wait --for=condition=ready --timeout=3m ksvc/" + function)

	var gateway corev1.Service
	if err := u.kube.Get(u.Context(), client.ObjectKey{Namespace: "istio-system", Name: "knative-gateway-istio"}, &gateway); err != nil {
		u.Fatal(err)
	}
	url := "http://" + gateway.Spec.ClusterIP
	u.until(time.Minute, "route to the function", func() error { return send(u.Context(), url, 1000) })
	ctx, cancel := context.WithCancel(u.Context())
	l := &load{cancel: cancel}
	l.done.Go(func() {
		for n := 0; ctx.Err() == nil; n++ {
			err := send(ctx, url, 100_000*(1+n%8))
			if ctx.Err() != nil {
				return
			}
			l.mu.Lock()
			if err != nil {
				l.failed++
				u.Log(err)
			} else {
				l.answered++
			}
			l.mu.Unlock()
		}
	})
	return l
}

func send(ctx context.Context, url string, size int) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(bytes.Repeat([]byte("words and more of them "), size/23+1)))
	if err != nil {
		return err
	}
	request.Host = function + "." + namespace + "." + domain
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if _, err := io.Copy(io.Discard, response.Body); err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		return errors.New(response.Status)
	}
	return nil
}

func (l *load) stop() (answered, failed int) {
	l.cancel()
	l.done.Wait()
	return l.answered, l.failed
}

// awaitStatus waits until status says of the function that it is learned, and what of it could be lent or borrowed.
func (u *user) awaitStatus() {
	u.Helper()
	u.until(5*time.Minute, "figures of the function", func() error {
		out, err := u.try("kubectl libra status -n " + namespace + " -o json")
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		if !strings.Contains(out, `"Learned"`) || !strings.Contains(out, `"couldLend"`) && !strings.Contains(out, `"wouldBorrow"`) {
			return fmt.Errorf("it says %s", out)
		}
		return nil
	})
	u.sh("kubectl libra status -n " + namespace)
}
