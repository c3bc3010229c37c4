// Package predict asks the predictor what invocations will use. It answers from
// its own copy of each function's step table, and never waits for the network.
package predict

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/metric"
	"go.uber.org/zap"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
)

const (
	fetchTimeout = 500 * time.Millisecond
	// A table older than refreshAfter is still used while a new one is fetched;
	// one older than dropAfter is not: the predictor has been away for too long.
	refreshAfter = 5 * time.Second
	dropAfter    = time.Minute
	// A function without a model will often have one soon, after its first calls.
	notFoundRetry = time.Second
	minRetry      = 200 * time.Millisecond
	maxRetry      = 5 * time.Second

	maxFetches   = 8
	maxFunctions = 4096
	// All functions are looked at to find those to forget, with none answered
	// meanwhile.
	forgetEvery    = time.Second
	maxAnswerBytes = 1 << 20
)

var errNotFound = errors.New("the function has no model")

// Options are a Client's collaborators.
type Options struct {
	URL           string // of the predictor, http://HOST[:PORT]
	Clock         clock.PassiveClock
	Logger        *zap.SugaredLogger
	MeterProvider metric.MeterProvider
}

// Client holds the step tables of the functions that it was asked about.
type Client struct {
	base    *url.URL
	http    *http.Client
	clock   clock.PassiveClock
	logger  *zap.SugaredLogger
	metrics *metrics

	fetchCtx context.Context
	stop     context.CancelFunc
	fetches  sync.WaitGroup
	slots    chan struct{}

	mu        sync.RWMutex
	functions map[types.NamespacedName]*function
	forgotten time.Time // when those not called any more last were
}

// function is what is known of one function. Readers take its state as a whole;
// only the fetch under way, of which there is at most one, replaces it.
type function struct {
	state    atomic.Pointer[state]
	fetching atomic.Bool
}

type state struct {
	table    *Table    // nil when there is none
	fetched  time.Time // when table was
	due      time.Time // of the next fetch
	failures int       // in a row
}

// New returns a Client. It does not contact the predictor before it is asked.
func New(o Options) (*Client, error) {
	base, err := ParseURL(o.URL)
	if err != nil {
		return nil, err
	}
	m, err := newMetrics(o.MeterProvider)
	if err != nil {
		return nil, fmt.Errorf("making the predictor client's metrics: %w", err)
	}
	ctx, stop := context.WithCancel(context.Background())
	return &Client{
		base: base,
		http: &http.Client{
			Transport: &http.Transport{
				MaxIdleConnsPerHost: maxFetches,
				IdleConnTimeout:     time.Minute,
			},
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
		clock:     o.Clock,
		logger:    o.Logger,
		metrics:   m,
		fetchCtx:  ctx,
		stop:      stop,
		slots:     make(chan struct{}, maxFetches),
		functions: make(map[types.NamespacedName]*function),
	}, nil
}

// ParseURL checks the address of a predictor.
func ParseURL(s string) (*url.URL, error) {
	u, err := url.Parse(s)
	if err != nil {
		return nil, fmt.Errorf("%q is not a URL: %w", s, err)
	}
	if (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" {
		return nil, fmt.Errorf("%q is not the URL of a predictor, want http://HOST[:PORT] or https://HOST[:PORT]", s)
	}
	return u, nil
}

// Close ends the fetches under way. The Client must not be asked any more.
func (c *Client) Close() {
	c.stop()
	c.fetches.Wait()
	c.http.CloseIdleConnections()
}

// Predict says what an invocation of the function (namespace and revision) with
// an input of size bytes, or api.UnknownSize, will use. It answers at once; ok
// is false when there is no table, and a fetch has then begun if one is due.
func (c *Client) Predict(name types.NamespacedName, size int64) (p Prediction, ok bool) {
	now := c.clock.Now()
	f := c.function(name, now)
	if f == nil {
		c.metrics.skippedAt("functions")
		c.metrics.answered(false)
		return Prediction{}, false
	}
	s := f.state.Load()
	if !now.Before(s.due) {
		c.refresh(name, f, size)
	}
	if !s.usable(now) {
		c.metrics.answered(false)
		return Prediction{}, false
	}
	c.metrics.answered(true)
	return s.table.Lookup(size), true
}

func (s *state) usable(now time.Time) bool {
	return s.table != nil && now.Sub(s.fetched) <= dropAfter
}

// function returns nil when there are too many functions.
func (c *Client) function(name types.NamespacedName, now time.Time) *function {
	c.mu.RLock()
	f := c.functions[name]
	c.mu.RUnlock()
	if f != nil {
		return f
	}

	c.mu.Lock()
	defer c.mu.Unlock()
	if f := c.functions[name]; f != nil {
		return f
	}
	if len(c.functions) >= maxFunctions && now.Sub(c.forgotten) >= forgetEvery {
		c.forgotten = now
		c.forgetIdle(now)
	}
	if len(c.functions) >= maxFunctions {
		return nil
	}
	f = &function{}
	f.state.Store(&state{})
	c.functions[name] = f
	return f
}

// forgetIdle presumes that c.mu is held. A function that is still called is
// refreshed, so one that is long overdue is not.
func (c *Client) forgetIdle(now time.Time) {
	for name, f := range c.functions {
		if now.Sub(f.state.Load().due) > dropAfter && !f.fetching.Load() {
			delete(c.functions, name)
		}
	}
}

func (c *Client) refresh(name types.NamespacedName, f *function, size int64) {
	if !f.fetching.CompareAndSwap(false, true) {
		return
	}
	// The fetch that the caller saw to be due may have ended just now.
	if c.clock.Now().Before(f.state.Load().due) {
		f.fetching.Store(false)
		return
	}
	select {
	case c.slots <- struct{}{}:
	default:
		f.fetching.Store(false)
		c.metrics.skippedAt("fetches")
		return
	}
	c.fetches.Go(func() {
		defer func() {
			f.fetching.Store(false)
			<-c.slots
		}()
		started := c.clock.Now()
		table, err := c.fetch(name, size)
		f.state.Store(c.next(name, f.state.Load(), table, err, c.clock.Since(started)))
	})
}

// next is the state after a fetch.
func (c *Client) next(name types.NamespacedName, old *state, table *Table, err error, took time.Duration) *state {
	now := c.clock.Now()
	switch {
	case err == nil:
		c.metrics.fetched(fetchOK, took)
		if old.table == nil || old.table.Version != table.Version || old.failures > 0 {
			c.logger.Infow("Have a new step table", "function", name.String(),
				"version", table.Version, "estimator", table.Estimator)
		}
		return &state{table: table, fetched: now, due: now.Add(refreshAfter)}
	case errors.Is(err, errNotFound):
		c.metrics.fetched(fetchNotFound, took)
		return &state{due: now.Add(notFoundRetry)}
	case errors.Is(err, errMalformed):
		c.metrics.fetched(fetchMalformed, took)
	default:
		c.metrics.fetched(fetchError, took)
	}
	if old.failures == 0 && c.fetchCtx.Err() == nil {
		c.logger.Warnw("Failed to fetch a step table; trying again quietly",
			"function", name.String(), zap.Error(err))
	}
	// The shift is bounded, so that it cannot overflow.
	retry := min(minRetry<<min(old.failures, 5), maxRetry)
	return &state{table: old.table, fetched: old.fetched, due: now.Add(retry), failures: old.failures + 1}
}

func (c *Client) fetch(name types.NamespacedName, size int64) (*Table, error) {
	ctx, cancel := context.WithTimeout(c.fetchCtx, fetchTimeout)
	defer cancel()

	model := name.Namespace + "." + name.Name
	body, err := json.Marshal(sizeInput(size))
	if err != nil {
		return nil, fmt.Errorf("asking for model %s: %w", model, err)
	}
	target := c.base.JoinPath("v2", "models", model, "infer")
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, target.String(), bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("asking for model %s: %w", model, err)
	}
	req.Header.Set("Content-Type", "application/json")

	resp, err := c.http.Do(req)
	if err != nil {
		return nil, fmt.Errorf("asking for model %s: %w", model, err)
	}
	defer resp.Body.Close()
	answer := io.LimitReader(resp.Body, maxAnswerBytes)
	// What is left unread would cost the connection.
	defer io.Copy(io.Discard, answer)

	switch resp.StatusCode {
	case http.StatusOK:
		t, err := parseTable(answer)
		if err != nil {
			return nil, fmt.Errorf("asking for model %s: %w", model, err)
		}
		return t, nil
	case http.StatusNotFound:
		return nil, errNotFound
	default:
		return nil, fmt.Errorf("asking for model %s: %s answered %s, want 200 or 404", model, target.Redacted(), resp.Status)
	}
}
