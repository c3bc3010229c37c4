package duplicator

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"libra.dev/libra/pkg/redisconn"
)

const (
	lockPrefix  = "libra:duplicator:"
	redisWithin = time.Second
)

// verdict is what the activators together know about a revision.
type verdict string

const (
	verdictNone   verdict = ""       // nothing; only look returns it
	verdictHeld   verdict = "held"   // this activator has the lock
	verdictBusy   verdict = "busy"   // another one has it
	verdictDone   verdict = "done"   // it was duplicated
	verdictFailed verdict = "failed" // it was tried, not long ago
)

// errLost says that this activator does not hold the lock any more.
var errLost = errors.New("the lock has changed or expired")

// locks keeps two activators from duplicating the same revision, at once or one after the
// other.
type locks interface {
	// look returns what acquire would, but takes no lock: if it is free, look returns
	// verdictNone.
	look(ctx context.Context, k key) (verdict, error)
	// acquire returns verdictHeld if it took the lock for this activator, for ttl.
	acquire(ctx context.Context, k key, ttl time.Duration) (verdict, error)
	// renew keeps the lock for ttl from now, or returns errLost.
	renew(ctx context.Context, k key, ttl time.Duration) error
	// settle replaces this activator's lock with v for ttl, or removes it if ttl is 0.
	settle(ctx context.Context, k key, v verdict, ttl time.Duration) error
	// prolong makes a verdictDone last for ttl from now, or returns errLost.
	prolong(ctx context.Context, k key, ttl time.Duration) error
	// close releases what the locks need.
	close() error
}

// redisLocks has a key for each revision. Its value is the holder's name or a verdict.
type redisLocks struct {
	client redis.UniversalClient
	holder string
}

func newRedisLocks(server redisconn.Server, holder string) *redisLocks {
	return &redisLocks{
		client: server.NewClient(redisconn.Options{Connections: 2, Timeout: redisWithin}),
		// The prefix keeps a holder from being mistaken for a verdict.
		holder: "held by " + holder,
	}
}

func (l *redisLocks) close() error { return l.client.Close() }

func lockKey(k key) string { return lockPrefix + k.String() + ":" + string(k.uid) }

func (l *redisLocks) acquire(ctx context.Context, k key, ttl time.Duration) (verdict, error) {
	// GET returns the previous value. With NX, the key is set only if it has none.
	was, err := l.client.SetArgs(ctx, lockKey(k), l.holder, redis.SetArgs{Mode: "NX", TTL: ttl, Get: true}).Result()
	switch {
	case errors.Is(err, redis.Nil):
		return verdictHeld, nil
	case err != nil:
		return verdictNone, fmt.Errorf("locking %s: %w", k, err)
	default:
		return verdictOf(was), nil
	}
}

func (l *redisLocks) look(ctx context.Context, k key) (verdict, error) {
	is, err := l.client.Get(ctx, lockKey(k)).Result()
	switch {
	case errors.Is(err, redis.Nil):
		return verdictNone, nil
	case err != nil:
		return verdictNone, fmt.Errorf("reading the lock of %s: %w", k, err)
	default:
		return verdictOf(is), nil
	}
}

func verdictOf(value string) verdict {
	switch v := verdict(value); v {
	case verdictDone, verdictFailed:
		return v
	default:
		return verdictBusy
	}
}

// Both scripts return 0 if the key has another value: the lock is another activator's, or
// the verdict is gone.
var (
	renewScript = redis.NewScript(`
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('PEXPIRE', KEYS[1], ARGV[2])`)
	settleScript = redis.NewScript(`
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
if tonumber(ARGV[3]) == 0 then return redis.call('DEL', KEYS[1]) end
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
return 1`)
)

func (l *redisLocks) renew(ctx context.Context, k key, ttl time.Duration) error {
	return l.run(ctx, renewScript, k, l.holder, ttl.Milliseconds())
}

func (l *redisLocks) settle(ctx context.Context, k key, v verdict, ttl time.Duration) error {
	return l.run(ctx, settleScript, k, l.holder, string(v), ttl.Milliseconds())
}

func (l *redisLocks) prolong(ctx context.Context, k key, ttl time.Duration) error {
	return l.run(ctx, renewScript, k, string(verdictDone), ttl.Milliseconds())
}

func (l *redisLocks) run(ctx context.Context, script *redis.Script, k key, args ...any) error {
	held, err := script.Run(ctx, l.client, []string{lockKey(k)}, args...).Int()
	if err != nil {
		return fmt.Errorf("changing the lock of %s: %w", k, err)
	}
	if held == 0 {
		return fmt.Errorf("%s: %w", k, errLost)
	}
	return nil
}
