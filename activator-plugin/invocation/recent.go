package invocation

import (
	"encoding/json"
	"net/http"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"knative.dev/serving/pkg/apis/serving"

	"libra.dev/libra/activator-plugin/predict"
	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/pool"
)

const (
	// recentMost is how many requests are kept, and recentFound how many of them an answer has at most.
	recentMost  = 8192
	recentFound = 10
)

// Decision is what a request of a function got, and why.
type Decision struct {
	Trace     string `json:"trace,omitempty"`     // the ID of its W3C trace, in hexadecimal; empty without one
	RequestID string `json:"requestID,omitempty"` // its X-Request-Id, if it was fit
	Namespace string `json:"namespace"`
	Revision  string `json:"revision"`
	Service   string `json:"service,omitempty"`

	Arrived time.Time `json:"arrived"`
	// Waited is the time until it had a slot in a pod or was answered without one, and Ran that from then until its
	// response ended.
	Waited     metav1.Duration `json:"waited"`
	Ran        metav1.Duration `json:"ran"`
	Dispatched bool            `json:"dispatched"` // it had a slot
	Status     int             `json:"status"`     // of the response; 0 when there was none, and 502 when the function broke it off
	// Abandoned says that its client went away before it had the whole response, that its time ran out, or, with the
	// Status 101, that its connection was closed: its pod may go on computing for it.
	Abandoned bool `json:"abandoned,omitempty"`

	Pod  string `json:"pod,omitempty"` // namespace/name; empty when it is not known
	Node string `json:"node,omitempty"`

	Size        int64              `json:"sizeBytes"` // api.UnknownSize when it is not known
	Mode        api.Mode           `json:"mode,omitempty"`
	Ranked      bool               `json:"ranked,omitempty"` // under the source node, where it counts for its pod's weight
	Predicted   bool               `json:"predicted"`
	Prediction  predict.Prediction `json:"prediction"`
	Allocation  api.Resources      `json:"allocation"`
	CouldLend   api.Resources      `json:"couldLend"` // whatever the mode and the source
	WouldBorrow api.Resources      `json:"wouldBorrow"`
	Surplus     api.Resources      `json:"surplus"` // as reported to the pool
	Want        api.Resources      `json:"want"`    // as reported to the pool
	Role        string             `json:"role,omitempty"`
	Reason      string             `json:"reason,omitempty"`
	Quick       bool               `json:"quick,omitempty"` // predicted to be over too soon to be worth reporting
	Pool        *PoolAnswer        `json:"pool,omitempty"`  // nil when it was not reported to the pool by itself
}

// PoolAnswer is what the pool said of a request.
type PoolAnswer struct {
	Begun   bool          `json:"begun"` // the pool has answered the Begin
	Granted api.Resources `json:"granted"`
	Ended   bool          `json:"ended"` // the pool has answered the End
	// Lent and Borrowed are the most at any time.
	Lent        api.Resources `json:"lent"`
	Borrowed    api.Resources `json:"borrowed"`
	Safeguarded bool          `json:"safeguarded"` // its pod got back at once what it had lent
}

// Requests are the requests that an activator found among those that it keeps.
type Requests struct {
	Kept   int        `json:"kept"`
	Oldest *time.Time `json:"oldest,omitempty"` // when the oldest of those ended
	// Found has the newest first, at most ten.
	Found []Decision `json:"found"`
}

// kept is a Decision as it is stored: without pointers, each of which would be one more allocation.
type kept struct {
	Decision
	trace  trace.TraceID
	ended  time.Time
	told   bool
	answer PoolAnswer
}

// recent keeps the last requests. A nil one keeps nothing.
type recent struct {
	mu   sync.Mutex
	ring []kept
	last int64 // the number of the newest; the first is 1
}

func newRecent() *recent { return &recent{ring: make([]kept, recentMost)} }

// add keeps a request and returns its number.
func (r *recent) add(k *kept) int64 {
	if r == nil {
		return 0
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.last++
	r.ring[r.last%recentMost] = *k
	return r.last
}

// begun adds what the pool had for a request, if that is still kept.
func (r *recent) begun(number int64, granted api.Resources) {
	r.amend(number, func(a *PoolAnswer) { a.Begun, a.Granted = true, granted })
}

// ended adds what the pool knew of a request in the end, if that is still kept.
func (r *recent) ended(number int64, o pool.Outcome) {
	r.amend(number, func(a *PoolAnswer) {
		a.Ended, a.Lent, a.Borrowed, a.Safeguarded = true, o.Lent, o.Borrowed, o.Safeguarded
	})
}

func (r *recent) amend(number int64, change func(*PoolAnswer)) {
	if r == nil || number == 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.last-number < recentMost {
		change(&r.ring[number%recentMost].answer)
	}
}

// find returns the newest requests that match.
func (r *recent) find(matches func(*kept) bool) Requests {
	found := Requests{Found: []Decision{}}
	r.mu.Lock()
	defer r.mu.Unlock()
	found.Kept = int(min(r.last, recentMost))
	for i := range int64(found.Kept) {
		k := &r.ring[(r.last-i)%recentMost]
		if i == int64(found.Kept)-1 {
			oldest := k.ended
			found.Oldest = &oldest
		}
		if len(found.Found) == recentFound || !matches(k) {
			continue
		}
		d := k.Decision
		if k.trace.IsValid() {
			d.Trace = k.trace.String()
		}
		if k.told {
			answer := k.answer
			d.Pool = &answer
		}
		found.Found = append(found.Found, d)
	}
	return found
}

// note keeps a request whose response has ended. dispatched is zero if it had no slot.
func (m *Manager) note(req *request, dispatched time.Time) {
	k, now := &req.kept, m.clock.Now()
	k.trace, k.ended = req.span.TraceID(), now
	k.RequestID = req.clientID
	k.Namespace, k.Revision, k.Service = req.rev.Namespace, req.rev.Name, req.rev.Labels[serving.ServiceLabelKey]
	k.Arrived, k.Size = req.arrived, req.size
	k.Status, k.Abandoned = req.response.status, req.abandoned
	if k.Dispatched = !dispatched.IsZero(); k.Dispatched {
		k.Waited.Duration, k.Ran.Duration = dispatched.Sub(req.arrived), now.Sub(dispatched)
		k.CouldLend, k.WouldBorrow, k.Reason = req.seen.could.surplus, req.seen.could.want, string(req.seen.reason())
	} else {
		k.Waited.Duration = now.Sub(req.arrived)
	}
	req.noted = m.lifecycle.recent.add(k)
}

// RequestsHandler serves, as JSON, the last requests that match all of the given parameters trace, id, namespace and
// service.
func (m *Manager) RequestsHandler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked := r.URL.Query()
		id, namespace, service := asked.Get("id"), asked.Get("namespace"), asked.Get("service")
		var traceID trace.TraceID
		if value := asked.Get("trace"); value != "" {
			var err error
			if traceID, err = trace.TraceIDFromHex(value); err != nil {
				http.Error(w, "trace: "+err.Error(), http.StatusBadRequest)
				return
			}
		}
		found := m.lifecycle.recent.find(func(k *kept) bool {
			return (!traceID.IsValid() || k.trace == traceID) && (id == "" || k.RequestID == id) &&
				(namespace == "" || k.Namespace == namespace) && (service == "" || k.Service == service)
		})
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(found) // fails when the client has gone
	})
}
