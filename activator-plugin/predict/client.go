// Package predict predicts what invocations will use. It answers from its own copy of each function's
// step table. Only a request to a function about which nothing is known waits for the predictor, and
// only briefly.
package predict

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sony/gobreaker/v2"
	"go.opentelemetry.io/otel/metric"
	"go.uber.org/zap"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/redisconn"
)

const (
	// askBudget is how long a request waits for a fetch, counted from the start of the fetch.
	askBudget = 2 * time.Millisecond
	// A table older than refreshAfter is still used while a new one is fetched. A table older than
	// dropAfter is used only while the predictor is not known to fail and all its announcements since the
	// fetch have been heard, and never beyond keepFor.
	refreshAfter = 5 * time.Second
	// refreshHeard is how old a confirmed state may be while announcements are heard. It is then fetched
	// again nevertheless, early enough to notice before dropAfter that the predictor is gone.
	refreshHeard = 50 * time.Second
	// confirmed is how many equal answers in a row confirm a state. One may come from a replica that has
	// not heard of a change yet. An announced version needs no second answer.
	confirmed = 2
	dropAfter = time.Minute
	keepFor   = time.Hour

	// idleConnTimeout is long enough that a function that is called only now and then does not pay for a
	// new connection each time.
	idleConnTimeout = 5 * time.Minute

	maxFunctions = 16384
	forgetAfter  = time.Minute
	// forgetEvery limits how often all functions are scanned for those to forget: none can be added
	// meanwhile.
	forgetEvery = time.Second
	// useEvery is how precisely a function's last use is recorded, so that few requests write what others
	// read.
	useEvery = time.Second
)

// Options are a Client's collaborators.
type Options struct {
	URL string // of the predictor, http://HOST[:PORT]
	// Redis is where the predictor announces changes. Without it, changes are seen only when a table is
	// fetched again.
	Redis         redisconn.Server
	Clock         clock.Clock
	Logger        *zap.SugaredLogger
	MeterProvider metric.MeterProvider
}

// Client predicts from the step tables of the functions that it was asked about. It is safe for
// concurrent use.
type Client struct {
	base    *url.URL
	http    *http.Client
	redis   redisconn.Server
	clock   clock.Clock
	logger  *zap.SugaredLogger
	metrics *metrics
	breaker *gobreaker.TwoStepCircuitBreaker[any]
	budget  time.Duration
	silence time.Duration
	// fetching bounds the time of one fetch.
	fetching time.Duration

	fetchCtx context.Context
	stop     context.CancelFunc
	fetches  sync.WaitGroup
	slots    chan struct{}

	// functions maps a types.NamespacedName to its *function. It is changed only under mu, but read
	// without it, so that the request path takes no lock. Adding a function costs the same however many
	// there are.
	functions sync.Map
	mu        sync.Mutex
	count     int       // number of functions, at most maxFunctions
	forgotten time.Time // when idle functions were last forgotten

	// hearing is the time since when every announcement has been heard, or nil while none is heard.
	hearing atomic.Pointer[time.Time]
}

// function is what is known about one function. Readers load its state as a whole.
type function struct {
	state  atomic.Pointer[state]
	flight atomic.Pointer[flight]    // the fetch under way, of which there is at most one
	used   atomic.Pointer[time.Time] // the last request

	mu        sync.Mutex // held to replace the state
	marks     int        // how often it was made due: a fetch that began earlier leaves it due
	announced announced  // the last one heard
}

// announced is a version that the predictor announced, with its offset and the largest answers that the
// offset may lead to. Some replicas may not answer with it yet.
type announced struct {
	version         int64
	offset, largest api.Resources
}

type state struct {
	table    *Table    // nil when there is none
	fetched  time.Time // when the predictor last gave the table, or said that there is none
	due      time.Time // of the next fetch
	failures int       // in a row
	lags     int       // answers in a row that were older than what was announced
	same     int       // answers in a row that gave this state
}

// New returns a Client. It does not contact the predictor before the first request.
func New(o Options) (*Client, error) {
	base, err := ParseURL(o.URL)
	if err != nil {
		return nil, err
	}
	m, err := newMetrics(o.MeterProvider)
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(context.Background())
	return &Client{
		base: base,
		http: &http.Client{
			Transport: &http.Transport{
				MaxIdleConnsPerHost: maxFetches,
				IdleConnTimeout:     idleConnTimeout,
			},
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
		redis:    o.Redis,
		clock:    o.Clock,
		logger:   o.Logger,
		metrics:  m,
		breaker:  newBreaker(o.Logger, m),
		budget:   askBudget,
		silence:  longestSilence,
		fetching: fetchTimeout,
		fetchCtx: ctx,
		stop:     stop,
		slots:    make(chan struct{}, maxFetches),
	}, nil
}

// ParseURL parses and checks the URL of a predictor.
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

// Close ends the fetches under way and waits for them. The Client must not be asked afterwards.
func (c *Client) Close() {
	c.mu.Lock()
	c.stop()
	c.mu.Unlock()
	c.fetches.Wait()
	c.http.CloseIdleConnections()
}

// Predict returns what an invocation of the function (namespace and revision) with an input of size
// bytes, or api.UnknownSize, will use. It answers at once from what it knows, and begins a fetch when
// one is due. Only if it knows nothing about the function does it wait for that fetch, at most for the
// budget and no longer than ctx. If ok is false, no demand is predicted. For a function whose profiling
// has begun, p may still have the CPU time, by which requests are ordered.
func (c *Client) Predict(ctx context.Context, name types.NamespacedName, size int64) (p Prediction, ok bool) {
	now := c.clock.Now()
	f := c.function(name, now)
	if f == nil {
		c.metrics.skippedAt(limitFunctions)
		c.metrics.answered(fromNothing)
		return Prediction{}, false
	}
	f.use(now)
	s := f.state.Load()
	from := fromTable
	if c.due(s, now) {
		from = fromStale
		c.refresh(ctx, name, f, size, now)
	}
	if !c.usable(s, now) {
		if why := c.await(ctx, f.flight.Load(), now); why != fromAsked {
			c.metrics.answered(why)
			return Prediction{}, false
		}
		from = fromAsked
		now = c.clock.Now()
		if s = f.state.Load(); !c.usable(s, now) {
			c.metrics.answered(fromNothing)
			return Prediction{}, false
		}
	}
	if s.table == nil {
		c.metrics.answered(fromUnknown)
		return Prediction{}, false
	}
	p = s.table.Lookup(size)
	if p.Demand.IsZero() {
		c.metrics.answered(fromProfiling)
		return Prediction{CPUTime: p.CPUTime}, false
	}
	c.metrics.answered(from)
	c.metrics.used(now.Sub(s.fetched))
	return p, true
}

// due reports whether the state is to be fetched again.
func (c *Client) due(s *state, now time.Time) bool {
	if now.Before(s.due) {
		return false
	}
	return s.same < confirmed || now.Sub(s.fetched) >= refreshHeard || !c.nothingSpeaksAgainst(s)
}

// usable reports whether the state is good for an answer, even if the answer is that there is no table.
func (c *Client) usable(s *state, now time.Time) bool {
	return s.answered(now) || s.table != nil && now.Sub(s.fetched) <= keepFor && c.nothingSpeaksAgainst(s)
}

// nothingSpeaksAgainst reports whether the predictor is not known to fail and every change since the
// table was fetched has been heard.
func (c *Client) nothingSpeaksAgainst(s *state) bool {
	hearing := c.hearing.Load()
	return s.failures == 0 && hearing != nil && !s.fetched.Before(*hearing) && c.breaker.State() == gobreaker.StateClosed
}

// answered reports whether the predictor has answered recently, even if only that there is no table.
func (s *state) answered(now time.Time) bool {
	return !s.fetched.IsZero() && now.Sub(s.fetched) <= dropAfter
}

// await waits for a fetch, which may be over. It returns fromAsked if the fetch is over, and otherwise
// why there is no answer.
func (c *Client) await(ctx context.Context, fl *flight, now time.Time) source {
	if fl == nil {
		return fromAsked
	}
	// A fetch that has already lasted longer is not waited for, so that a predictor that hangs delays few
	// requests.
	left := c.budget - now.Sub(fl.started)
	if !fl.awaited || left <= 0 {
		select {
		case <-fl.done:
			return fromAsked
		default:
		}
		if !fl.awaited {
			return fromNothing
		}
		return fromTimeout
	}
	timer := c.clock.NewTimer(left)
	defer timer.Stop()
	select {
	case <-fl.done:
		return fromAsked
	case <-timer.C():
		return fromTimeout
	case <-ctx.Done():
		return fromCancelled
	}
}

// function returns the function of a name, which it adds if it is new, or nil if there are too many.
func (c *Client) function(name types.NamespacedName, now time.Time) *function {
	if f := c.find(name); f != nil {
		return f
	}

	c.mu.Lock()
	defer c.mu.Unlock()
	if f := c.find(name); f != nil {
		return f
	}
	if c.count >= maxFunctions {
		c.forget(now)
	}
	if c.count >= maxFunctions {
		return nil
	}
	f := &function{}
	f.state.Store(&state{})
	c.functions.Store(name, f)
	c.count++
	return f
}

// find returns nil for a function that was never asked about or was forgotten.
func (c *Client) find(name types.NamespacedName) *function {
	f, ok := c.functions.Load(name)
	if !ok {
		return nil
	}
	return f.(*function)
}

// forget forgets functions that are no longer called. It must be called with mu held.
func (c *Client) forget(now time.Time) {
	if now.Sub(c.forgotten) < forgetEvery {
		return
	}
	c.forgotten = now
	c.functions.Range(func(name, f any) bool {
		if f.(*function).idle(now) {
			c.functions.Delete(name)
			c.count--
		}
		return true
	})
}

func (f *function) use(now time.Time) {
	if f.unused(now) >= useEvery {
		used := now // only what is kept is allocated
		f.used.Store(&used)
	}
}

// unused returns for how long no request has asked for the function.
func (f *function) unused(now time.Time) time.Duration {
	used := f.used.Load()
	if used == nil {
		return math.MaxInt64
	}
	return now.Sub(*used)
}

func (f *function) idle(now time.Time) bool {
	return f.unused(now) > forgetAfter && f.flight.Load() == nil
}
