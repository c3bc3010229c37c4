package invocation

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/trace"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/rand"
	activatorhandler "knative.dev/serving/pkg/activator/handler"
	v1 "knative.dev/serving/pkg/apis/serving/v1"

	"libra.dev/libra/activator-plugin/placement"
	"libra.dev/libra/pkg/api"
)

const (
	requestIDHeader = "X-Request-Id"
	maxIDLength     = 128
	randomIDLength  = 20
	idSuffixLength  = 8
)

// request is what the handler knows of a request and the throttler needs. The throttler gets only the
// context.
type request struct {
	rev      *v1.Revision
	id       string // empty until it is needed, when the client sent none that is fit
	clientID string // its X-Request-Id, if it is fit
	arrived  time.Time
	size     int64
	upgrade  bool
	span     trace.SpanContext // of the request
	response *statusWriter
	// placed is the pod that it goes to, once it has a slot.
	placed placement.Choice
	// refusedBy is the policy that left it no pod.
	refusedBy string
	// seen is set once it is dispatched.
	seen seen
	// kept is what recent keeps of it once it has ended, and noted is its number there.
	kept  kept
	noted int64
	// abandoned says that its pod may go on computing for it: the client went away before it had the
	// whole response, the time ran out, or the connection was upgraded, so that it is not seen which
	// side closed it first. It is set before the invocation ends.
	abandoned bool
	// connects says that connected is set once there is a connection to the pod.
	connects  bool
	connected atomic.Bool
}

// watchConnection has the request note when it is connected to its pod, where Libra may have chosen the pod. A connection
// that is kept alive counts, although its pod may no longer answer: nothing tells such a pod from a slow one.
func (m *Manager) watchConnection(ctx context.Context, req *request) context.Context {
	if !m.places(req.rev) {
		return ctx
	}
	req.connects = true
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { req.connected.Store(true) }})
}

type requestKey struct{}

// requestFrom returns the request in ctx, or nil for a revision that did not opt in.
func requestFrom(ctx context.Context) *request {
	r, _ := ctx.Value(requestKey{}).(*request)
	return r
}

// invocationID returns the request's ID, a dot, and a random suffix without a dot: a client finds its
// request by the part before the last dot. The suffix makes the ID unique, whatever IDs clients send
// and however often a request is tried.
func (r *request) invocationID() string {
	if r.id == "" {
		r.id = rand.String(randomIDLength)
	}
	return r.id + "." + rand.String(idSuffixLength)
}

type handler struct {
	manager *Manager
	next    http.Handler
}

func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	rev := activatorhandler.RevisionFrom(r.Context())
	if rev == nil || !api.OptedIn(rev.Labels) {
		h.next.ServeHTTP(w, r)
		return
	}
	sw := &statusWriter{ResponseWriter: w, over: r.Context().Done()}
	id := requestID(r.Header)
	arrived := h.manager.clock.Now()
	size, body := h.manager.sizeOf(r, rev)
	if ahead, ok := body.(*readAheadBody); ok {
		defer ahead.Close() // a request that got no slot did not read it
	}
	req := &request{
		rev:      rev,
		id:       id,
		clientID: id,
		arrived:  arrived,
		size:     size,
		upgrade:  api.AsksForUpgrade(r.Header),
		span:     trace.SpanContextFromContext(r.Context()),
		response: sw,
	}
	// Deferred, because serving a request panics when its client goes away.
	defer func() {
		if req.noted == 0 { // it had no slot
			req.abandoned = r.Context().Err() != nil && sw.status == 0
			h.manager.note(req, time.Time{})
		}
		h.manager.metrics.onRequest(types.NamespacedName{Namespace: rev.Namespace, Name: rev.Name}, h.manager.clock.Since(req.arrived))
	}()
	r = r.WithContext(h.manager.watchConnection(context.WithValue(r.Context(), requestKey{}, req), req))
	r.Body = body
	h.next.ServeHTTP(sw, r)
}

func (m *Manager) sizeOf(r *http.Request, rev *v1.Revision) (int64, io.ReadCloser) {
	size, body, err := sizeOf(r, rev.Annotations[api.InputSizeAnnotation], &m.ahead)
	if err != nil {
		m.metrics.onRefusedSize(err.field)
		m.warn(rev, eventInputSizeRefused, err.field, "Refused an input size; the request runs as one of unknown size", err)
	}
	return size, body
}

// requestID returns the client's own ID of the request if it is fit for ours, so that a client finds
// its requests in Libra's records, and otherwise "".
func requestID(h http.Header) string {
	id := h.Get(requestIDHeader)
	if len(id) > maxIDLength {
		return ""
	}
	for _, c := range id {
		if !isAlphanumeric(c) && c != '-' && c != '_' && c != '.' {
			return ""
		}
	}
	return id
}

func isAlphanumeric(c rune) bool {
	return '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
}

// statusWriter notes the status of the response, which is 0 until there is one.
type statusWriter struct {
	http.ResponseWriter
	// over is closed once the client is gone or was told that the time has run out: nobody gets
	// anything that is written after that.
	over   <-chan struct{}
	status int
	cut    bool // the client did not take all that was written
}

func (w *statusWriter) note(status int) {
	if w.status != 0 {
		return
	}
	select {
	case <-w.over:
	default:
		w.status = status
	}
}

// failed reports whether there is no response, or one that the proxy may have made up.
func (w *statusWriter) failed() bool {
	return w.status == 0 || w.status >= http.StatusInternalServerError
}

func (w *statusWriter) WriteHeader(status int) {
	// A status below 200 comes before the response, except 101, which is final.
	if status >= http.StatusOK || status == http.StatusSwitchingProtocols {
		w.note(status)
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *statusWriter) Write(p []byte) (int, error) {
	w.note(http.StatusOK)
	n, err := w.ResponseWriter.Write(p)
	w.cut = w.cut || err != nil
	return n, err
}

// Hijack lets the reverse proxy take over an upgraded connection.
func (w *statusWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(w.ResponseWriter).Hijack()
	if err == nil {
		w.status = http.StatusSwitchingProtocols
	}
	return conn, rw, err
}

// Unwrap lets the reverse proxy flush, through an http.ResponseController.
func (w *statusWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
