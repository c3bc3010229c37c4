// Package forward passes a request on to an activator in another zone when a placement policy says that an activator there
// places it.
package forward

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/http/httputil"
	"slices"
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

	"libra.dev/libra/pkg/api"
)

const (
	// maxTries is how many other activators are tried before the request is served here. Each try costs at most the time that
	// connecting may take.
	maxTries = 3
	// mostHeaders is how many bytes of headers, as HTTP/2 counts them, a request that is passed on may have. With what is added
	// on the way, the other activator might take no more, and would close the connection, on which are others' requests, too.
	mostHeaders = http.DefaultMaxHeaderBytes - 4096
	// answerMargin is how much longer than the other activator this one waits for the response to begin.
	answerMargin = 5 * time.Second

	scopeName = "libra.dev/libra/activator-plugin/forward"
)

// Route decides whether to pass a request on to an activator in a zone. forwarded says that it has been passed on already;
// reachable reports whether a zone has an activator that takes it. If the request is not passed on, here is the one to serve.
type Route func(r *http.Request, forwarded bool, reachable func(zone string) bool) (zone string, forward bool, here *http.Request)

// Options are the collaborators of a Handler.
type Options struct {
	Route      Route
	Activators *Activators
	Transport  Transport
	// Timeout is how long the other activator waits for the response to a request to begin.
	Timeout        func(*http.Request) time.Duration
	Clock          clock.PassiveClock
	Logger         *zap.SugaredLogger
	MeterProvider  metric.MeterProvider
	TracerProvider trace.TracerProvider
}

// Handler passes requests on, or has next serve them. It does nothing else for a request that it passes on: the other
// activator counts, queues and places it.
type Handler struct {
	Options
	next    http.Handler
	metrics *metrics
	tracer  trace.Tracer
	rounds  http.RoundTripper
	buffers httputil.BufferPool
	lacks   lacks
}

// NewHandler returns a Handler that has next serve the requests that it does not pass on.
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
	// Any client can send this header. Its request is then served here, as by stock Knative.
	forwarded := r.Header.Get(api.ForwardedHeader) != ""
	if forwarded {
		r.Header.Del(api.ForwardedHeader)
		trace.SpanFromContext(r.Context()).SetAttributes(attribute.Bool("libra.forwarded", true))
	}
	var lacking []string // the first noted of them have been reported
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
		// Another request may have taken the last place. Then the zone is not reachable any more.
		if to == nil {
			continue
		}
		if headersOf(r) > mostHeaders {
			to.release()
			h.metrics.onForward(zone, outcomeFailed)
			http.Error(w, fmt.Sprintf("the headers have more than %d bytes, too many to pass the request on to another activator", mostHeaders), http.StatusRequestHeaderFieldsTooLarge)
			return
		}
		if h.pass(w, r, to) {
			return
		}
	}
}

// headersOf returns the size of a request's header list (RFC 9113, section 6.5.2).
func headersOf(r *http.Request) int {
	const perField = 32
	size := len(r.Method) + len(r.RequestURI) + len(r.Host) + 4*perField
	for name, values := range r.Header {
		for _, value := range values {
			size += len(name) + len(value) + perField
		}
	}
	return size
}

// noteLacking counts and logs the zones to which a request could not be passed on.
func (h *Handler) noteLacking(r *http.Request, zones []string) {
	for _, zone := range zones {
		h.metrics.onForward(zone, outcomeNoActivator)
		if h.lacks.isNews(zone) {
			h.Logger.Warnw("No activator in the zone that a placement policy names can be reached; the policy's requests are placed as topologyTolerance allows, or by another block. This is logged once a minute for each zone.",
				"zone", zone, zap.String(logkey.Key, activatorhandler.RevIDFrom(r.Context()).String()))
		}
	}
}

// pass passes a request on. It returns false if nothing was sent, so that the request can still be served otherwise.
func (h *Handler) pass(w http.ResponseWriter, r *http.Request, to *peer) (done bool) {
	ctx, span := h.tracer.Start(r.Context(), "activator_forward", trace.WithAttributes(
		attribute.String("libra.forward.zone", to.zone), attribute.String("libra.forward.activator", to.ip)))
	ctx, cancel := context.WithCancelCause(ctx)
	// The transport sends a request without a body again if the connection breaks, and may then fail to connect.
	var sent atomic.Bool
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{WroteHeaders: func() { sent.Store(true) }})
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
	body := &kept{body: r.Body}
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
			if outcome = h.outcomeOf(r, err); outcome == outcomeUnreachable && sent.Load() {
				outcome = outcomeFailed
			}
			// The other activator answers for its pods, so an error means that the connection or the activator itself fails, unless the
			// client's request is at fault.
			if outcome != outcomeCancelled && asked && !body.failed.Load() {
				h.Activators.doubt(to, h.Clock.Now())
			}
			if outcome == outcomeUnreachable {
				h.Logger.Warnw("Failed to connect to the activator that a request was to be passed on to; it gets no requests from this activator for a while",
					"zone", to.zone, "activator", to.ip, zap.Error(err))
				return
			}
			pkghandler.Error(h.Logger.With("zone", to.zone, "activator", to.ip))(w, req, because(ctx, err))
		},
	}
	proxy.ServeHTTP(w, out)
	return outcome != outcomeUnreachable
}

// forwardedHeaders are the headers that this proxy would remove. They reach the other activator as they came, and it adds the only
// hop, which is this activator: a function that counts hops must find as many as with stock.
var forwardedHeaders = []string{"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto"}

// rewrite directs a request to an activator as it came, with headers that name its revision and say that it goes no further.
func (h *Handler) rewrite(pr *httputil.ProxyRequest, to *peer) {
	out := pr.Out
	out.URL.Scheme, out.URL.Host = h.Transport.Scheme, h.Transport.address(to.ip, pr.In.ProtoMajor)
	// The proxy has removed the parameters that it could not parse.
	out.URL.RawQuery = pr.In.URL.RawQuery
	for _, name := range forwardedHeaders {
		if came, ok := pr.In.Header[name]; ok {
			out.Header[name] = came
		}
	}
	rev := activatorhandler.RevIDFrom(pr.In.Context())
	out.Header.Set(activator.RevisionHeaderNamespace, rev.Namespace)
	out.Header.Set(activator.RevisionHeaderName, rev.Name)
	out.Header.Set(api.ForwardedHeader, "true")
}

// errNoAnswer is the cause when this activator gives up a request that it has passed on.
var errNoAnswer = errors.New("the activator that the request was passed on to did not answer in time")

// because returns errNoAnswer if the request was cancelled for that, and err otherwise.
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
	case errors.Is(err, errUnreachable):
		return outcomeUnreachable
	default:
		return outcomeFailed
	}
}

// kept is a request body that ignores Close, because another activator or this one may still have to read it. The
// server closes the body in the end.
type kept struct {
	body io.ReadCloser
	// failed says that reading the body failed: the client sent it incomplete or malformed.
	failed atomic.Bool
}

func (k *kept) Read(b []byte) (int, error) {
	n, err := k.body.Read(b)
	if err != nil && !errors.Is(err, io.EOF) {
		k.failed.Store(true)
	}
	return n, err
}

func (k *kept) Close() error { return nil }

// lacks remembers when it was last logged that a zone has no activator.
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
