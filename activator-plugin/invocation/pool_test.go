package invocation

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/redis/go-redis/v9"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.uber.org/zap/zaptest"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/pool"
	"libra.dev/libra/pkg/pool/pooltest"
	"libra.dev/libra/pkg/pool/redistest"
	"libra.dev/libra/pkg/redisconn"
)

// TestLending lets a borrower run beside a donor on real pools.
func TestLending(t *testing.T) {
	t.Run("Memory", func(t *testing.T) { testLending(t, pooltest.NewMemory(clock.RealClock{})) })
	t.Run("Redis", func(t *testing.T) {
		addr := redistest.Start(t)
		p := pool.NewRedis(redisconn.MustParse(addr))
		defer p.Close()
		testLending(t, p)

		client := redis.NewClient(&redis.Options{Addr: addr})
		defer client.Close()
		streams, err := client.Keys(t.Context(), "libra:{node-a}:*:events").Result()
		if err != nil || len(streams) != 1 {
			t.Fatalf("Keys() = %v, %v, want those of one version", streams, err)
		}
		entries, err := client.XRange(t.Context(), streams[0], "-", "+").Result()
		if err != nil {
			t.Fatal("XRange() =", err)
		}
		var got []api.Ended
		for _, entry := range entries {
			var e api.Ended
			record := fmt.Sprint(entry.Values["begun"], entry.Values["ending"], entry.Values["pool"])
			if err := json.Unmarshal([]byte(record), &e); err != nil {
				t.Fatalf("Unmarshal(%v) = %v", entry.Values, err)
			}
			e.ID = ofClient(e.ID)
			got = append(got, e)
		}
		want := []api.Ended{
			{ID: "borrower", Function: "ns/borrower", Configuration: "ns/rev", Pod: "ns/borrower", Size: 7, Predicted: res(1400, 100), Borrowed: res(400, 0), Alone: true, Status: 200},
			{ID: "donor", Function: "ns/donor", Configuration: "ns/rev", Pod: "ns/donor", Size: 7, Predicted: res(300, 100), Lent: res(400, 0), Alone: true, Status: 200},
		}
		if diff := cmp.Diff(want, got, cmpopts.IgnoreFields(api.Ended{}, "Duration")); diff != "" {
			t.Error("What ended (-want, +got):\n" + diff)
		}
	})
}

func testLending(t *testing.T, p pool.Pool) {
	donor, borrower := newPod("donor", "10.0.0.1", of("donor")), newPod("borrower", "10.0.0.2", of("borrower"))
	m, err := NewManager(Options{
		Clock:         clock.RealClock{},
		Logger:        zaptest.NewLogger(t).Sugar(),
		MeterProvider: sdkmetric.NewMeterProvider(),
		Pool:          p,
		Predictor: predictions{
			{Namespace: "ns", Name: "donor"}:    {Demand: res(300, 100), Duration: time.Minute},
			{Namespace: "ns", Name: "borrower"}: {Demand: res(1400, 100), Duration: time.Minute},
		},
		Pods:     runPods(t, donor, borrower),
		Owner:    "owner",
		Settings: full,
	})
	if err != nil {
		t.Fatal("NewManager() =", err)
	}
	m.lifecycle.beginTimeout, m.lifecycle.lateAfter = testTimeout, testTimeout
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	defer cancel()

	for name, ip := range map[string]string{"donor": "10.0.0.1", "borrower": "10.0.0.2"} {
		pod, _ := m.pods.find(ip, types.NamespacedName{Namespace: "ns", Name: name}, api.UserContainer)
		m.pods.noteServed(pod)
	}
	openNode(t, p, "ns/donor", "ns/borrower")
	awaitState := func(want pool.State) {
		t.Helper()
		var got pool.State
		waitFor(t, "the pool's state", func() bool {
			openNode(t, p, "ns/donor", "ns/borrower")
			if got, err = p.Read(ctx, "node-a"); err != nil {
				t.Fatal("Read() =", err)
			}
			return cmp.Equal(want, got, cmpopts.EquateEmpty(),
				cmpopts.IgnoreFields(pool.State{}, "Epoch", "Now", "Agent", "Open", "Raised"))
		})
	}
	run := func(name, dest string) (finish func()) {
		release, done := make(chan struct{}), make(chan error)
		req := &request{rev: newRevision(), id: name, arrived: time.Now(), size: 7, response: &statusWriter{ResponseWriter: httptest.NewRecorder()}}
		go func() {
			done <- m.Throttler(oneDest{dest: dest}).Try(context.WithValue(ctx, requestKey{}, req),
				types.NamespacedName{Namespace: "ns", Name: name}, func(string, bool) error {
					<-release
					req.response.WriteHeader(200)
					return nil
				})
		}()
		return func() {
			close(release)
			if err := <-done; err != nil {
				t.Errorf("Try() of the %s = %v", name, err)
			}
		}
	}

	finishDonor := run("donor", "10.0.0.1:8012")
	awaitState(pool.State{Begun: 1, Available: res(600, 384)})
	finishBorrower := run("borrower", "10.0.0.2:8012")
	awaitState(pool.State{Begun: 2, Available: res(200, 384+384), Pods: map[string]pool.Balance{
		"ns/donor":    {Lent: res(400, 0), Allocation: res(1000, 512)},
		"ns/borrower": {Borrowed: res(400, 0), Allocation: res(1000, 512)},
	}})
	finishBorrower()
	awaitState(pool.State{Begun: 1, Available: res(600+900, 384)}) // its pod is idle
	finishDonor()
	awaitState(pool.State{Available: res(900+900, 0)})
	drain(t, m.lifecycle)
}
