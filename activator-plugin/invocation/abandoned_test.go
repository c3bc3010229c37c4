package invocation

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	"knative.dev/serving/pkg/apis/config"

	"libra.dev/libra/activator-plugin/predict"
)

// A function may go on computing for a client that has left. What comes after it in the container
// lends nothing and is not learned from for as long as a request may run.
func TestWhatComesAfterAnAbandonedRequestLendsAndTeachesNothing(t *testing.T) {
	for _, w := range wires {
		t.Run(w.name, func(t *testing.T) {
			abandoned := strings.HasPrefix(w.name, "the client") || strings.HasPrefix(w.name, "no response in time")
			rec, rev := &recorder{}, newRevision()
			rev.Annotations[config.AllowHTTPFullDuplexFeatureKey] = "Enabled"
			rev.Spec.TimeoutSeconds = ptr.To[int64](40)
			c := newChain(t, chainOptions{pool: rec, rev: rev, function: wired(),
				timeout: func(r *http.Request) time.Duration {
					if r.URL.Path == "/hang" {
						return 100 * time.Millisecond
					}
					return testTimeout
				},
				predictions: predictions{revID: predict.Prediction{Demand: res(300, 100), Duration: time.Minute}},
			})
			clk := clocktesting.NewFakePassiveClock(time.Now())
			c.manager.clock = clk
			client, stop := newClient(w.proto)
			ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
			defer cancel()
			if err := w.talk(ctx, client, c.URL); err != nil {
				t.Error(err)
			}
			rec.await(t, 2)
			stop()
			for i, step := range []struct {
				after time.Duration
				lends bool
			}{{0, !abandoned}, {39 * time.Second, !abandoned}, {2 * time.Second, true}} {
				clk.SetTime(clk.Now().Add(step.after))
				c.send(t, "hello")
				rec.await(t, 4+2*i)
				rec.mu.Lock()
				if begin, end := rec.begins[1+i], rec.ends[1+i]; begin.Surplus.IsZero() == step.lends || (begin.IdleCPUMilli == 0) == step.lends || end.Late == step.lends {
					t.Errorf("request %d after it has the surplus %v and ends late: %t; want it to lend and to be learned from: %t",
						1+i, begin.Surplus, end.Late, step.lends)
				}
				rec.mu.Unlock()
			}
			drain(t, c.manager.lifecycle)
			if rec.ends[0].Late != abandoned {
				t.Errorf("its own End is late: %t, want %t", rec.ends[0].Late, abandoned)
			}
			if got := c.counts(t, "libra.invocations")["abandoned neither"]; (got == 2) != abandoned {
				t.Errorf("libra.invocations %v, want two abandoned: %t", c.counts(t, "libra.invocations"), abandoned)
			}
		})
	}
}
