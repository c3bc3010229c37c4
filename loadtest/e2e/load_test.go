//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"sync"
	"testing"
	"time"
)

// The bodies for each function. Libra has learned from these sizes, and they keep a donor
// in flight for longer than a borrower.
var (
	uploaderBody    = text(1, 2<<20)
	compressionBody = text(2, 3<<20)
)

// client uses no proxy to the gateway, whatever the environment says.
var client = &http.Client{Transport: &http.Transport{}}

// text returns size bytes that compress about as well as prose does.
func text(seed uint64, size int) []byte {
	random := rand.New(rand.NewPCG(seed, 0))
	words := make([][]byte, 512)
	for i := range words {
		word := make([]byte, 2+random.IntN(9))
		for j := range word {
			word[j] = byte('a' + random.IntN(26))
		}
		words[i] = append(word, ' ')
	}
	body := make([]byte, 0, size+16)
	for len(body) < size {
		body = append(body, words[random.IntN(len(words))]...)
	}
	return body[:size]
}

// send posts one request through the gateway and fails on any answer but 200.
func send(ctx context.Context, function string, body []byte) error {
	_, err := sendIn(ctx, functionsNamespace, function, body)
	return err
}

// sendIn is send to a function in a namespace, and returns the answer.
func sendIn(ctx context.Context, namespace, function string, body []byte) (answer []byte, err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, gateway, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	request.Host = function + "." + namespace + "." + *domain
	response, err := client.Do(request)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", function, err)
	}
	defer response.Body.Close()
	if answer, err = io.ReadAll(response.Body); err != nil {
		return nil, fmt.Errorf("%s: reading the answer: %w", function, err)
	}
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %s: %.1000s", function, response.Status, answer)
	}
	return answer, nil
}

// load sends requests to some functions, one at a time to each, until it is stopped.
type load struct {
	cancel context.CancelFunc
	done   sync.WaitGroup

	mu       sync.Mutex
	sent     map[string]int
	failures []error
}

// donorAndBorrower has the bodies for a donor and a borrower.
var donorAndBorrower = map[string][]byte{"uploader": uploaderBody, "compression": compressionBody}

// startLoad sends to a donor and to a borrower.
func startLoad(ctx context.Context) *load { return startLoadOf(ctx, donorAndBorrower) }

func startLoadOf(ctx context.Context, bodies map[string][]byte) *load {
	ctx, cancel := context.WithCancel(ctx)
	l := &load{cancel: cancel, sent: map[string]int{}}
	for function, body := range bodies {
		l.done.Go(func() { l.sendUntil(ctx, function, body) })
	}
	return l
}

// startLoadWithRests is startLoad with a rest between rounds, in which all loans end.
func startLoadWithRests(ctx context.Context, work, rest time.Duration) *load {
	ctx, cancel := context.WithCancel(ctx)
	l := &load{cancel: cancel, sent: map[string]int{}}
	l.done.Go(func() {
		for ctx.Err() == nil {
			working, stop := context.WithTimeout(ctx, work)
			var round sync.WaitGroup
			for function, body := range donorAndBorrower {
				round.Go(func() { l.sendUntil(working, function, body) })
			}
			round.Wait()
			stop()
			select {
			case <-ctx.Done():
			case <-time.After(rest):
			}
		}
	})
	return l
}

// sendUntil sends a function one request after the other, until the context ends.
func (l *load) sendUntil(ctx context.Context, function string, body []byte) {
	for ctx.Err() == nil {
		l.send(ctx, function, body)
	}
}

// send sends one request and counts the answer. A request that has begun runs to its end.
func (l *load) send(ctx context.Context, function string, body []byte) {
	err := send(context.WithoutCancel(ctx), function, body)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sent[function]++
	if err != nil {
		l.failures = append(l.failures, err)
	}
}

// stop waits for the requests in flight, fails the test for each that failed, and returns
// when the last one ended.
func (l *load) stop(t *testing.T) time.Time {
	t.Helper()
	l.cancel()
	l.done.Wait()
	t.Logf("requests answered: %v", l.sent)
	for _, err := range l.failures {
		t.Errorf("request failed: %v", err)
	}
	return time.Now()
}
