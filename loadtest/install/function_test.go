//go:build install

package install

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"time"
)

const domain = "box.test"

// function is a Knative Service of the load test, with how much the inputs of its requests grow each time, and its namespace if that
// is another.
type function struct {
	name string
	step int
	in   string
}

// load sends one request after the other to each of some functions.
type load struct {
	cancel context.CancelFunc
	done   sync.WaitGroup

	mu               sync.Mutex
	answered, failed int
}

// start deploys functions that opted in, and sends requests to them until the load is stopped.
func (u *user) start(functions ...function) *load {
	u.Helper()
	for _, f := range functions {
		u.deploy("functions/manifests/" + f.name + ".yaml")
	}
	for _, f := range functions {
		u.sh("kubectl -n " + namespace + " wait --for=condition=ready --timeout=3m ksvc/" + f.name)
	}
	return u.send(functions...)
}

// send sends requests to functions that are ready until the load is stopped.
func (u *user) send(functions ...function) *load {
	u.Helper()
	url := u.gatewayURL()
	ctx, cancel := context.WithCancel(u.Context())
	l := &load{cancel: cancel}
	for _, f := range functions {
		u.until(time.Minute, "route to "+f.name, func() error { return f.send(u.Context(), url, 1000) })
	}
	for _, f := range functions {
		l.done.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				err := f.send(ctx, url, f.step*(1+n%8))
				if ctx.Err() != nil {
					return
				}
				l.mu.Lock()
				if err != nil {
					l.failed++
					u.Logf("%s: %v", f.name, err)
				} else {
					l.answered++
				}
				l.mu.Unlock()
			}
		})
	}
	return l
}

var imageLine = regexp.MustCompile(`(?m)image: (libra-fn-\S+)$`)

// deploy applies a manifest of the load test into the functions' namespace, with the images that the box has.
func (u *user) deploy(manifest string) {
	u.Helper()
	text, err := os.ReadFile(*functionsPath)
	if err != nil {
		u.Fatal(err)
	}
	var images map[string]string
	if err := json.Unmarshal(text, &images); err != nil {
		u.Fatalf("%s: %v", *functionsPath, err)
	}
	objects, err := os.ReadFile(filepath.Join(root, "loadtest", manifest))
	if err != nil {
		u.Fatal(err)
	}
	objects = imageLine.ReplaceAllFunc(objects, func(line []byte) []byte {
		return []byte("image: " + images[strings.TrimPrefix(string(line), "image: ")])
	})
	path := filepath.Join(u.TempDir(), "objects.yaml")
	if err := os.WriteFile(path, objects, 0o644); err != nil {
		u.Fatal(err)
	}
	u.sh("kubectl -n " + namespace + " apply -f " + path)
}

// direct uses no proxy, because what it asks is on this machine.
var direct = &http.Client{Transport: &http.Transport{}}

func (f function) send(ctx context.Context, url string, size int) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(prose(size)))
	if err != nil {
		return err
	}
	request.Host = f.name + "." + cmp.Or(f.in, namespace) + "." + domain
	response, err := direct.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %.600s", response.Status, answer)
	}
	return nil
}

// prose returns size bytes that compress like text, so that functions take their time to send them on.
func prose(size int) []byte {
	var body bytes.Buffer
	for n := 0; body.Len() < size; n++ {
		fmt.Fprintf(&body, "the quick brown fox jumps over the lazy dog, and what it has jumped over so far is %d\n", n*n)
	}
	return body.Bytes()[:size]
}

func (l *load) stop() (answered, failed int) {
	l.cancel()
	l.done.Wait()
	return l.answered, l.failed
}

// awaitStatus waits until status says that a function of the samples is learned, and what it could lend or borrow.
func (u *user) awaitStatus() {
	u.Helper()
	const status = "kubectl libra status -n " + samples
	u.until(5*time.Minute, "figures of the function", func() error {
		out, err := u.try(status + " -o json")
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		if !strings.Contains(out, `"Learned"`) || !strings.Contains(out, `"couldLend"`) && !strings.Contains(out, `"wouldBorrow"`) {
			return fmt.Errorf("it says %s", out)
		}
		return nil
	})
	u.sh(status)
}
