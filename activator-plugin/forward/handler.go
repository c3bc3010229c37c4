// Package forward passes a request on to an activator in another zone, where a placement policy says that one is
// to place it.
package forward

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/zap"
	"k8s.io/utils/clock"
	netproxy "knative.dev/networking/pkg/http/proxy"
	"knative.dev/pkg/logging/logkey"
	pkghandler "knative.dev/pkg/network/handlers"
	"knative.dev/serving/pkg/activator"
	activatorhandler "knative.dev/serving/pkg/activator/handler"
	"knative.dev/serving/pkg/networking"

	"libra.dev/libra/pkg/api"
)

const (
	// maxTries is how many activators are tried before the request is served here, each for as long as it takes to
	// connect, at the most.
	maxTries = 3
	// answerMargin is how much later than the other activator this one gives up waiting for its answer.
	answerMargin = 5 * time.Second

	scopeName = "libra.dev/libra/activator-plugin/forward"
)

// Route says whether a request is to be passed on to an activator in a zone, of which reachable says whether it has one that
// can be. The request that it returns is the one to serve here otherwise.
type Route func(r *http.Request, forwarded bool, reachable func(zone string) bool) (zone string, forward bool, here *http.Request)

// Options are the collaborators of a Handler.
type Options struct {
	Route      Route
	Activators *Activators
	Transport  Transport
	// Timeout is how long the other activator lets a request wait for the beginning of its response.
	Timeout        func(*http.Request) time.Duration
	Clock          clock.PassiveClock
	Logger         *zap.SugaredLogger
	MeterProvider  metric.MeterProvider
	TracerProvider trace.TracerProvider
}

// Handler passes requests on, or has Next serve them. Nothing has been done for a request that it passes on: it is
// counted, queued and placed by the other activator.
type Handler struct {
	Options
	next    http.Handler
	metrics *metrics
	tracer  trace.Tracer
	rounds  http.RoundTripper
	buffers httputil.BufferPool
	lacks   lacks
}

// NewHandler serves with next what is not to be passed on.
func NewHandler(next http.Handler, o Options) (*Handler, error) {
	m, err := newMetrics(o.MeterProvider)
	if err != nil {
		return nil, err
	}
	return &Handler{
		Options: o, next: next, metrics: m,
		tracer: o.TracerProvider.Tracer(scopeName),
		rounds: otelhttp.NewTransport(o.Transport.RoundTripper,
			otelhttp.WithTracerProvider(o.TracerProvider), otelhttp.WithMeterProvider(o.MeterProvider)),
		buffers: netproxy.NewBufferPool(),
		lacks:   lacks{clock: o.Clock, said: map[string]time.Time{}},
	}, nil
}

func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	// Anybody may have sent it. Who has is served here, as with stock.
	forwarded := r.Header.Get(api.ForwardedHeader) != ""
	if forwarded {
		r.Header.Del(api.ForwardedHeader)
		trace.SpanFromContext(r.Context()).SetAttributes(attribute.Bool("libra.forwarded", true))
	}
	var lacking []string // of which the first are noted
	noted := 0
	for tries := 0; ; tries++ {
		zone, forward, here := h.Route(r, forwarded, func(zone string) bool {
			reachable := tries < maxTries && h.Activators.reachable(zone, h.Clock.Now())
			if !reachable && !slices.Contains(lacking, zone) {
				lacking = append(lacking, zone)
			}
			return reachable
		})
		h.noteLacking(r, lacking[noted:])
		noted = len(lacking)
		if !forward {
			h.next.ServeHTTP(w, here)
			return
		}
		to := h.Activators.take(zone, h.Clock.Now())
		// Another request may have had the last place. Then its zone is not reachable any more.
		if to == nil {
			continue
		}
		if h.pass(w, r, to) {
			return
		}
	}
}

// noteLacking tells of the zones to which a request could not be passed on.
func (h *Handler) noteLacking(r *http.Request, zones []string) {
	for _, zone := range zones {
		h.metrics.onForward(zone, outcomeNoActivator)
		if h.lacks.isNews(zone) {
			h.Logger.Warnw("No activator in the zone that a placement policy names can be reached, so that its requests are placed as topologyTolerance allows, or by another block. This is logged once a minute for each zone.",
				"zone", zone, zap.String(logkey.Key, activatorhandler.RevIDFrom(r.Context()).String()))
		}
	}
}

// pass passes a request on. It is false if nothing was sent, and the request can still be served otherwise.
func (h *Handler) pass(w http.ResponseWriter, r *http.Request, to *peer) (done bool) {
	ctx, span := h.tracer.Start(r.Context(), "activator_forward", trace.WithAttributes(
		attribute.String("libra.forward.zone", to.zone), attribute.String("libra.forward.activator", to.ip)))
	ctx, cancel := context.WithCancelCause(ctx)
	late := time.AfterFunc(h.Timeout(r)+answerMargin, func() { cancel(errNoAnswer) })
	outcome := outcomeFailed
	// Deferred, because a client that goes away makes the proxy panic.
	defer func() {
		late.Stop()
		cancel(nil)
		to.release()
		if outcome != outcomeForwarded {
			span.SetStatus(codes.Error, string(outcome))
		}
		span.End()
		h.metrics.onForward(to.zone, outcome)
	}()

	out := r.WithContext(ctx)
	body := keep(r.Body)
	out.Body = body
	asked := false
	proxy := httputil.ReverseProxy{
		Rewrite: func(pr *httputil.ProxyRequest) { h.rewrite(pr, to) },
		Transport: roundTripper(func(out *http.Request) (*http.Response, error) {
			asked = true
			return h.rounds.RoundTrip(out)
		}),
		BufferPool:    h.buffers,
		FlushInterval: netproxy.FlushInterval,
		ModifyResponse: func(*http.Response) error {
			late.Stop()
			outcome = outcomeForwarded
			return nil
		},
		ErrorHandler: func(w http.ResponseWriter, req *http.Request, err error) {
			outcome = h.outcomeOf(r, err)
			// It answers for its pods, so that what fails is the way to it, or itself, unless it is what the client sent.
			if outcome != outcomeCancelled && asked && !body.failed.Load() {
				h.Activators.doubt(to, h.Clock.Now())
			}
			if outcome == outcomeUnreachable {
				h.Logger.Warnw("An activator to which a request was to be passed on cannot be reached, and gets no other for a while",
					"zone", to.zone, "activator", to.ip, zap.Error(err))
				return
			}
			pkghandler.Error(h.Logger.With("zone", to.zone, "activator", to.ip))(w, req, because(ctx, err))
		},
	}
	proxy.ServeHTTP(w, out)
	if outcome == outcomeUnreachable {
		return false
	}
	body.end()
	return true
}

// forwardedHeaders are what the proxy takes off, because it does not trust them. The other activator's does not either.
var forwardedHeaders = []string{"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto"}

// rewrite has a request go to an activator as it came, with the revision that it is for, and the word that it goes no further.
func (h *Handler) rewrite(pr *httputil.ProxyRequest, to *peer) {
	out := pr.Out
	out.URL.Scheme, out.URL.Host = h.Transport.Scheme, h.Transport.address(to.ip, pr.In.ProtoMajor)
	// The proxy has taken off of it what it could not read.
	out.URL.RawQuery = pr.In.URL.RawQuery
	for _, name := range forwardedHeaders {
		if came, ok := pr.In.Header[name]; ok {
			out.Header[name] = came
		}
	}
	if from, _, err := net.SplitHostPort(pr.In.RemoteAddr); err == nil {
		out.Header.Set("X-Forwarded-For", strings.Join(append(slices.Clone(out.Header["X-Forwarded-For"]), from), ", "))
	}
	rev := activatorhandler.RevIDFrom(pr.In.Context())
	out.Header.Set(activator.RevisionHeaderNamespace, rev.Namespace)
	out.Header.Set(activator.RevisionHeaderName, rev.Name)
	out.Header.Set(api.ForwardedHeader, "true")
}

// errNoAnswer is why a request that was passed on was given up.
var errNoAnswer = errors.New("the activator that the request was passed on to did not answer in time")

// because is the error of a request, or why it was cancelled here.
func because(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); errors.Is(cause, errNoAnswer) {
		return cause
	}
	return err
}

func (h *Handler) outcomeOf(r *http.Request, err error) outcome {
	switch {
	case r.Context().Err() != nil:
		return outcomeCancelled
	case errors.As(err, new(unreachableError)):
		return outcomeUnreachable
	default:
		return outcomeFailed
	}
}

// kept is a body that is not closed while somebody else may still be to read it.
type kept struct {
	body io.ReadCloser
	// failed says that the client did not send all of it as it is to be sent.
	failed atomic.Bool
}

func keep(body io.ReadCloser) *kept {
	if body == nil {
		body = http.NoBody
	}
	return &kept{body: body}
}

func (k *kept) Read(b []byte) (int, error) {
	n, err := k.body.Read(b)
	if err != nil && !errors.Is(err, io.EOF) {
		k.failed.Store(true)
	}
	return n, err
}

func (k *kept) Close() error { return nil }

// end closes it.
func (k *kept) end() { _ = k.body.Close() }

// lacks remembers of which zones has been said that they have no activator.
type lacks struct {
	clock clock.PassiveClock
	mu    sync.Mutex
	said  map[string]time.Time
}

const (
	sayEvery = time.Minute
	maxSaid  = 1000 // zones
)

func (l *lacks) isNews(zone string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.clock.Now()
	if last, said := l.said[zone]; said && now.Sub(last) < sayEvery {
		return false
	}
	if len(l.said) >= maxSaid {
		clear(l.said)
	}
	l.said[zone] = now
	return true
}

// address is where an activator takes requests of a version of HTTP.
func (t Transport) address(ip string, protoMajor int) string {
	if t.Address != nil {
		return t.Address(ip, protoMajor)
	}
	port := networking.BackendHTTPPort
	switch {
	case t.Scheme == "https":
		port = networking.BackendHTTPSPort
	case protoMajor == 2:
		port = networking.BackendHTTP2Port
	}
	return net.JoinHostPort(ip, strconv.Itoa(port))
}
