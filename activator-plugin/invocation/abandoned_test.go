package invocation

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"knative.dev/serving/pkg/apis/config"

	"libra.dev/libra/activator-plugin/predict"
	"libra.dev/libra/pkg/api"
)

// A function may go on computing for a client that has left. The pool is told where, whether or not
// the invocation was reported to it. On an upgraded connection it is not seen which side left first.
func TestPoolIsToldWhereAFunctionMayComputeForAClientThatLeft(t *testing.T) {
	for _, kind := range []struct {
		name        string
		mode        api.Mode
		concurrency int64
		before      int // requests, so that the next is not one of those that are reported anyway
	}{
		{name: "told", mode: api.ModeFull, concurrency: 1},
		{name: "sampled", mode: api.ModeObserve, concurrency: 1, before: samplesFirst + 1},
		{name: "in a crowd", mode: api.ModeObserve, concurrency: 2, before: samplesFirst + 1},
	} {
		for _, w := range wires {
			t.Run(kind.name+", "+w.name, func(t *testing.T) {
				abandoned := strings.HasPrefix(w.name, "the client") || strings.HasPrefix(w.name, "no response in time") ||
					strings.HasPrefix(w.name, "a websocket") && !strings.HasSuffix(w.name, "refused")
				rec, rev := &recorder{}, newRevision()
				rev.Annotations[config.AllowHTTPFullDuplexFeatureKey] = "Enabled"
				rev.Spec.ContainerConcurrency = &kind.concurrency
				c := newChain(t, chainOptions{pool: rec, rev: rev, function: wired(), mode: kind.mode,
					timeout: func(r *http.Request) time.Duration {
						if r.URL.Path == "/hang" {
							return 100 * time.Millisecond
						}
						return testTimeout
					},
					predictions: predictions{revID: predict.Prediction{Demand: res(300, 100), Duration: time.Minute}},
				})
				for range kind.before {
					c.send(t, "hello")
				}
				client, stop := newClient(w.proto)
				defer stop()
				ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
				defer cancel()
				if err := w.talk(ctx, client, c.URL); err != nil {
					t.Error(err)
				}
				waitFor(t, "an End of what computes on, or what comes after", func() bool {
					if !abandoned {
						return true
					}
					rec.mu.Lock()
					defer rec.mu.Unlock()
					return len(rec.ends) > 0 && rec.ends[len(rec.ends)-1].ComputesIn == "ns/a"
				})
				c.send(t, "hello")
				drain(t, c.manager.lifecycle)
				computing := 0
				for _, e := range rec.ends {
					if e.ComputesIn != "" {
						computing++
					}
				}
				if (computing == 1) != abandoned {
					t.Errorf("%d Ends of %v say that a pod may compute on, want one: %t", computing, rec.ends, abandoned)
				}
				if counted := c.counts(t, "libra.invocations.abandoned")[""]; counted != int64(computing) {
					t.Errorf("libra.invocations.abandoned is %d, want %d", counted, computing)
				}
			})
		}
	}
}
