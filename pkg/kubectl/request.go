package kubectl

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"go.opentelemetry.io/otel/trace"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"libra.dev/libra/activator-plugin/invocation"
	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/kubectl/swap"
)

const (
	latestRequest = "latest"
	// activatorTimeout is how long each activator has to answer.
	activatorTimeout = 5 * time.Second
	// mostAsked is how many activators are asked at a time.
	mostAsked = 32
	// mostRequests is more than the size of an activator's answer, in bytes.
	mostRequests = 1 << 20
)

// pastRequest is what `explain --request` found.
type pastRequest struct {
	invocation.Decision
	activator string
	// others is how many more requests of the Service were found.
	others int
	// unanswered names the activators that did not answer, other than those which are about to go; nil if there are none.
	unanswered error
}

// pastDocument is what `explain --request` prints as JSON and YAML.
type pastDocument struct {
	Activator   string                 `json:"activator"`
	Trace       string                 `json:"trace,omitempty"`
	RequestID   string                 `json:"requestID,omitempty"`
	Namespace   string                 `json:"namespace"`
	Service     string                 `json:"service"`
	Revision    string                 `json:"revision"`
	Pod         string                 `json:"pod,omitempty"`
	Node        string                 `json:"node,omitempty"`
	Arrived     metav1.Time            `json:"arrived"`
	Waited      string                 `json:"waited"`
	Ran         string                 `json:"ran"`
	Dispatched  bool                   `json:"dispatched"`
	Status      int                    `json:"status"`
	Abandoned   bool                   `json:"abandoned"`
	Size        *int64                 `json:"sizeBytes,omitempty"`
	Mode        api.Mode               `json:"mode,omitempty"`
	Allocation  api.Resources          `json:"allocation"`
	Prediction  *predictionDocument    `json:"prediction,omitempty"`
	CouldLend   api.Resources          `json:"couldLend"`
	WouldBorrow api.Resources          `json:"wouldBorrow"`
	Role        string                 `json:"role,omitempty"`
	Reason      string                 `json:"reason,omitempty"`
	Pool        *invocation.PoolAnswer `json:"pool,omitempty"`
}

var requestID = regexp.MustCompile(`^[0-9A-Za-z._-]{1,128}$`)

// parseRequest returns the query for activators.
func parseRequest(value string, service client.ObjectKey) (url.Values, error) {
	traceparent := trace.SpanContextFromContext(api.ContextWithTraceparent(context.Background(), value))
	_, err := trace.TraceIDFromHex(value)
	switch {
	case value == latestRequest:
		return url.Values{"namespace": {service.Namespace}, "service": {service.Name}}, nil
	case traceparent.IsValid():
		return url.Values{"trace": {traceparent.TraceID().String()}}, nil
	case err == nil:
		return url.Values{"trace": {value}}, nil
	case requestID.MatchString(value):
		return url.Values{"id": {value}}, nil
	}
	return nil, fmt.Errorf("--request is %.140q, want %s, the ID of a W3C trace (32 digits 0-9 and a-f), a traceparent, or an X-Request-Id (letters, digits, dots, dashes and underscores, 128 at most)", value, latestRequest)
}

// searched says where a request was looked for.
type searched struct {
	activators, kept int
	oldest           *time.Time
	failed           []error
}

// findRequest looks for a request in all activators.
func findRequest(ctx context.Context, kube client.Client, to forward, service client.ObjectKey, request string, now time.Time) (*pastRequest, error) {
	asked, err := parseRequest(request, service)
	if err != nil {
		return nil, err
	}
	var of servingv1.Service
	if err := kube.Get(ctx, service, &of); err != nil {
		return nil, fmt.Errorf("reading Service %s: %w", service, err)
	}
	var pods corev1.PodList
	if err := kube.List(ctx, &pods, client.InNamespace(swap.Namespace), client.MatchingLabels{"app": swap.Name}); err != nil {
		return nil, fmt.Errorf("reading pods of namespace %s: %w", swap.Namespace, err)
	}
	running := slices.DeleteFunc(pods.Items, func(pod corev1.Pod) bool { return pod.Status.Phase != corev1.PodRunning })
	answers, errs := make([]*invocation.Requests, len(running)), make([]error, len(running))
	var asking errgroup.Group
	asking.SetLimit(mostAsked)
	for i := range running {
		asking.Go(func() error {
			answers[i], errs[i] = askActivator(ctx, to, &running[i], asked)
			return nil
		})
	}
	asking.Wait() //nolint:errcheck // each error is in errs
	var in searched
	var found, others []*pastRequest
	var unanswered []error
	for i, answer := range answers {
		if errs[i] != nil {
			err := fmt.Errorf("activator %s: %w", running[i].Name, errs[i])
			in.failed = append(in.failed, err)
			// For minutes after an installation, a stock activator serves its last requests. It gets no others.
			if running[i].DeletionTimestamp == nil {
				unanswered = append(unanswered, err)
			}
			continue
		}
		in.take(answer)
		for _, d := range answer.Found {
			if d.Namespace == service.Namespace && d.Service == service.Name {
				found = append(found, &pastRequest{Decision: d, activator: running[i].Name})
			} else {
				others = append(others, &pastRequest{Decision: d})
			}
		}
	}
	if len(found) == 0 {
		return nil, in.notFound(&of, request, others, now)
	}
	newest := slices.MaxFunc(found, func(a, b *pastRequest) int { return a.Arrived.Compare(b.Arrived) })
	if request != latestRequest {
		newest.others = len(found) - 1
	}
	if len(unanswered) > 0 {
		newest.unanswered = fmt.Errorf("%d of %d activators did not answer, so there may be another: %w", len(unanswered), len(running), errors.Join(unanswered...))
	}
	return newest, nil
}

func askActivator(ctx context.Context, to forward, pod *corev1.Pod, asked url.Values) (*invocation.Requests, error) {
	ctx, cancel := context.WithTimeout(ctx, activatorTimeout)
	defer cancel()
	base, stop, err := to(ctx, pod, api.ActivatorMetricsPort)
	if err != nil {
		return nil, err
	}
	defer stop()
	at := base.JoinPath(api.ActivatorRequestsPath)
	at.RawQuery = asked.Encode()
	response, err := get(ctx, at)
	if err != nil {
		return nil, fmt.Errorf("it does not list its requests; `kubectl libra check` says whether it is Libra's, and its version may differ from this plugin's: %w", err)
	}
	defer response.Body.Close()
	var answer invocation.Requests
	if err := json.NewDecoder(io.LimitReader(response.Body, mostRequests)).Decode(&answer); err != nil {
		return nil, fmt.Errorf("reading its answer: %w", err)
	}
	return &answer, nil
}

func (in *searched) take(answer *invocation.Requests) {
	in.activators++
	in.kept += answer.Kept
	if answer.Oldest != nil && (in.oldest == nil || answer.Oldest.Before(*in.oldest)) {
		in.oldest = answer.Oldest
	}
}

// notFound says where the request was looked for, and how
// to send one that can be found.
func (in *searched) notFound(service *servingv1.Service, request string, others []*pastRequest, now time.Time) error {
	name := service.Namespace + "/" + service.Name
	switch {
	case in.activators == 0 && len(in.failed) == 0:
		return fmt.Errorf("no activator runs: look at `kubectl -n %s get pods -l app=%s`", swap.Namespace, swap.Name)
	case in.activators == 0:
		return errors.Join(in.failed...)
	case len(others) > 0:
		o := others[0]
		return fmt.Errorf("request %s was not to Service %s: run `kubectl libra explain %s -n %s --request %s`", request, name, o.Service, o.Namespace, request)
	}
	which := "request " + request
	if request == latestRequest {
		which = "request"
	}
	text := fmt.Sprintf("no %s of Service %s is among the last %d requests that %d activators keep", which, name, in.kept, in.activators)
	if in.oldest != nil {
		text += fmt.Sprintf(", the oldest of which ended %s ago", duration.HumanDuration(now.Sub(*in.oldest)))
	}
	if len(in.failed) > 0 {
		text += fmt.Sprintf("; %d activators did not answer, the first because: %v", len(in.failed), in.failed[0])
	}
	to := "URL"
	if service.Status.URL != nil {
		to = service.Status.URL.String()
	}
	id := newTraceID()
	return fmt.Errorf("%s. An activator keeps a request to a revision that has opted in once the response has ended. To send a request that can be found:\n"+
		"  curl -H 'traceparent: 00-%s-%s-00' %s\n  kubectl libra explain %s -n %s --request %s", text, id, id[:16], to, service.Name, service.Namespace, id)
}

func (p *pastRequest) document(now time.Time) document {
	table := newTable("what", "is", "because")
	is := nonEmpty(p.Trace, p.RequestID)
	if len(is) == 0 {
		is = []string{"without an ID"}
	}
	took := p.Waited.Duration + p.Ran.Duration
	addRow(table, "request", strings.Join(is, ", "), fmt.Sprintf("activator %s got it %s ago", p.activator, duration.HumanDuration(now.Sub(p.Arrived))))
	addRow(table, "function", p.Namespace+"/"+p.Service, "its revision was "+p.Revision)
	response, because := fmt.Sprintf("%d after %v", p.Status, round(took)), fmt.Sprintf("it waited %v for a slot, and ran %v", round(p.Waited.Duration), round(p.Ran.Duration))
	if p.Status == 0 {
		response = fmt.Sprintf("none after %v", round(took))
	}
	if !p.Dispatched {
		because = "it got no slot in a pod"
	}
	switch {
	case p.Abandoned && p.Status == http.StatusSwitchingProtocols:
		because += "; its connection was upgraded, and who closed it first is not known"
	case p.Abandoned:
		because += "; its client went away, or its time ran out"
	}
	addRow(table, "response", response, because)
	if !p.Dispatched {
		return p.with(table)
	}
	pod := "not known"
	if p.Pod != "" {
		pod = p.Pod + " on " + p.Node
	}
	addRow(table, "pod", pod, "")
	addRow(table, "user allocation", p.Allocation.String(), "the limits in the Revision")
	addRow(table, "mode", string(p.Mode), "the mode in force when it began")
	size := "not known"
	if p.Size != api.UnknownSize {
		size = fmt.Sprintf("%d bytes", p.Size)
	}
	addRow(table, "input size", size, "")
	if p.Predicted {
		addPrediction(table, &p.Prediction, p.CouldLend, p.WouldBorrow, "the activator's prediction at the time", whyNeither(p.Reason))
	} else {
		addRow(table, "prediction", "none", becauseOf[p.Reason])
	}
	why := becauseOf[p.Reason]
	if p.Ranked {
		why = strings.Join(nonEmpty(why, underNode), "; ")
	}
	addRow(table, "role", p.Role, why)
	p.addPool(table)
	return p.with(table)
}

// addPool adds the pool's answer.
func (p *pastRequest) addPool(table *metav1.Table) {
	switch a := p.Pool; {
	case a == nil && p.Quick:
		addRow(table, "pool", "not reported", "it was predicted to end too soon to be reported")
	case a == nil:
		addRow(table, "pool", "not reported", "there was nothing to lend or to borrow, or the role says why")
	case !a.Begun:
		addRow(table, "pool", "no answer", "the pool did not answer when the request began: check that Redis is available")
	default:
		asked := fmt.Sprintf("it asked for %v, and put in %v", p.Want, p.Surplus)
		addRow(table, "pool", fmt.Sprintf("granted %v", a.Granted), asked)
		if !a.Ended {
			addRow(table, "loans", "not known", "the pool has not answered its End yet")
			break
		}
		because := "the most at any time"
		if a.Safeguarded {
			because += "; the safeguard gave its pod back at once what it lent"
		}
		addRow(table, "loans", fmt.Sprintf("lent %v, borrowed %v", a.Lent, a.Borrowed), because)
	}
}

func (p *pastRequest) with(table *metav1.Table) document {
	d := document{kind: "Request", data: p.forPrograms(), tables: []*metav1.Table{table}}
	if p.others > 0 {
		d.notes = append(d.notes, fmt.Sprintf("%d more requests of the Service have that ID; this is the newest", p.others))
	}
	return d
}

func (p *pastRequest) forPrograms() *pastDocument {
	d := &pastDocument{
		Activator: p.activator, Trace: p.Trace, RequestID: p.RequestID, Namespace: p.Namespace, Service: p.Service, Revision: p.Revision,
		Pod: p.Pod, Node: p.Node, Arrived: metav1.NewTime(p.Arrived), Waited: p.Waited.Duration.String(), Ran: p.Ran.Duration.String(),
		Dispatched: p.Dispatched, Status: p.Status, Abandoned: p.Abandoned, Mode: p.Mode, Allocation: p.Allocation,
		CouldLend: p.CouldLend, WouldBorrow: p.WouldBorrow, Role: p.Role, Reason: p.Reason, Pool: p.Pool,
	}
	if p.Size != api.UnknownSize {
		d.Size = &p.Size
	}
	if p.Predicted {
		d.Prediction = documentOf(&p.Prediction)
	}
	return d
}

// newTraceID returns a random trace ID.
func newTraceID() string {
	var id trace.TraceID
	rand.Read(id[:]) // cannot fail
	return id.String()
}

func round(d time.Duration) time.Duration { return d.Round(100 * time.Microsecond) }
