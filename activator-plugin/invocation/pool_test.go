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
	t.Run("Memory", func(t *testing.T) { testLending(t, pooltest.NewMemory(clock.RealClock{}), "ns", full) })
	t.Run("between namespaces of one domain", func(t *testing.T) {
		p := pool.NewRedis(redisconn.MustParse(redistest.Start(t)))
		defer p.Close()
		joined := full
		joined.domain = "team"
		testLending(t, p, "other", joined)
	})
	t.Run("Redis", func(t *testing.T) {
		addr := redistest.Start(t)
		p := pool.NewRedis(redisconn.MustParse(addr))
		defer p.Close()
		testLending(t, p, "ns", full)

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

func testLending(t *testing.T, p pool.Pool, borrowersNamespace string, set Settings) {
	donor, borrower := newPod("donor", "10.0.0.1", of("donor")), newPod("borrower", "10.0.0.2", of("borrower"), in(borrowersNamespace))
	donors := types.NamespacedName{Namespace: "ns", Name: "donor"}
	borrowers := types.NamespacedName{Namespace: borrowersNamespace, Name: "borrower"}
	m, err := NewManager(Options{
		Clock:         clock.RealClock{},
		Logger:        zaptest.NewLogger(t).Sugar(),
		MeterProvider: sdkmetric.NewMeterProvider(),
		Pool:          p,
		Predictor: predictions{
			donors:    {Demand: res(300, 100), Duration: time.Minute},
			borrowers: {Demand: res(1400, 100), Duration: time.Minute},
		},
		Pods:     runPods(t, donor, borrower),
		Owner:    "owner",
		Settings: set,
	})
	if err != nil {
		t.Fatal("NewManager() =", err)
	}
	m.lifecycle.beginTimeout, m.lifecycle.lateAfter = testTimeout, testTimeout
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	defer cancel()

	for revision, ip := range map[types.NamespacedName]string{donors: "10.0.0.1", borrowers: "10.0.0.2"} {
		pod, _ := m.pods.find(ip, revision, api.UserContainer)
		m.pods.noteServed(pod)
	}
	openNode(t, p, donors.String(), borrowers.String())
	awaitState := func(want pool.State) {
		t.Helper()
		var got pool.State
		waitFor(t, "the pool's state", func() bool {
			openNode(t, p, donors.String(), borrowers.String())
			if got, err = p.Read(ctx, "node-a"); err != nil {
				t.Fatal("Read() =", err)
			}
			return cmp.Equal(want, got, cmpopts.EquateEmpty(),
				cmpopts.IgnoreFields(pool.State{}, "Epoch", "Now", "Agent", "Open", "Raised"))
		})
	}
	run := func(revision types.NamespacedName, dest string) (finish func()) {
		release, done := make(chan struct{}), make(chan error)
		req := &request{rev: newRevision(), id: revision.Name, arrived: time.Now(), size: 7, response: &statusWriter{ResponseWriter: httptest.NewRecorder()}}
		go func() {
			done <- m.Throttler(oneDest{dest: dest}).Try(context.WithValue(ctx, requestKey{}, req),
				revision, func(string, bool) error {
					<-release
					req.response.WriteHeader(200)
					return nil
				})
		}()
		return func() {
			close(release)
			if err := <-done; err != nil {
				t.Errorf("Try() of the %s = %v", revision.Name, err)
			}
		}
	}

	finishDonor := run(donors, "10.0.0.1:8012")
	awaitState(pool.State{Begun: 1, Available: res(600, 384)})
	finishBorrower := run(borrowers, "10.0.0.2:8012")
	awaitState(pool.State{Begun: 2, Available: res(200, 384+384), Pods: map[string]pool.Balance{
		donors.String():    {Lent: res(400, 0), Allocation: res(1000, 512)},
		borrowers.String(): {Borrowed: res(400, 0), Allocation: res(1000, 512)},
	}})
	finishBorrower()
	awaitState(pool.State{Begun: 1, Available: res(600+900, 384)}) // its pod is idle
	finishDonor()
	awaitState(pool.State{Available: res(900+900, 0)})
	drain(t, m.lifecycle)
}
