package kubectl

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"knative.dev/pkg/apis"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"libra.dev/libra/activator-plugin/invocation"
	"libra.dev/libra/activator-plugin/predict"
	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/kubectl/swap"
)

const traceOfTests = "0af7651916cd43dd8448eb211c80319c"

var (
	thumb    = client.ObjectKey{Namespace: "shop", Name: "thumb"}
	endOfOld = time.Date(2026, 3, 1, 11, 56, 0, 0, time.UTC)
)

func activatorPod(name string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: swap.Namespace, Name: name, Labels: map[string]string{"app": swap.Name}},
		Status:     corev1.PodStatus{Phase: corev1.PodRunning},
	}
}

func pastService() *servingv1.Service {
	s := &servingv1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: thumb.Namespace, Name: thumb.Name}}
	s.Status.URL = apis.HTTP("thumb.shop.example.com")
	return s
}

// borrowed is a request that got what it asked for.
func borrowed() invocation.Decision {
	return invocation.Decision{
		Trace: traceOfTests, RequestID: "client-1", Namespace: "shop", Service: "thumb", Revision: "thumb-00002",
		Arrived: endOfOld.Add(3 * time.Minute), Waited: metav1.Duration{Duration: 3 * time.Millisecond}, Ran: metav1.Duration{Duration: 812 * time.Millisecond},
		Dispatched: true, Status: 200, Pod: "shop/thumb-1", Node: "worker", Size: 5000, Mode: api.ModeFull, Predicted: true,
		Prediction: predict.Prediction{Demand: api.Resources{CPUMilli: 2000, MemoryBytes: 64 << 20}, Duration: 800 * time.Millisecond, CPUTime: 900 * time.Millisecond},
		Allocation: api.Resources{CPUMilli: 500, MemoryBytes: 256 << 20}, CouldLend: api.Resources{MemoryBytes: 128 << 20}, WouldBorrow: api.Resources{CPUMilli: 1500},
		Surplus: api.Resources{MemoryBytes: 128 << 20}, Want: api.Resources{CPUMilli: 1500}, Role: "donor_and_borrower",
		Pool: &invocation.PoolAnswer{Begun: true, Granted: api.Resources{CPUMilli: 700}, Ended: true, Borrowed: api.Resources{CPUMilli: 700}},
	}
}

func TestExplainARequestThatWas(t *testing.T) {
	refused := invocation.Decision{
		RequestID: "client-2", Namespace: "shop", Service: "thumb", Revision: "thumb-00002", Arrived: endOfOld, Waited: metav1.Duration{Duration: time.Second}, Status: 503, Size: api.UnknownSize,
	}
	untold := borrowed()
	untold.Predicted, untold.Pool, untold.Role, untold.Reason, untold.Mode, untold.Size = false, nil, "observed", "no_prediction", api.ModeObserve, api.UnknownSize
	older := borrowed()
	older.Arrived = endOfOld
	for name, of := range map[string][]invocation.Decision{"request-borrower": {older, borrowed()}, "request-no-slot": {refused}, "request-observed": {untold}} {
		t.Run(name, func(t *testing.T) {
			var asked url.Values
			to := forwardedTo(t, func(w http.ResponseWriter, r *http.Request) {
				asked = r.URL.Query()
				json.NewEncoder(w).Encode(invocation.Requests{Kept: len(of), Oldest: &endOfOld, Found: of})
			})
			past, err := findRequest(t.Context(), cluster(pastService(), activatorPod("activator-1")), to, thumb, "00-"+traceOfTests+"-b7ad6b7169203331-00", endOfOld)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(url.Values{"trace": {traceOfTests}}, asked); diff != "" {
				t.Error("Asked for (-want, +got):\n" + diff)
			}
			var out bytes.Buffer
			if err := (&output{outputTable}).print(&out, past.document(endOfOld.Add(200*time.Second))); err != nil {
				t.Fatal(err)
			}
			isGolden(t, name, out.String())
			out.Reset()
			if err := (&output{"json"}).print(&out, past.document(endOfOld)); err != nil || !strings.Contains(out.String(), `"kind": "Request"`) {
				t.Errorf("as JSON it is (%v)\n%s", err, out.String())
			}
		})
	}
}

// The activator cannot tell a client that went away from a time-out, nor who closed an upgraded connection.
func TestExplainARequestThatWasLeft(t *testing.T) {
	left := func(status int, dispatched bool) string {
		d := borrowed()
		d.Status, d.Dispatched, d.Abandoned = status, dispatched, true
		var out bytes.Buffer
		if err := (&output{outputTable}).print(&out, (&pastRequest{Decision: d}).document(endOfOld)); err != nil {
			t.Fatal(err)
		}
		return out.String()
	}
	for _, tc := range []struct{ got, want string }{
		{left(0, true), "it waited 3ms for a slot, and ran 812ms; its client went away, or its time ran out\n"},
		{left(0, false), "it got no slot in a pod; its client went away, or its time ran out\n"},
		{left(200, true), "; its client went away, or its time ran out\n"},
		{left(101, true), "; its connection was upgraded, and who closed it first is not known\n"},
	} {
		if !strings.Contains(tc.got, tc.want) {
			t.Errorf("It is told as\n%s\nwant %q", tc.got, tc.want)
		}
	}
}

// forwardedByPod reaches an activator for every pod, by its name.
func forwardedByPod(t *testing.T, answer func(pod string) invocation.Requests) forward {
	t.Helper()
	return func(ctx context.Context, pod *corev1.Pod, port int32) (*url.URL, func(), error) {
		return forwardedTo(t, func(w http.ResponseWriter, _ *http.Request) { json.NewEncoder(w).Encode(answer(pod.Name)) })(ctx, pod, port)
	}
}

func TestTheLatestRequestOfAllActivators(t *testing.T) {
	older := borrowed()
	older.Arrived = endOfOld
	answers := map[string]invocation.Decision{"activator-1": borrowed(), "activator-2": older}
	past, err := findRequest(t.Context(), cluster(pastService(), activatorPod("activator-1"), activatorPod("activator-2")), forwardedByPod(t, func(pod string) invocation.Requests {
		return invocation.Requests{Kept: 1, Found: []invocation.Decision{answers[pod]}}
	}), thumb, latestRequest, endOfOld)
	if err != nil || past.activator != "activator-1" || past.others != 0 {
		t.Errorf("It is %+v (%v), want that of activator-1", past, err)
	}
}

// One that hangs keeps no other from being asked, and what the others have is no complete answer.
func TestActivatorsThatDoNotAnswer(t *testing.T) {
	answering := forwardedByPod(t, func(string) invocation.Requests {
		return invocation.Requests{Kept: 1, Found: []invocation.Decision{borrowed()}}
	})
	var asked sync.WaitGroup
	asked.Add(3)
	to := func(ctx context.Context, pod *corev1.Pod, port int32) (*url.URL, func(), error) {
		if until, ok := ctx.Deadline(); !ok || time.Until(until) > activatorTimeout {
			t.Errorf("%s has until %v to answer (%v)", pod.Name, until, ok)
		}
		asked.Done()
		all := make(chan struct{})
		go func() { asked.Wait(); close(all) }()
		select {
		case <-all:
		case <-ctx.Done():
			t.Errorf("%s: not all are asked before one has answered", pod.Name)
		}
		if pod.Name != "activator-2" {
			return nil, nil, context.DeadlineExceeded
		}
		return answering(ctx, pod, port)
	}
	past, err := findRequest(t.Context(), cluster(pastService(), activatorPod("activator-1"), activatorPod("activator-2"), activatorPod("activator-3")), to, thumb, latestRequest, endOfOld)
	if err != nil || past.activator != "activator-2" {
		t.Fatalf("It is %+v (%v), want that of activator-2", past, err)
	}
	for _, want := range []string{"2 of 3 activators did not answer", "activator activator-1: ", "activator activator-3: "} {
		if past.unanswered == nil || !strings.Contains(past.unanswered.Error(), want) {
			t.Errorf("The error is %v, want %q in it", past.unanswered, want)
		}
	}
}

// For minutes after an installation, the stock activator serves its last requests, and lists none.
func TestAnActivatorThatIsAboutToGoNeedNotAnswer(t *testing.T) {
	stock := activatorPod("stock")
	stock.DeletionTimestamp, stock.Finalizers = &metav1.Time{Time: endOfOld}, []string{"tests/hold"}
	answering := forwardedByPod(t, func(string) invocation.Requests {
		return invocation.Requests{Kept: 1, Found: []invocation.Decision{borrowed()}}
	})
	past, err := findRequest(t.Context(), cluster(pastService(), activatorPod("activator-1"), stock), func(ctx context.Context, pod *corev1.Pod, port int32) (*url.URL, func(), error) {
		if pod.Name == "stock" {
			return nil, nil, errors.New("connection refused")
		}
		return answering(ctx, pod, port)
	}, thumb, latestRequest, endOfOld)
	if err != nil || past.activator != "activator-1" || past.unanswered != nil {
		t.Errorf("It is %+v (%v), want that of activator-1 without an error", past, err)
	}
}

func TestARequestThatIsNotFound(t *testing.T) {
	both := []client.Object{pastService(), activatorPod("activator-1"), activatorPod("activator-2")}
	nothing := forwardedByPod(t, func(string) invocation.Requests {
		return invocation.Requests{Kept: 600, Oldest: &endOfOld, Found: []invocation.Decision{}}
	})
	old := forwardedTo(t, func(w http.ResponseWriter, _ *http.Request) { http.NotFound(w, nil) })
	another := forwardedByPod(t, func(string) invocation.Requests {
		d := borrowed()
		d.Service = "cart"
		return invocation.Requests{Kept: 1, Found: []invocation.Decision{d}}
	})
	for name, tc := range map[string]struct {
		objects []client.Object
		to      forward
		request string
		want    []string
	}{
		"none": {both, nothing, traceOfTests, []string{
			"no request " + traceOfTests + " of Service shop/thumb is among the last 1200 requests that 2 activators keep, the oldest of which ended 4m ago",
			"curl -H 'traceparent: 00-", "http://thumb.shop.example.com\n  kubectl libra explain thumb -n shop --request ",
		}},
		"no latest":      {both, nothing, latestRequest, []string{"no request of Service shop/thumb is among"}},
		"of another":     {both, another, traceOfTests, []string{"`kubectl libra explain cart -n shop --request " + traceOfTests}},
		"stock":          {both, old, traceOfTests, []string{"activator activator-1: it does not list its requests"}},
		"no activators":  {both[:1], nothing, traceOfTests, []string{"no activator runs"}},
		"no Service":     {nil, nothing, traceOfTests, []string{"reading Service shop/thumb"}},
		"not a request":  {both, nothing, "a b", []string{`--request is "a b", want latest`}},
		"not even a bit": {both, nothing, "", []string{`--request is "", want latest`}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := findRequest(t.Context(), cluster(tc.objects...), tc.to, thumb, tc.request, endOfOld.Add(4*time.Minute))
			for _, want := range tc.want {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("The error is %v, want %q in it", err, want)
				}
			}
		})
	}
}
