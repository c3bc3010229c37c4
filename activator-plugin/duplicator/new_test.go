package duplicator

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/metric/noop"
	"go.uber.org/zap/zaptest"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"
	"knative.dev/serving/pkg/activator"
	activatorhandler "knative.dev/serving/pkg/activator/handler"
	v1 "knative.dev/serving/pkg/apis/serving/v1"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/pool/redistest"
	"libra.dev/libra/pkg/redisconn"
)

// aboutRevisions names the revision that an Event is about.
type aboutRevisions struct{ *record.FakeRecorder }

func (a aboutRevisions) Event(about runtime.Object, _, reason, message string) {
	a.Events <- about.(*v1.Revision).Name + " " + reason + " " + message
}

// Requests to an activator lead to replays through that same activator and to
// an Event, with a real Redis and real HTTP.
func TestFromRequestsToReplays(t *testing.T) {
	rev := newRevision("shop-00001")
	c := newCluster(t, nil, rev) // for its API server
	recorder := aboutRevisions{record.NewFakeRecorder(100)}

	var d *Duplicator
	replayed := make(chan string, maxReplays)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		to, function := rev, func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) }
		if name := r.Header.Get(activator.RevisionHeaderName); name != rev.Name {
			to = newRevision(name)
			to.Labels[api.CopyOfLabel] = rev.Name
			function = func(http.ResponseWriter, *http.Request) { replayed <- name }
		}
		ctx := activatorhandler.WithRevisionAndID(r.Context(), to, keyOf(to).NamespacedName)
		d.Handler(http.HandlerFunc(function)).ServeHTTP(w, r.WithContext(ctx))
	}))
	defer server.Close()
	base, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	d, err = New(Options{
		Clock:         clock.RealClock{},
		Logger:        zaptest.NewLogger(t).Sugar(),
		MeterProvider: noop.NewMeterProvider(),
		Events:        recorder,
		Serving:       c.client,
		Redis:         redisconn.MustParse(redistest.Start(t)),
		Owner:         "activator-0.x",
		Activator:     base,
		Largest:       largest,
		Stopped:       func(string) bool { return false },
	})
	if err != nil {
		t.Fatal("New() =", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		d.Run(ctx)
		close(done)
	}()

	send := func() {
		t.Helper()
		r, err := http.NewRequest(http.MethodPost, server.URL, strings.NewReader(strings.Repeat("a", 1000)))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set(activator.RevisionHeaderName, rev.Name)
		answer, err := server.Client().Do(r)
		if err != nil {
			t.Fatal(err)
		}
		answer.Body.Close()
	}
	var last string
	err = wait.PollUntilContextTimeout(ctx, 5*time.Millisecond, time.Minute, true, func(context.Context) (bool, error) {
		// The first request only has Redis asked. The next three are kept.
		if last == "" {
			send()
		}
		select {
		case last = <-recorder.Events:
		default:
		}
		return strings.Contains(last, "DuplicationFinished"), nil
	})
	if want := "shop-00001 DuplicationFinished Replayed inputs to the copy: 24 ok"; err != nil || last != want {
		t.Errorf("the last Event is %q (%v), want %q", last, err, want)
	}
	cancel()
	<-done
	if err := d.Close(); err != nil {
		t.Error("Close() =", err)
	}
	if n := len(replayed); n != maxReplays {
		t.Errorf("%d replays, want %d", n, maxReplays)
	}
	for range len(replayed) {
		if to, want := <-replayed, copyName(rev.Name)+"-00001"; to != want {
			t.Errorf("a replay went to %s, want %s", to, want)
		}
	}
	if left := c.copies(t); len(left) != 0 {
		t.Errorf("%d copies are left", len(left))
	}
}
