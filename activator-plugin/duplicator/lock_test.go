package duplicator

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"libra.dev/libra/pkg/pool/redistest"
	"libra.dev/libra/pkg/redisconn"
)

func TestRedisLocks(t *testing.T) {
	t.Run("one Redis", func(t *testing.T) { testRedisLocks(t, redistest.Start(t)) })
	t.Run("cluster", func(t *testing.T) { testRedisLocks(t, strings.Join(redistest.StartCluster(t), ",")) })
}

func testRedisLocks(t *testing.T, addr string) {
	server := redisconn.MustParse(addr)
	one, two := newRedisLocks(server, "one"), newRedisLocks(server, "two")
	defer one.close()
	defer two.close()
	ctx := t.Context()
	k := keyOf(newRevision("shop-00001"))
	acquire := func(l *redisLocks, want verdict) {
		t.Helper()
		if got, err := l.acquire(ctx, k, time.Minute); got != want || err != nil {
			t.Fatalf("acquire() = %q, %v, want %q", got, err, want)
		}
	}

	look := func(want verdict) {
		t.Helper()
		if got, err := two.look(ctx, k); got != want || err != nil {
			t.Fatalf("look() = %q, %v, want %q", got, err, want)
		}
	}

	look(verdictNone)
	acquire(one, verdictHeld)
	acquire(two, verdictBusy)
	look(verdictBusy)
	if err := two.prolong(ctx, k, time.Hour); !errors.Is(err, errLost) {
		t.Error("prolong() of what is not done =", err)
	}
	if err := two.renew(ctx, k, time.Minute); !errors.Is(err, errLost) {
		t.Error("renew() of another's lock =", err)
	}
	if err := two.settle(ctx, k, verdictDone, time.Minute); !errors.Is(err, errLost) {
		t.Error("settle() of another's lock =", err)
	}
	if err := one.renew(ctx, k, time.Hour); err != nil {
		t.Error("renew() =", err)
	}
	if ttl := one.client.PTTL(ctx, lockKey(k)).Val(); ttl <= time.Minute || ttl > time.Hour {
		t.Errorf("the lock lasts for %v, want an hour", ttl)
	}
	if err := one.settle(ctx, k, verdictFailed, 0); err != nil {
		t.Error("settle() =", err)
	}

	acquire(two, verdictHeld)
	if err := two.settle(ctx, k, verdictDone, time.Minute); err != nil {
		t.Error("settle() =", err)
	}
	acquire(one, verdictDone)
	acquire(two, verdictDone)
	if ttl := one.client.PTTL(ctx, lockKey(k)).Val(); ttl <= 0 || ttl > time.Minute {
		t.Errorf("the verdict lasts for %v, want a minute", ttl)
	}
	look(verdictDone)
	if err := one.prolong(ctx, k, time.Hour); err != nil {
		t.Error("prolong() =", err)
	}
	if ttl := one.client.PTTL(ctx, lockKey(k)).Val(); ttl <= time.Minute || ttl > time.Hour {
		t.Errorf("the verdict lasts for %v, want an hour", ttl)
	}

	other := newRevision("shop-00001")
	other.UID = "made anew"
	k = keyOf(other)
	acquire(one, verdictHeld)
	if err := one.settle(ctx, k, verdictFailed, time.Minute); err != nil {
		t.Error("settle() =", err)
	}
	acquire(two, verdictFailed)
	look(verdictFailed)
}

func TestRightsOfTheActivator(t *testing.T) {
	s := redistest.StartSecured(t)
	server := s.As(t, "activator")
	s.CheckRights(t, "activator", 2, func(ctx context.Context) error {
		l := newRedisLocks(server, "one")
		defer l.close()
		done, failed := keyOf(newRevision("shop-00001")), keyOf(newRevision("shop-00002"))
		_, err := l.look(ctx, done)
		for _, k := range []key{done, failed} {
			v, acquireErr := l.acquire(ctx, k, time.Minute)
			if acquireErr == nil && v != verdictHeld {
				acquireErr = fmt.Errorf("the lock of %s is %q", k, v)
			}
			err = errors.Join(err, acquireErr)
		}
		return errors.Join(err,
			l.renew(ctx, done, time.Hour), l.settle(ctx, done, verdictDone, time.Minute), l.prolong(ctx, done, time.Hour),
			l.settle(ctx, failed, verdictFailed, 0))
	})
}

func TestNoLockWithoutRedis(t *testing.T) {
	k := keyOf(newRevision("shop-00001"))
	for name, ask := range map[string]func(*redisLocks) (verdict, error){
		"acquire": func(l *redisLocks) (verdict, error) { return l.acquire(t.Context(), k, time.Minute) },
		"look":    func(l *redisLocks) (verdict, error) { return l.look(t.Context(), k) },
	} {
		// A new client each time: after as many failures as it has connections, a client tries
		// for another second in a goroutine of its own.
		l := newRedisLocks(redisconn.MustParse(t.TempDir()+"/none.sock"), "one")
		if v, err := ask(l); err == nil {
			t.Errorf("%s() = %q without Redis", name, v)
		}
		l.close()
	}
}
