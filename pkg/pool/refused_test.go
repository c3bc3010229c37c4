package pool

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"libra.dev/libra/pkg/pool/redistest"
)

func TestRefusedCalls(t *testing.T) {
	for _, tc := range []struct {
		name    string
		options []string // of redis-server
		setUp   func(ctx context.Context, admin *redis.Client) error
		call    func(ctx context.Context, p *Redis) error
		refused bool
	}{
		{name: "answered"},
		{name: "no password", setUp: func(ctx context.Context, admin *redis.Client) error {
			return admin.ConfigSet(ctx, "requirepass", "secret").Err()
		}, refused: true},
		{name: "no permission", setUp: func(ctx context.Context, admin *redis.Client) error {
			return admin.Do(ctx, "acl", "setuser", "default", "-fcall").Err()
		}, refused: true},
		{name: "no permission to load", setUp: func(ctx context.Context, admin *redis.Client) error {
			return admin.Do(ctx, "acl", "setuser", "default", "-function").Err()
		}, refused: true},
		{name: "a Redis without functions", options: []string{"--rename-command", "FCALL", ""}, refused: true},
		{name: "no function", setUp: func(ctx context.Context, admin *redis.Client) error {
			return admin.FunctionFlush(ctx).Err()
		}},
		{name: "out of memory", setUp: func(ctx context.Context, admin *redis.Client) error {
			return admin.ConfigSet(ctx, "maxmemory", "1").Err()
		}},
		{name: "paused", setUp: func(ctx context.Context, admin *redis.Client) error {
			return admin.ClientPause(ctx, time.Minute).Err()
		}, call: func(ctx context.Context, p *Redis) error {
			ctx, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
			defer cancel()
			return p.Renew(ctx, "node", "owner")
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			addr := redistest.StartServer(t, tc.options...).Addr
			admin := redis.NewClient(&redis.Options{Addr: addr})
			defer admin.Close()
			if tc.setUp != nil {
				if err := tc.setUp(t.Context(), admin); err != nil {
					t.Fatal(err)
				}
			}
			p := newRedis(t, addr)
			if tc.call == nil {
				tc.call = func(ctx context.Context, p *Redis) error { return p.Renew(ctx, "node", "owner") }
			}
			if err := tc.call(t.Context(), p); Refused(err) != tc.refused {
				t.Errorf("Refused(%v) = %t, want %t", err, Refused(err), tc.refused)
			}
		})
	}
}
