package invocation

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/ptr"
	activatorhandler "knative.dev/serving/pkg/activator/handler"
	v1 "knative.dev/serving/pkg/apis/serving/v1"

	"libra.dev/libra/activator-plugin/queue"
	"libra.dev/libra/pkg/api"
)

func TestQueueOrder(t *testing.T) {
	known := predictions{revID: {Demand: res(300, 100), Duration: 2 * time.Second, CPUTime: time.Second}}
	ordered := queue.Request{Order: queue.ShortestFirst, Predicted: time.Second, Timeout: 300 * time.Second}
	for _, tc := range []struct {
		name        string
		predictions predictions
		source      api.Source
		revision    func(*v1.Revision)
		upgrade     bool
		want        queue.Request
		event       string
	}{
		{name: "the shortest first", predictions: known, source: api.SourceNode, want: ordered},
		{name: "several in a pod", predictions: known, source: api.SourceNode, want: ordered,
			revision: func(r *v1.Revision) { r.Spec.ContainerConcurrency = ptr.To[int64](10) }},
		{name: "by the duration where the CPU time is not predicted", source: api.SourceNode, want: queue.Request{
			Order: queue.ShortestFirst, Predicted: 2 * time.Second, Timeout: 300 * time.Second,
		}, predictions: predictions{revID: {Demand: res(300, 100), Duration: 2 * time.Second}}},
		{name: "nothing is known", source: api.SourceNode, want: queue.Request{Order: queue.ShortestFirst, Timeout: 300 * time.Second}},
		{name: "an upgrade", predictions: known, source: api.SourceNode, upgrade: true,
			want: queue.Request{Order: queue.ShortestFirst, Timeout: 300 * time.Second}},
		{name: "its own time-out", predictions: known, source: api.SourceNode,
			revision: func(r *v1.Revision) { r.Spec.TimeoutSeconds = ptr.To[int64](60) },
			want:     queue.Request{Order: queue.ShortestFirst, Predicted: time.Second, Timeout: time.Minute}},
		{name: "a time-out until the response", predictions: known, source: api.SourceNode,
			revision: func(r *v1.Revision) { r.Spec.ResponseStartTimeoutSeconds = ptr.To[int64](20) },
			want:     queue.Request{Order: queue.ShortestFirst, Predicted: time.Second, Timeout: 20 * time.Second}},

		{name: "not opted in", predictions: known, source: api.SourceNode,
			revision: func(r *v1.Revision) { r.Labels[api.EnabledLabel] = "false" }},
		{name: "any number in a pod", predictions: known, source: api.SourceNode,
			revision: func(r *v1.Revision) { r.Spec.ContainerConcurrency = nil }},
		{name: "mode lend", predictions: known, source: api.SourceNode,
			revision: func(r *v1.Revision) { r.Annotations[api.ModeAnnotation] = "lend" }},
		{name: "mode observe", predictions: known, source: api.SourceNode,
			revision: func(r *v1.Revision) { r.Annotations[api.ModeAnnotation] = "observe" }},
		{name: "source owners", predictions: known, source: api.SourceOwners},
		{name: "fifo", predictions: known, source: api.SourceNode, want: queue.Request{Order: queue.FIFO},
			revision: func(r *v1.Revision) { r.Annotations[api.QueueAnnotation] = "fifo" }},
		{name: "no order", predictions: known, source: api.SourceNode, want: queue.Request{Order: queue.FIFO},
			revision: func(r *v1.Revision) { r.Annotations[api.QueueAnnotation] = "lifo" },
			event:    `annotation libra.dev/queue is "lifo", want fifo`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			rev := newRevision()
			rev.Annotations[api.ModeAnnotation] = "full"
			if tc.revision != nil {
				tc.revision(rev)
			}
			events := record.NewFakeRecorder(10)
			c := newChain(t, chainOptions{pool: &recorder{}, rev: rev, predictions: tc.predictions, events: events, source: tc.source})

			r := httptest.NewRequest(http.MethodPost, "http://function.ns", strings.NewReader("hello"))
			if tc.upgrade {
				r.Header.Set("Connection", "Upgrade")
				r.Header.Set("Upgrade", "websocket")
			}
			r = r.WithContext(activatorhandler.WithRevisionAndID(context.Background(), rev, revID))
			c.manager.Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				if diff := cmp.Diff(tc.want, c.manager.QueueOrder(r.Context(), revID)); diff != "" {
					t.Error("QueueOrder (-want, +got):\n" + diff)
				}
			})).ServeHTTP(httptest.NewRecorder(), r)
			if c.asked.Load() != 0 {
				t.Error("the predictor was asked, which may wait")
			}

			select {
			case got := <-events.Events:
				if tc.event == "" || !strings.Contains(got, tc.event) {
					t.Errorf("Event %q, want %q in it", got, tc.event)
				}
			default:
				if tc.event != "" {
					t.Errorf("no Event, want one with %q", tc.event)
				}
			}
		})
	}
}
