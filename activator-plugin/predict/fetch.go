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
	"time"

	"github.com/sony/gobreaker/v2"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/zap"
	"k8s.io/apimachinery/pkg/types"
)

const (
	fetchTimeout = 500 * time.Millisecond
	maxFetches   = 8
	// Prefetches, which no request has asked for, begin only while fewer than maxPrefetches fetches are under
	// way.
	maxPrefetches = maxFetches / 2
	// A function without a model will often have one soon, after its first calls.
	emptyRetry = time.Second
	minRetry   = 200 * time.Millisecond
	maxRetry   = 5 * time.Second

	maxAnswerBytes = 1 << 20
)

// ErrNotFound says that the predictor knows nothing about the function.
var ErrNotFound = errors.New("the predictor does not know the function")

// flight is a fetch under way.
type flight struct {
	started time.Time
	awaited bool          // whether requests may wait for it
	done    chan struct{} // closed once the state has its result
}

func (f *function) land(fl *flight) {
	f.flight.Store(nil)
	close(fl.done)
}

// refresh begins a fetch, unless one is under way or a limit is reached.
func (c *Client) refresh(ctx context.Context, name types.NamespacedName, f *function, size int64, now time.Time) {
	if f.flight.Load() != nil {
		return
	}
	health := c.breaker.State()
	if health == gobreaker.StateOpen {
		c.metrics.skippedAt(limitBreaker)
		return
	}
	fl := &flight{started: now, awaited: health == gobreaker.StateClosed, done: make(chan struct{})}
	if !f.flight.CompareAndSwap(nil, fl) {
		return
	}
	// Since the caller saw that a fetch was due, one may have ended.
	if !c.due(f.state.Load(), now) {
		f.land(fl)
		return
	}
	select {
	case c.slots <- struct{}{}:
	default:
		f.land(fl)
		c.metrics.skippedAt(limitFetches)
		return
	}
	report, err := c.breaker.Allow()
	if err != nil {
		<-c.slots
		f.land(fl)
		c.metrics.skippedAt(limitBreaker)
		return
	}
	asker := trace.SpanContextFromContext(ctx)
	f.mu.Lock()
	marks := f.marks
	f.mu.Unlock()
	c.fetches.Go(func() {
		defer func() { <-c.slots }()
		defer f.land(fl)
		started := c.clock.Now()
		table, err := c.fetch(trace.ContextWithRemoteSpanContext(c.fetchCtx, asker), name, size)
		report(err)
		c.take(name, f, marks, table, err, c.clock.Since(started))
	})
}

// take replaces the function's state after a fetch. marks is how often the function had been made due when
// the fetch began.
func (c *Client) take(name types.NamespacedName, f *function, marks int, table *Table, err error, took time.Duration) {
	now := c.clock.Now()
	f.mu.Lock()
	old := f.state.Load()
	next, result := nextState(now, old, f.announced, table, err)
	if f.marks != marks && result != fetchError {
		next.due, next.same = now, 0
	}
	f.state.Store(next)
	f.mu.Unlock()

	c.metrics.fetched(result, took)
	c.logFetch(name, old, next, err)
}

func nextState(now time.Time, old *state, heard announced, table *Table, err error) (next *state, result string) {
	switch {
	case old.table != nil && old.answered(now) && isOlder(old, heard, table, err):
		next := *old
		next.due, next.lags, next.failures, next.same = now.Add(retryAfter(old.lags)), old.lags+1, 0, 0
		return &next, fetchOlder
	case err == nil && table.Version < heard.version:
		return &state{
			table: table.withOffsetOf(heard), fetched: now,
			due: now.Add(retryAfter(old.lags)), lags: old.lags + 1,
		}, fetchOK
	case err == nil && table.predictsNothing():
		return &state{table: table, fetched: now, due: now.Add(emptyRetry), same: answersLike(old, heard, table)}, fetchOK
	case err == nil:
		return &state{table: table, fetched: now, due: now.Add(refreshAfter), same: answersLike(old, heard, table)}, fetchOK
	case errors.Is(err, ErrNotFound):
		return &state{fetched: now, due: now.Add(emptyRetry), same: answersLike(old, heard, nil)}, fetchNotFound
	case errors.Is(err, errMalformed):
		result = fetchMalformed
	default:
		result = fetchError
	}
	failed := *old
	failed.same = 0
	failed.due, failed.failures = now.Add(retryAfter(old.failures)), old.failures+1
	return &failed, result
}

// isOlder says whether an answer is from a replica that lags, which must not replace the table in hand: an older table,
// or that the function is not known, although it was announced. An announcement that it was dropped would have come here.
func isOlder(old *state, heard announced, table *Table, err error) bool {
	if err != nil {
		return errors.Is(err, ErrNotFound) && heard.version != 0
	}
	return table.Version < old.table.Version && table.Version != heard.version
}

// answersLike returns how many answers in a row, with this one, have said what it says. table is nil if
// there is none.
func answersLike(old *state, heard announced, table *Table) int {
	switch {
	case table != nil && heard.version != 0 && table.Version == heard.version:
		return confirmed
	case table == nil && old.table == nil, table != nil && old.table != nil && table.Version == old.table.Version:
		return min(old.same+1, confirmed)
	default:
		return 1
	}
}

// retryAfter bounds the shift, so that it cannot overflow.
func retryAfter(failures int) time.Duration {
	return min(minRetry<<min(failures, 5), maxRetry)
}

// logFetch logs what is new, but not every version: each call may bring a new one.
func (c *Client) logFetch(name types.NamespacedName, old, next *state, err error) {
	switch {
	case next.failures > 0 && old.failures == 0 && c.fetchCtx.Err() == nil:
		c.logger.Warnw("Failed to fetch a step table; retrying without further logs",
			"function", name.String(), zap.Error(err))
	case next.failures > 0 || next.table == nil:
	case old.table == nil || old.failures > 0 || old.table.Stage != next.table.Stage || old.table.Estimator != next.table.Estimator:
		c.logger.Infow("Using a step table", "function", name.String(), "version", next.table.Version,
			"estimator", next.table.Estimator, "stage", next.table.Stage, "reason", next.table.Reason)
	}
}

func (c *Client) fetch(ctx context.Context, name types.NamespacedName, size int64) (*Table, error) {
	ctx, cancel := context.WithTimeout(ctx, c.fetching)
	defer cancel()
	return Ask(ctx, c.http, c.base, name, size)
}

// Ask asks the predictor at base once. It returns ErrNotFound if the predictor knows nothing about the
// function.
func Ask(ctx context.Context, by *http.Client, base *url.URL, name types.NamespacedName, size int64) (*Table, error) {
	model := name.Namespace + "." + name.Name
	body, err := json.Marshal(sizeInput(size))
	if err != nil {
		return nil, fmt.Errorf("asking for model %s: %w", model, err)
	}
	target := base.JoinPath("v2", "models", model, "infer")
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, target.String(), bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("asking for model %s: %w", model, err)
	}
	req.Header.Set("Content-Type", "application/json")
	propagation.TraceContext{}.Inject(ctx, propagation.HeaderCarrier(req.Header))

	resp, err := by.Do(req)
	if err != nil {
		return nil, fmt.Errorf("asking for model %s: %w", model, err)
	}
	defer resp.Body.Close()
	answer := io.LimitReader(resp.Body, maxAnswerBytes)
	// A connection whose response is not read to the end is not reused.
	defer io.Copy(io.Discard, answer)

	switch resp.StatusCode {
	case http.StatusOK:
		t, err := ParseTable(answer)
		if err != nil {
			return nil, fmt.Errorf("asking for model %s: %w", model, err)
		}
		return t, nil
	case http.StatusNotFound:
		// A proxy between says so, too, while it knows no way to the predictor.
		var said struct{ Error string }
		if err := json.NewDecoder(answer).Decode(&said); err != nil || said.Error == "" {
			return nil, fmt.Errorf("asking for model %s: %s answered %s, and not in the predictor's words", model, target.Redacted(), resp.Status)
		}
		return nil, ErrNotFound
	default:
		return nil, fmt.Errorf("asking for model %s: %s answered %s, want 200 or 404", model, target.Redacted(), resp.Status)
	}
}
