package invocation

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/utils/clock"
	activatorhandler "knative.dev/serving/pkg/activator/handler"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/pool"
	"libra.dev/libra/pkg/pool/pooltest"
)

// Six hours of invocations, of pods that come and go, and of a pool that is away now and then,
// leave nothing behind. The hours are the bubble's.
func TestSixHoursLeaveNothing(t *testing.T) {
	const (
		hours = 6
		pods  = 4
		// most is what the heap may grow by from the first hour to the last: less than 6
		// bytes for each invocation.
		most = 128 << 10
	)
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		watched, err := NewPods(client, zap.NewNop().Sugar())
		if err != nil {
			t.Fatal("NewPods() =", err)
		}
		away := &faulty{Pool: pooltest.NewMemory(clock.RealClock{})}
		book := &totals{Pool: away}
		m, err := NewManager(Options{
			Clock:         clock.RealClock{},
			Logger:        zap.NewNop().Sugar(),
			MeterProvider: sdkmetric.NewMeterProvider(sdkmetric.WithReader(sdkmetric.NewManualReader())),
			Pool:          book,
			Predictor:     predictions{revID: {Demand: res(300, 600), Duration: 2 * time.Second}},
			Pods:          watched,
			Owner:         "owner",
			Settings:      full,
		})
		if err != nil {
			t.Fatal("NewManager() =", err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		var running sync.WaitGroup
		running.Go(func() { m.Run(ctx) })

		function := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			time.Sleep(1700 * time.Millisecond)
			w.WriteHeader(http.StatusOK)
		})
		// serve sends requests to one pod after another at an address, for ten minutes each.
		serve := func(i int) {
			ip := fmt.Sprintf("10.0.0.%d", i+1)
			h := m.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				err := m.Throttler(oneDest{dest: ip + ":8012"}).Try(r.Context(), revID, func(string, bool) error {
					function.ServeHTTP(w, r)
					return nil
				})
				if err != nil {
					t.Error("Try() =", err)
				}
			}))
			for generation := range hours * 6 {
				name := fmt.Sprintf("pod-%d-%d", i, generation)
				pod := newPod(name, ip, func(p *corev1.Pod) {
					p.Status.ContainerStatuses[1].State.Running.StartedAt = metav1.NewTime(time.Now().Add(-time.Minute))
				})
				if _, err := client.CoreV1().Pods(revID.Namespace).Create(ctx, pod, metav1.CreateOptions{}); err != nil {
					t.Error("Create() =", err)
				}
				for until := time.Now().Add(10 * time.Minute); time.Now().Before(until); time.Sleep(1300 * time.Millisecond) {
					r := httptest.NewRequest(http.MethodPost, "http://function", nil)
					h.ServeHTTP(httptest.NewRecorder(), r.WithContext(activatorhandler.WithRevisionAndID(ctx, newRevision(), revID)))
				}
				if err := client.CoreV1().Pods(revID.Namespace).Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
					t.Error("Delete() =", err)
				}
			}
		}

		var requests sync.WaitGroup
		for i := range pods {
			requests.Go(func() { serve(i) })
		}
		var heap [hours]uint64
		for hour := range hours {
			time.Sleep(50 * time.Minute)
			// For half a minute no call is answered in time.
			away.mu.Lock()
			for range 40 {
				away.faults = append(away.faults, fault{delay: time.Second, lost: len(away.faults)%2 == 0})
			}
			away.mu.Unlock()
			time.Sleep(10*time.Minute - time.Second)
			client.ClearActions() // the fake keeps all
			heap[hour] = heapInUse()
		}
		requests.Wait()
		drain(t, m.lifecycle)
		synctest.Wait() // for the deletion of the last pods
		cancel()
		running.Wait()

		if grown := int64(heap[hours-1]) - int64(heap[0]); grown > most {
			t.Errorf("the heap grew by %d bytes from the first hour to the last, want at most %d: %v", grown, most, heap)
		}
		if len(m.pods.served) != 0 {
			t.Errorf("of pods that are gone there is left: %v", m.pods.served)
		}
		state, err := away.Read(context.Background(), "node-a")
		if err != nil || state.Begun != 0 || len(state.Pods) != 0 {
			t.Errorf("the pool still has %+v (%v)", state, err)
		}
		// One every three seconds, except those that came while the pool was away.
		if least := hours * 3600 / 3 * pods * 9 / 10; book.begins < least || book.ends < least {
			t.Errorf("%d Begins and %d Ends, want at least %d", book.begins, book.ends, least)
		}
	})
}

// totals counts, and keeps nothing of an invocation.
type totals struct {
	pool.Pool

	mu           sync.Mutex
	begins, ends int
}

func (c *totals) Begin(ctx context.Context, node string, inv pool.Invocation) (api.Resources, error) {
	c.mu.Lock()
	c.begins++
	c.mu.Unlock()
	return c.Pool.Begin(ctx, node, inv)
}

func (c *totals) BeginAfter(ctx context.Context, node string, ended []pool.Ending, inv pool.Invocation) ([]pool.Outcome, api.Resources, error) {
	outcomes, borrowed, err := c.Pool.BeginAfter(ctx, node, ended, inv)
	c.mu.Lock()
	c.begins++
	c.ends += len(outcomes)
	c.mu.Unlock()
	return outcomes, borrowed, err
}

func (c *totals) End(ctx context.Context, node string, e pool.Ending) (pool.Outcome, error) {
	outcome, err := c.Pool.End(ctx, node, e)
	if err == nil {
		c.mu.Lock()
		c.ends++
		c.mu.Unlock()
	}
	return outcome, err
}

func heapInUse() uint64 {
	var stats runtime.MemStats
	for range 3 {
		runtime.GC() // more than once, for what pools keep for one round
	}
	runtime.ReadMemStats(&stats)
	return stats.HeapAlloc
}
