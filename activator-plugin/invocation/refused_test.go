package invocation

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"k8s.io/utils/clock"

	"libra.dev/libra/pkg/pool"
	"libra.dev/libra/pkg/pool/redistest"
	"libra.dev/libra/pkg/redisconn"
)

func TestResultOf(t *testing.T) {
	addr := redistest.Start(t)
	admin := redis.NewClient(&redis.Options{Addr: addr})
	defer admin.Close()
	p := pool.NewRedis(redisconn.MustParse(addr))
	defer p.Close()
	call := func(timeout time.Duration) error {
		ctx, cancel := context.WithTimeout(t.Context(), timeout)
		defer cancel()
		return p.Renew(ctx, "node", "owner")
	}
	for _, step := range []struct {
		does string
		to   func() error
		wait time.Duration
		want string
	}{
		{"answers", func() error { return nil }, testTimeout, resultOK},
		{"does not answer in time", func() error { return admin.Do(t.Context(), "client", "pause", 60_000, "write").Err() }, 20 * time.Millisecond, resultDeadline},
		{"is asked too late", func() error { return nil }, 0, resultDeadline},
		{"refuses", func() error {
			if err := admin.ClientUnpause(t.Context()).Err(); err != nil {
				return err
			}
			return admin.Do(t.Context(), "acl", "setuser", "default", "-fcall").Err()
		}, testTimeout, resultRefused},
		{"is gone", func() error { admin.ShutdownNoSave(t.Context()); return nil }, testTimeout, resultError},
	} {
		if err := step.to(); err != nil {
			t.Fatalf("that Redis %s: %v", step.does, err)
		}
		if err := call(step.wait); resultOf(err) != step.want {
			t.Errorf("when Redis %s: resultOf(%v) = %s, want %s", step.does, err, resultOf(err), step.want)
		}
	}
}

// refusal is an error as Redis gives it.
func refusal(t *testing.T) error {
	t.Helper()
	addr := redistest.Start(t)
	client := redis.NewClient(&redis.Options{Addr: addr})
	defer client.Close()
	if err := client.Do(t.Context(), "acl", "setuser", "default", "-fcall").Err(); err != nil {
		t.Fatal(err)
	}
	p := pool.NewRedis(redisconn.MustParse(addr))
	defer p.Close()
	err := p.Renew(t.Context(), "node", "owner")
	if !pool.Refused(err) {
		t.Fatalf("Redis answers %v, want that it refuses", err)
	}
	return err
}

func TestRefusedBeginIsNotRepeated(t *testing.T) {
	refused := fmt.Errorf("begin: %w", refusal(t))
	synctest.Test(t, func(t *testing.T) {
		rec := &recorder{beginHook: func(context.Context, pool.Invocation) error { return refused }}
		core, logs := observer.New(zap.WarnLevel)
		l := newTestLifecycle(t, rec, clock.RealClock{})
		l.logger = zap.New(core).Sugar()
		for _, id := range []string{"1", "2"} {
			f := l.start(revID, "node-a", invocationIn("ns/"+id, id))
			time.Sleep(time.Second)
			f.finish(200)
		}
		drain(t, l)
		// Nothing has begun, so there is nothing to end.
		if got, want := fmt.Sprint(rec.calls), "[begin node-a 1 begin node-a 2]"; got != want {
			t.Errorf("calls %s, want %s", got, want)
		}
		if logs.Len() != 1 {
			t.Errorf("logged %v, want one line", logs.All())
		}
	})
}

// An End is repeated until the lease has certainly expired: the same refusal keeps it from
// being renewed.
func TestRefusedEndIsGivenUp(t *testing.T) {
	refused := fmt.Errorf("end: %w", refusal(t))
	synctest.Test(t, func(t *testing.T) {
		ended := 0
		rec := &recorder{endHook: func(_ context.Context, e pool.Ending) error {
			if ended++; e.ID == "2" && ended > 3 {
				return nil
			}
			return refused
		}}
		l := newTestLifecycle(t, rec, clock.RealClock{})
		for _, id := range []string{"1", "2"} {
			ended = 0
			finished := time.Now()
			l.start(revID, "node-a", invocationIn("ns/a", id)).finish(200)
			l.running.Wait()
			switch took := time.Since(finished); id {
			case "1":
				if took < refusedMost || took > refusedMost+maxBackoff {
					t.Errorf("an End that is refused was given up after %s, want %s to %s", took, refusedMost, refusedMost+maxBackoff)
				}
			case "2":
				if ended != 4 {
					t.Errorf("an End that is refused 3 times is sent %d times, want 4", ended)
				}
			}
		}
		drain(t, l)
	})
}
