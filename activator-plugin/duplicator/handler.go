package duplicator

import (
	"fmt"
	"io"
	"net/http"
	"sync"

	corev1 "k8s.io/api/core/v1"
	activatorhandler "knative.dev/serving/pkg/activator/handler"
	v1 "knative.dev/serving/pkg/apis/serving/v1"

	"libra.dev/libra/pkg/api"
)

// Handler returns a handler that keeps inputs of the requests that it passes on
// unchanged. Only this Duplicator may send requests to a copy.
func (d *Duplicator) Handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		rev := activatorhandler.RevisionFrom(r.Context())
		if rev != nil && api.IsCopy(rev.Labels) {
			if !d.replayer.sent(r.Header) {
				// The owner's policies select by label, so they do not protect the copy.
				http.Error(w, fmt.Sprintf("Revision %s/%s is a copy of %s that Libra made to learn from; it takes only Libra's own requests",
					rev.Namespace, rev.Name, rev.Labels[api.CopyOfLabel]), http.StatusForbidden)
				return
			}
			next.ServeHTTP(w, r)
			return
		}
		if rev == nil || !d.wants(rev) {
			next.ServeHTTP(w, r)
			return
		}
		t := d.tee(rev, r)
		if t == nil {
			next.ServeHTTP(w, r)
			return
		}
		answer := &statusWriter{ResponseWriter: w}
		ended := false
		// Deferred, because a client that goes away makes the proxy panic.
		defer func() { d.finish(rev, r, t, ended && answer.ok()) }()
		teed := *r
		teed.Body = t
		next.ServeHTTP(answer, &teed)
		ended = true
	})
}

// wants reports whether the revision's owner allows duplication and more inputs are
// needed. If an owner asks for what cannot be done, it says so once in a while.
func (d *Duplicator) wants(rev *v1.Revision) bool {
	asked, there := rev.Annotations[api.DuplicateInputsAnnotation]
	if !there || !api.OptedIn(rev.Labels) || asked == "false" || d.stopped(rev.Namespace) {
		return false
	}
	now := d.clock.Now()
	k := keyOf(rev)
	if !d.inputs.open(k, now) {
		return false
	}
	why, note := reasonNone, ""
	if asked != api.DuplicateInputsValue {
		why, note = reasonAnnotation, fmt.Sprintf("Annotation %s has value %.64q, want %q or \"false\"",
			api.DuplicateInputsAnnotation, asked, api.DuplicateInputsValue)
	} else if from := rev.Annotations[api.InputSizeAnnotation]; from != "" {
		why, note = reasonInputSize, fmt.Sprintf("Annotation %s has value %.64q: scaling the body would not scale that size, so inputs are not duplicated",
			api.InputSizeAnnotation, from)
	}
	if why == reasonNone {
		return true
	}
	if d.inputs.refuse(k, now.Add(settledFor), now) {
		d.metrics.onSkipped(k.NamespacedName, why)
		d.logger.Warnw("Not duplicating the inputs of a function", "function", k.String(), "reason", note)
		d.tell(rev, corev1.EventTypeWarning, eventRefused, "%s", note)
	}
	return false
}

// tee returns nil for a request that is not to be kept.
func (d *Duplicator) tee(rev *v1.Revision, r *http.Request) *tee {
	k := keyOf(rev)
	why := whyNotKept(r)
	if why == reasonNone {
		ok := false
		if ok, why = d.inputs.reserve(rev, r.ContentLength, d.clock.Now()); ok {
			return &tee{body: r.Body, length: r.ContentLength}
		}
	}
	if why != reasonNone {
		d.metrics.onSkipped(k.NamespacedName, why)
	}
	return nil
}

func whyNotKept(r *http.Request) reason {
	switch {
	case r.Header.Get(api.DuplicateHeader) != "":
		return reasonDuplicate
	case api.AsksForUpgrade(r.Header):
		return reasonUpgrade
	case r.ContentLength < 0:
		return reasonUnknownLength
	case r.ContentLength == 0:
		return reasonEmpty
	case r.ContentLength > maxBody:
		return reasonTooLarge
	// A part of an encoded body cannot be decoded.
	case r.Header.Get("Content-Encoding") != "":
		return reasonEncoded
	default:
		return reasonNone
	}
}

// finish keeps a request that was read to its end and answered with a 2xx. The function
// would refuse again what it has refused, and anybody may send such requests.
func (d *Duplicator) finish(rev *v1.Revision, r *http.Request, t *tee, ok bool) {
	k := keyOf(rev)
	body, whole := t.stop()
	why := reasonNone
	switch {
	case !ok:
		why = reasonNotOK
	case !whole:
		why = reasonCutShort
	}
	if why != reasonNone {
		d.inputs.abandon(k, t.length)
		d.metrics.onSkipped(k.NamespacedName, why)
		return
	}
	d.inputs.keep(k, input{
		method:      r.Method,
		path:        r.URL.Path,
		rawPath:     r.URL.RawPath,
		query:       r.URL.RawQuery,
		contentType: r.Header.Get("Content-Type"),
		body:        body,
	}, d.clock.Now())
}

// tee keeps what is read of a body. The transport may still read after the handler has
// returned.
type tee struct {
	body   io.ReadCloser
	length int64

	mu      sync.Mutex
	read    []byte
	stopped bool
}

func (t *tee) Read(p []byte) (int, error) {
	n, err := t.body.Read(p)
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.stopped && n > 0 && int64(len(t.read)+n) <= t.length {
		if t.read == nil {
			// append would allocate more than was reserved.
			t.read = make([]byte, 0, t.length)
		}
		t.read = append(t.read, p[:n]...)
	}
	return n, err
}

func (t *tee) Close() error { return t.body.Close() }

// stop returns what was read of the body, and whether that is all of it.
func (t *tee) stop() ([]byte, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.stopped = true
	body := t.read
	t.read = nil
	return body, int64(len(body)) == t.length
}

// statusWriter records the status of the response; it is 0 until there is one.
type statusWriter struct {
	http.ResponseWriter
	status int
}

func (w *statusWriter) WriteHeader(status int) {
	// Statuses below 200 come before the response.
	if w.status == 0 && status >= http.StatusOK {
		w.status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *statusWriter) Write(p []byte) (int, error) {
	if w.status == 0 {
		w.status = http.StatusOK
	}
	return w.ResponseWriter.Write(p)
}

// Unwrap lets the reverse proxy flush through http.ResponseController. The proxy also
// hijacks this way, but only for upgrades, which are not kept.
func (w *statusWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// ok is called after the handler has ended: if it wrote nothing, the server answers 200.
func (w *statusWriter) ok() bool {
	return w.status == 0 || w.status >= http.StatusOK && w.status < http.StatusMultipleChoices
}
