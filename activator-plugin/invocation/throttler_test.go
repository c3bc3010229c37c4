package invocation

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	"knative.dev/serving/pkg/apis/serving"
	v1 "knative.dev/serving/pkg/apis/serving/v1"
	"knative.dev/serving/pkg/queue"

	"libra.dev/libra/activator-plugin/predict"
	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/pool"
)

func TestRequestIsBegunAndEnded(t *testing.T) {
	rec := &recorder{}
	prediction := predict.Prediction{Demand: res(300, 600), Duration: 2 * time.Second}
	c := newChain(t, chainOptions{pool: rec, predictions: predictions{revID: prediction}})

	status, body := c.send(t, "hello", "X-Request-Id", "client-1")
	if status != http.StatusOK || body != "hello" {
		t.Errorf("response = %d %q, want 200 and the request's body", status, body)
	}
	drain(t, c.manager.lifecycle)

	id := rec.begins[0].ID
	if ofClient(id) != "client-1" {
		t.Errorf("ID = %q, want client-1.SUFFIX", id)
	}
	if diff := cmp.Diff([]pool.Invocation{{
		ID: id, Function: "ns/rev-00001", Configuration: "ns/rev", Pod: "ns/a", Domain: "ns", Owner: "owner", Size: 5,
		Allocation: res(1000, 512), Predicted: res(300, 600), Duration: 2 * time.Second, WithoutLoan: 2 * time.Second,
		Surplus: res(600, 0), Want: res(0, 88), MinRemaining: 300 * time.Millisecond, Number: 1, IdleCPUMilli: 900,
	}}, rec.begins); diff != "" {
		t.Error("Begin (-want, +got):\n" + diff)
	}
	if diff := cmp.Diff([]pool.Ending{{ID: id, Status: 200, BeginAnswered: true}}, rec.ends, cmpopts.IgnoreFields(pool.Ending{}, "Duration")); diff != "" {
		t.Error("End (-want, +got):\n" + diff)
	}
	if rec.ends[0].Duration <= 0 {
		t.Errorf("Duration = %v, want more than 0", rec.ends[0].Duration)
	}
	if diff := cmp.Diff(map[string]int64{"donor_and_borrower": 1}, c.counts(t, "libra.invocations")); diff != "" {
		t.Error("libra.invocations (-want, +got):\n" + diff)
	}
}

// The worth of a loan depends on how long the request takes without it.
func TestBorrowerIsBegunWithBothTimes(t *testing.T) {
	rec := &recorder{}
	c := newChain(t, chainOptions{pool: rec, mode: api.ModeFull, predictions: predictions{
		revID: {Demand: res(4000, 500), Duration: 100 * time.Millisecond, CPUTime: 2 * time.Second},
	}})
	c.send(t, "hello")
	drain(t, c.manager.lifecycle)
	if b := rec.begins[0]; b.Want != res(3000, 0) || b.Duration != 500*time.Millisecond || b.WithoutLoan != 2*time.Second {
		t.Errorf("Begin of one that wants %v, for %v, or %v without a loan; want %v, 500ms and 2s", b.Want, b.Duration, b.WithoutLoan, res(3000, 0))
	}
}

// No namespace has the name of a domain that several share.
func TestDomainOfSeveralNamespaces(t *testing.T) {
	rec := &recorder{}
	c := newChain(t, chainOptions{pool: rec, domain: "team", predictions: predictions{revID: {Demand: res(300, 600), Duration: 2 * time.Second}}})
	c.send(t, "hello")
	drain(t, c.manager.lifecycle)
	if got := rec.begins[0].Domain; got != "domain/team" {
		t.Errorf("the domain is %q, want domain/team", got)
	}
}

func TestRevisionWithoutConfiguration(t *testing.T) {
	for name, change := range map[string]func(*v1.Revision){
		"it has none": func(rev *v1.Revision) { delete(rev.Labels, serving.ConfigurationLabelKey) },
		// The pool, its events and its observations would hold as much for each request.
		"a copy names one that cannot be": func(rev *v1.Revision) {
			rev.Labels[api.CopyOfLabel] = "original-00001"
			rev.Annotations[api.CopyOfConfigurationAnnotation] = strings.Repeat("x", 200<<10)
		},
	} {
		t.Run(name, func(t *testing.T) {
			rec := &recorder{}
			rev := newRevision()
			change(rev)
			c := newChain(t, chainOptions{pool: rec, rev: rev})
			c.send(t, "hello")
			drain(t, c.manager.lifecycle)
			if got := rec.begins[0].Configuration; got != "" {
				t.Errorf("Configuration = %.100q, want none", got)
			}
		})
	}
}

func TestCopyIsOnlyObserved(t *testing.T) {
	rec := &recorder{}
	rev := newRevision()
	rev.Labels[serving.ConfigurationLabelKey] = "original-00001-libra-copy"
	rev.Labels[api.CopyOfLabel] = "original-00001"
	rev.Annotations[api.CopyOfConfigurationAnnotation] = "original"
	c := newChain(t, chainOptions{pool: rec, rev: rev, predictions: predictions{
		revID: {Demand: res(300, 100), Duration: time.Minute},
		{Namespace: "ns", Name: "original-00001"}: {Demand: res(300, 100), Duration: time.Minute},
	}})
	c.send(t, "hello")
	drain(t, c.manager.lifecycle)
	if diff := cmp.Diff([]pool.Invocation{{
		Function: "ns/original-00001", Configuration: "ns/original", Pod: "ns/a", Domain: "ns", Owner: "owner", Size: 5,
		Allocation: res(1000, 512), MinRemaining: 300 * time.Millisecond,
	}}, rec.begins, cmpopts.IgnoreFields(pool.Invocation{}, "ID", "Number")); diff != "" {
		t.Error("Begin (-want, +got):\n" + diff)
	}
	if diff := cmp.Diff(map[string]int64{"copy observed": 1}, c.counts(t, "libra.invocations")); diff != "" {
		t.Error("libra.invocations (-want, +got):\n" + diff)
	}
	if c.asked.Load() != 0 {
		t.Error("a prediction was asked for that cannot be used")
	}
}

func TestRoles(t *testing.T) {
	donor := predictions{revID: {Demand: res(300, 100), Duration: time.Second}}
	revision := func(change func(*v1.Revision)) *v1.Revision {
		rev := newRevision()
		change(rev)
		return rev
	}
	for _, tc := range []struct {
		name    string
		options chainOptions
		headers []string
		count   string // of libra.invocations; "" for none
		surplus api.Resources
		begun   bool
		asked   bool // for a prediction, which may take time
	}{
		{name: "not opted in", count: "", options: chainOptions{predictions: donor,
			rev: revision(func(r *v1.Revision) { r.Labels[api.EnabledLabel] = "false" })}},
		{name: "donor", count: "donor", surplus: res(600, 384), begun: true, asked: true, options: chainOptions{predictions: donor}},
		{name: "nothing to lend or borrow", count: "neither", begun: true, asked: true, options: chainOptions{
			predictions: predictions{revID: {Demand: res(1000, 512), Duration: time.Second}}}},
		{name: "no prediction", count: "no_prediction observed", begun: true, asked: true},
		{name: "several at a time", count: "donor", surplus: res(600, 384), begun: true, asked: true, options: chainOptions{predictions: donor,
			rev: revision(func(r *v1.Revision) { r.Spec.ContainerConcurrency = ptr.To[int64](2) })}},
		{name: "any number at a time", count: "concurrency observed", begun: true, options: chainOptions{predictions: donor,
			rev: revision(func(r *v1.Revision) { r.Spec.ContainerConcurrency = nil })}},
		{name: "queue-proxy with limits", count: "queue_proxy_limits observed", begun: true, options: chainOptions{predictions: donor,
			pods: []podOption{func(p *corev1.Pod) { p.Spec.Containers[1].Resources.Limits = res(100, 0).List() }}}},
		{name: "no limits", count: "no_limits observed", begun: true, options: chainOptions{predictions: donor,
			pods: []podOption{func(p *corev1.Pod) { p.Spec.Containers[0].Resources.Limits = nil }}}},
		{name: "unnamed container", count: "donor", surplus: res(600, 384), begun: true, asked: true, options: chainOptions{predictions: donor,
			rev: revision(func(r *v1.Revision) { r.Spec.Containers[0].Name = "" })}},
		{name: "first in its container", count: "first_in_container observed", begun: true, options: chainOptions{predictions: donor, newPod: true}},
		{name: "its container may have started after it came", count: "cold_start observed", begun: true, options: chainOptions{predictions: donor,
			pods: []podOption{func(p *corev1.Pod) {
				p.Status.ContainerStatuses[1].State.Running.StartedAt = metav1.NewTime(time.Now().Add(time.Minute))
			}}}},
		{name: "its container is not seen to run", count: "first_in_container observed", begun: true, options: chainOptions{predictions: donor,
			pods: []podOption{func(p *corev1.Pod) { p.Status.ContainerStatuses[1].State = corev1.ContainerState{} }}}},
		{name: "pod not known", count: "pod_unknown unmanaged", options: chainOptions{predictions: donor,
			pods: []podOption{func(p *corev1.Pod) { p.Status.PodIPs = nil }}}},
		{name: "ClusterIP", count: "cluster_ip unmanaged", options: chainOptions{predictions: donor,
			throttler: oneDest{clusterIP: true}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			rec := &recorder{}
			tc.options.pool = rec
			c := newChain(t, tc.options)
			if status, _ := c.send(t, "hello"); status != http.StatusOK {
				t.Errorf("status = %d, want 200", status)
			}
			drain(t, c.manager.lifecycle)

			want := map[string]int64{}
			if tc.count != "" {
				want[tc.count] = 1
			}
			if diff := cmp.Diff(want, c.counts(t, "libra.invocations")); diff != "" {
				t.Error("libra.invocations (-want, +got):\n" + diff)
			}
			if asked := c.asked.Load() == 1; asked != tc.asked {
				t.Errorf("asked for a prediction: %v, want %v", asked, tc.asked)
			}
			if begun := len(rec.begins) == 1; begun != tc.begun {
				t.Fatalf("calls = %q, want it begun: %v", rec.calls, tc.begun)
			}
			if !tc.begun {
				return
			}
			if diff := cmp.Diff(tc.surplus, rec.begins[0].Surplus); diff != "" || !rec.begins[0].Want.IsZero() {
				t.Errorf("Begin wants %v; surplus (-want, +got):\n%s", rec.begins[0].Want, diff)
			}
		})
	}
}

func TestSeveralAtATime(t *testing.T) {
	for _, tc := range []struct {
		concurrency int64
		demand      api.Resources
		known       bool
		want        pool.Invocation
	}{
		{1, res(300, 100), true, pool.Invocation{Surplus: res(600, 384)}},
		{4, res(300, 100), true, pool.Invocation{Surplus: res(600, 384), Concurrency: 4, Need: res(400, 128)}},
		{4, res(1300, 100), true, pool.Invocation{Surplus: res(0, 384), Want: res(300, 0), Concurrency: 4, Need: res(1000, 128)}},
		{4, res(0, 0), false, pool.Invocation{Concurrency: 4}},
		{0, res(300, 100), true, pool.Invocation{}},
	} {
		rec := &recorder{}
		rev := newRevision()
		rev.Spec.ContainerConcurrency = &tc.concurrency
		known := predictions{}
		if tc.known {
			known[revID] = predict.Prediction{Demand: tc.demand, Duration: time.Second}
		}
		c := newChain(t, chainOptions{pool: rec, rev: rev, predictions: known})
		c.send(t, "hello")
		drain(t, c.manager.lifecycle)
		got := pool.Invocation{
			Surplus: rec.begins[0].Surplus, Want: rec.begins[0].Want, Concurrency: rec.begins[0].Concurrency, Need: rec.begins[0].Need,
		}
		if diff := cmp.Diff(tc.want, got); diff != "" {
			t.Errorf("Begin with containerConcurrency %d and a demand of %v (-want, +got):\n%s", tc.concurrency, tc.demand, diff)
		}
	}
}

func TestErrorsOfTry(t *testing.T) {
	for _, tc := range []struct {
		err    error
		status int
	}{
		{context.DeadlineExceeded, http.StatusServiceUnavailable},
		{queue.ErrRequestQueueFull, http.StatusServiceUnavailable},
		{errors.New("no such revision"), http.StatusInternalServerError},
	} {
		t.Run(tc.err.Error(), func(t *testing.T) {
			rec := &recorder{}
			c := newChain(t, chainOptions{pool: rec, throttler: oneDest{err: tc.err}})
			if status, _ := c.send(t, ""); status != tc.status {
				t.Errorf("status = %d, want %d", status, tc.status)
			}
			drain(t, c.manager.lifecycle)
			if len(rec.calls) != 0 {
				t.Errorf("calls = %q, want none", rec.calls)
			}
		})
	}
}

func TestAnotherAttemptIsAnotherInvocation(t *testing.T) {
	rec := &recorder{}
	c := newChain(t, chainOptions{pool: rec})
	req := &request{rev: newRevision(), id: "client-1", response: &statusWriter{ResponseWriter: httptest.NewRecorder()}}
	ctx := context.WithValue(context.Background(), requestKey{}, req)
	err := c.manager.Throttler(oneDest{dest: "127.0.0.1:80", tries: 2}).Try(ctx, revID, func(string, bool) error { return nil })
	if err != nil {
		t.Fatal("Try() =", err)
	}
	drain(t, c.manager.lifecycle)
	if len(rec.begins) != 2 || rec.begins[0].ID == rec.begins[1].ID {
		t.Fatalf("calls = %q, want two Begins with different IDs", rec.calls)
	}
	for _, inv := range rec.begins {
		if ofClient(inv.ID) != "client-1" {
			t.Errorf("ID = %q, want client-1.SUFFIX", inv.ID)
		}
	}
}

// ofClient is how a client finds its request by an invocation's ID.
func ofClient(id string) string { return id[:strings.LastIndex(id, ".")] }

func TestThePoolNeverDelaysARequest(t *testing.T) {
	release := make(chan struct{})
	hang := func(context.Context) error {
		<-release
		return nil
	}
	rec := &recorder{
		beginHook: func(ctx context.Context, _ pool.Invocation) error { return hang(ctx) },
		endHook:   func(ctx context.Context, _ pool.Ending) error { return hang(ctx) },
	}
	c := newChain(t, chainOptions{pool: rec})
	// If any of these waited for the pool, the test would not end.
	for range 10 {
		if status, _ := c.send(t, "hello"); status != http.StatusOK {
			t.Errorf("status = %d, want 200", status)
		}
	}
	close(release)
	drain(t, c.manager.lifecycle)
}

// Requests that do nothing in the pool are sampled, except copies. All others are
// reported.
func TestRequestsThatDoNotLendAreSampled(t *testing.T) {
	const requests = samplesFirst + 30
	lends := predict.Prediction{Demand: res(300, 100), Duration: time.Minute}
	short := predict.Prediction{Demand: res(300, 100), Duration: time.Millisecond}
	needsAll := predict.Prediction{Demand: res(1000, 512), Duration: time.Minute}
	borrows := predict.Prediction{Demand: res(1400, 512), Duration: time.Minute}
	const (
		each  = "each told of"
		some  = "some told of"
		crowd = "some told of, and the others as one"
	)
	for name, test := range map[string]struct {
		known       predictions
		concurrency int64
		mode        api.Mode
		copy        bool
		requests    int64 // milli CPU; 0 is as usual
		want        string
	}{
		"too short to lend":            {known: predictions{revID: short}, concurrency: 1, requests: 1000, want: some},
		"lend when it has ended":       {known: predictions{revID: short}, concurrency: 1, want: each},
		"lend":                         {known: predictions{revID: lends}, concurrency: 1, want: each},
		"borrow":                       {known: predictions{revID: borrows}, concurrency: 1, want: each},
		"need all":                     {known: predictions{revID: needsAll}, concurrency: 1, requests: 1000, want: some},
		"not known":                    {concurrency: 1, mode: api.ModeLend, requests: 1000, want: some},
		"not known in an idle donor":   {concurrency: 1, mode: api.ModeLend, want: each}, // which another activator may have left
		"borrow when they turn out to": {concurrency: 1, want: each},
		"only observed":                {known: predictions{revID: lends}, concurrency: 1, mode: api.ModeObserve, want: some},
		"copies":                       {concurrency: 1, copy: true, want: each},
		"lend beside others":           {known: predictions{revID: lends}, concurrency: 2, want: each},
		"need all beside others":       {known: predictions{revID: needsAll}, concurrency: 2, requests: 1000, want: crowd},
		"not known beside others":      {concurrency: 2, mode: api.ModeLend, want: crowd},
		"only observed beside others":  {known: predictions{revID: lends}, concurrency: 2, mode: api.ModeObserve, want: crowd},
		"any number at once":           {known: predictions{revID: lends}, concurrency: 0, want: crowd},
		"any number that are observed": {concurrency: 0, mode: api.ModeObserve, want: crowd},
	} {
		t.Run(name, func(t *testing.T) {
			rec := &recorder{}
			rev := newRevision()
			rev.Spec.ContainerConcurrency = &test.concurrency
			if test.requests != 0 {
				rev.Spec.GetContainer().Resources.Requests = res(test.requests, 64).List()
			}
			if test.copy {
				rev.Labels[api.CopyOfLabel] = "original-00001"
			}
			c := newChain(t, chainOptions{pool: rec, rev: rev, mode: test.mode, predictions: test.known})
			for range requests {
				if status, _ := c.send(t, "hello"); status != http.StatusOK {
					t.Fatalf("status = %d, want 200", status)
				}
			}
			drain(t, c.manager.lifecycle)
			told, late := 0, 0
			for i, inv := range rec.begins {
				if inv.Size != api.UnknownSize {
					told++
				}
				if rec.ends[i].Late {
					late++
				}
			}
			skipped := int(c.counts(t, "libra.invocations")["sampled unmanaged"])
			if told+skipped != requests || told < samplesFirst || (skipped > 0) != (test.want != each) {
				t.Errorf("%d told of and %d not, want %d in all: %s", told, skipped, requests, test.want)
			}
			if others := len(rec.begins) - told; (others > 0) != (test.want == crowd) || others > skipped || late != others || len(rec.ends) != len(rec.begins) {
				t.Errorf("%d Begins for others, %d late Ends and %d Ends of %d Begins: want %s", others, late, len(rec.ends), len(rec.begins), test.want)
			}
			if test.mode == api.ModeObserve && test.known != nil {
				if got := c.volumes(t, "libra.invocations.cpu")["surplus true"]; got <= 0 {
					t.Errorf("%v core seconds of surplus were withheld, want some", got)
				}
			}
		})
	}
}

// Volumes that the mode withholds are counted, whether the requests are reported to the
// pool or not.
func TestWithheldVolumesAreCountedOfAll(t *testing.T) {
	m := newRankingManager(t, &recorder{}, fixed{mode: api.ModeObserve, source: api.SourceOwners},
		predictions{revID: {Demand: res(300, 100), Duration: time.Minute}}, newPod("a", "10.0.0.1"))
	reader := sdkmetric.NewManualReader()
	counted, err := newMetrics(sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)))
	if err != nil {
		t.Fatal("newMetrics() =", err)
	}
	clk := clocktesting.NewFakePassiveClock(time.Now())
	m.metrics, m.lifecycle.metrics, m.clock = counted, counted, clk
	for range samplesFirst + 1 {
		dispatchOnce(m, newRevision(), "10.0.0.1:80")
	}
	m.lifecycle.running.Wait()
	before := values[float64](t, reader, "libra.invocations.cpu")["surplus true"]
	end := m.dispatch(t.Context(), newRequest(newRevision()), revID, "10.0.0.1:80", false)
	clk.SetTime(clk.Now().Add(2 * time.Second))
	end(200)
	drain(t, m.lifecycle)
	if got := values[float64](t, reader, "libra.invocations.cpu")["surplus true"] - before; got != 2*.6 {
		t.Errorf("a request of 2 s that is not told of adds %v core seconds, want 1.2", got)
	}
}
