package pooltest

import (
	"context"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"pgregory.net/rapid"

	"libra.dev/libra/pkg/pool"
	"libra.dev/libra/pkg/pool/redistest"
	"libra.dev/libra/pkg/redisconn"
)

// inRedis is the pool that is checked against the specification.
type inRedis struct {
	*pool.Redis
	client  *redis.Client // of the same Redis, to look into it and to lose what is there
	library redis.Library // the pool's functions, as they were loaded

	followed followed
}

func startRedis(t *testing.T) *inRedis {
	t.Helper()
	addr := redistest.Start(t)
	r := &inRedis{Redis: pool.NewRedis(redisconn.MustParse(addr)), client: redis.NewClient(&redis.Options{Addr: addr})}
	t.Cleanup(func() {
		r.Close()        //nolint:errcheck // the test ends
		r.client.Close() //nolint:errcheck // the test ends
	})
	ctx := redistest.Context(t)
	if _, err := r.Read(ctx, "first"); err != nil { // which loads the library
		t.Fatal(err)
	}
	loaded, err := r.client.FunctionList(ctx, redis.FunctionListQuery{WithCode: true}).Result()
	if err != nil || len(loaded) != 1 {
		t.Fatalf("there are %d libraries, %v; want that of the pool", len(loaded), err)
	}
	r.library = loaded[0]
	return r
}

// Names of a node's keys, as ../library.go and ../lua/1_node.lua have them.

func versionsKey(node string) string { return "libra:{" + node + "}:versions" }

func (r *inRedis) key(node, name string) string {
	return "libra:{" + node + "}:" + strings.TrimPrefix(r.library.Name, "libra") + ":" + name
}

func (r *inRedis) nodeKeys(ctx context.Context, node string) ([]string, error) {
	return r.client.Keys(ctx, "libra:{"+node+"}:*").Result()
}

func (r *inRedis) deleteNode(ctx context.Context, node string) error {
	keys, err := r.nodeKeys(ctx, node)
	if err != nil {
		return err
	}
	return r.client.Del(ctx, keys...).Err()
}

// watch follows the node's streams from their start, before there is anything in them.
func (m *model) watch(t *rapid.T) {
	const start = "0-0"
	m.lastIntent, m.lastEvent = start, start
	m.watcher = m.redis.Watch(m.name)
	if first, err := m.watcher.Next(redistest.Context(t)); err != nil || !first.Changed { // which returns at once
		t.Fatalf("%+v, %v", first, err)
	}
}

// told returns what the streams have told since the last call. It checks that a Watcher hears the
// same, and that Begins are told last.
func (m *model) told(t *rapid.T) (intents []redis.XMessage, events pool.Events) {
	intents = m.newEntries(t, "intents", &m.lastIntent)
	entries := m.newEntries(t, "events", &m.lastEvent)
	for i, entry := range entries {
		if entry.Values["ranked"] != nil && i < len(entries)-1 {
			t.Fatalf("told after what has begun: %v", entries[i+1:])
		}
	}
	if len(intents)+len(entries) == 0 {
		return nil, events // for which a Watcher would wait
	}
	events, err := m.watcher.Next(redistest.Context(t))
	if err != nil {
		t.Fatal(err)
	}
	if m.watcher.Skipped() > 0 || events.Changed != (len(intents) > 0) || len(events.Begun)+len(events.Ended) != len(entries) {
		t.Fatalf("of intents %v and events %v a Watcher hears %+v", intents, entries, events)
	}
	return intents, events
}

func (m *model) newEntries(t *rapid.T, stream string, last *string) []redis.XMessage {
	entries, err := m.redis.client.XRange(redistest.Context(t), m.redis.key(m.name, stream), "("+*last, "+").Result()
	if err != nil {
		t.Fatal(err)
	}
	if len(entries) > 0 {
		*last = entries[len(entries)-1].ID
	}
	return entries
}
