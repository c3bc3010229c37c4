package duplicator

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"knative.dev/pkg/network"
	"knative.dev/serving/pkg/activator"

	"libra.dev/libra/pkg/api"
)

// maxAnswer is how many bytes of a response are read, so that the function can finish it.
const maxAnswer = 64 << 20

// secretHeader carries the replayer's secret on every replay. Replays come back to this
// process, so no other needs to know the secret.
const secretHeader = "Libra-Copy-Secret"

// replayer sends requests to a revision through the activator itself, so that they begin,
// end and are measured like all others.
type replayer struct {
	url    *url.URL
	secret string
	client *http.Client
	within time.Duration // each
}

func newReplayer(base *url.URL) *replayer {
	return &replayer{
		url:    base,
		secret: rand.Text(),
		client: &http.Client{
			// Neither a proxy from the environment nor a redirect may lead out of the activator.
			Transport: &http.Transport{
				DialContext:         (&net.Dialer{Timeout: time.Second}).DialContext,
				MaxIdleConnsPerHost: parallel,
				DisableCompression:  true,
			},
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
		within: replayWithin,
	}
}

// sent reports whether a request is a replay of this replayer's. It removes the secret:
// neither the function nor the request log needs it.
func (r *replayer) sent(header http.Header) bool {
	secret := header.Get(secretHeader)
	header.Del(secretHeader)
	return subtle.ConstantTimeCompare([]byte(secret), []byte(r.secret)) == 1
}

func (r *replayer) close() { r.client.CloseIdleConnections() }

// tally counts replays by their result.
type tally map[string]int

func (t tally) total() int {
	n := 0
	for _, count := range t {
		n += count
	}
	return n
}

func (t tally) String() string {
	parts := make([]string, 0, len(t))
	for _, result := range slices.Sorted(maps.Keys(t)) {
		parts = append(parts, fmt.Sprintf("%d %s", t[result], result))
	}
	if len(parts) == 0 {
		return "none was sent"
	}
	return strings.Join(parts, ", ")
}

// sendAll sends the replays, at most parallel at once, until all are answered or ctx is
// done. It calls told with each result, except for errors and timeouts once ctx is done.
func (r *replayer) sendAll(ctx context.Context, to types.NamespacedName, replays []replay, told func(result string)) tally {
	next := make(chan replay)
	results := make(chan string)
	var senders sync.WaitGroup
	for range parallel {
		senders.Go(func() {
			for replay := range next {
				results <- r.send(ctx, to, replay)
			}
		})
	}
	go func() {
		defer close(results)
		defer senders.Wait()
		defer close(next)
		for _, replay := range replays {
			select {
			case next <- replay:
			case <-ctx.Done():
				return
			}
		}
	}()
	counts := tally{}
	for result := range results {
		if ctx.Err() != nil && (result == resultError || result == resultTimeout) {
			continue
		}
		counts[result]++
		told(result)
	}
	return counts
}

func (r *replayer) send(ctx context.Context, to types.NamespacedName, p replay) string {
	ctx, cancel := context.WithTimeout(ctx, r.within)
	defer cancel()
	resp, err := r.client.Do(r.request(ctx, to, p))
	if err == nil {
		_, err = io.Copy(io.Discard, io.LimitReader(resp.Body, maxAnswer))
		resp.Body.Close()
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return resultTimeout
	case err != nil:
		return resultError
	case resp.StatusCode >= 500:
		return resultServerError
	case resp.StatusCode >= 400:
		return resultClientError
	case resp.StatusCode >= 300 || resp.StatusCode < 200:
		return resultOther
	default:
		return resultOK
	}
}

func (r *replayer) request(ctx context.Context, to types.NamespacedName, p replay) *http.Request {
	u := *r.url
	u.Path, u.RawPath, u.RawQuery = p.input.path, p.input.rawPath, p.input.query
	body := func() (io.ReadCloser, error) {
		return io.NopCloser(&tiled{body: p.input.body, size: p.size}), nil
	}
	header := http.Header{
		activator.RevisionHeaderNamespace: {to.Namespace},
		activator.RevisionHeaderName:      {to.Name},
		api.DuplicateHeader:               {api.DuplicateHeaderValue},
		secretHeader:                      {r.secret},
		"User-Agent":                      {"libra-duplicator"},
	}
	if p.input.contentType != "" {
		header.Set("Content-Type", p.input.contentType)
	}
	first, _ := body()
	return (&http.Request{
		Method:        p.input.method,
		URL:           &u,
		Host:          network.GetServiceHostname(to.Name, to.Namespace),
		Header:        header,
		Body:          first,
		GetBody:       body,
		ContentLength: p.size,
	}).WithContext(ctx)
}
