package pool

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"libra.dev/libra/pkg/pool/redistest"
	"libra.dev/libra/pkg/redisconn"
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
		{name: "no permission for what a function does", setUp: func(ctx context.Context, admin *redis.Client) error {
			return admin.Do(ctx, "acl", "setuser", "default", "-zadd").Err()
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

// A part that has another's user does not undo what the others have done.
func TestARefusalInAFunctionLeavesTheNodeAsItIs(t *testing.T) {
	addr := redistest.StartServer(t).Addr
	admin := redis.NewClient(&redis.Options{Addr: addr})
	defer admin.Close()
	all := newRedis(t, addr)
	epochOf := func() string {
		state, err := all.Read(t.Context(), "node")
		if err != nil {
			t.Fatal(err)
		}
		return state.Epoch
	}
	before := epochOf()
	for _, right := range []string{"zadd", "zremrangebyscore"} {
		if err := admin.Do(t.Context(), "acl", "setuser", "default", "+@all", "-"+right).Err(); err != nil {
			t.Fatal(err)
		}
		for range 2 { // nor does the first leave anything that lets the second pass
			var err error
			if right == "zadd" {
				inv := Invocation{ID: right, Pod: "default/a", Domain: "default", Function: "default/f", Owner: "activator", Concurrency: 1, Ranked: true}
				_, err = all.Begin(t.Context(), "node", inv)
			} else {
				_, err = all.Read(t.Context(), "node")
			}
			if !Refused(err) {
				t.Errorf("without %s: %v, want a refusal", right, err)
			}
		}
		if err := admin.Do(t.Context(), "acl", "setuser", "default", "+@all").Err(); err != nil {
			t.Fatal(err)
		}
		if now := epochOf(); now != before {
			t.Errorf("after a refusal of %s the node is at the epoch %s, want %s", right, now, before)
		}
	}
}

// Settings may keep a part from asking Redis.
func TestRefusedConnections(t *testing.T) {
	s := redistest.StartSecured(t)
	remove := func(file string) func(dir string) error {
		return func(dir string) error { return os.Remove(filepath.Join(dir, file)) }
	}
	write := func(file, text string) func(dir string) error {
		return func(dir string) error { return os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600) }
	}
	unreadable := func(file string) func(dir string) error {
		return func(dir string) error {
			if err := remove(file)(dir); err != nil {
				return err
			}
			return os.Mkdir(filepath.Join(dir, file), 0o700)
		}
	}
	for _, tc := range []struct {
		name    string
		address string // Redis's unless it is set
		change  func(dir string) error
		refused bool
	}{
		{name: "let in", change: func(string) error { return nil }},
		{name: "another CA", change: write("ca.crt", string(redistest.NewCA(t).PEM)), refused: true},
		{name: "the system's CAs", change: remove("ca.crt"), refused: true},
		{name: "a CA that is none", change: write("ca.crt", "none"), refused: true},
		{name: "a CA that cannot be read", change: unreadable("ca.crt"), refused: true},
		{name: "a certificate of another name", address: strings.Replace(s.Addr, "127.0.0.1", "0.0.0.0", 1), refused: true},
		{name: "no password", change: remove("password"), refused: true},
		{name: "another password", change: write("password", "another"), refused: true},
		{name: "a password that cannot be read", change: unreadable("password"), refused: true},
		{name: "a user that cannot be read", change: unreadable("username"), refused: true},
		{name: "nobody there", address: redistest.FreeAddr(t)},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := s.Credentials(t, "activator")
			if tc.change != nil {
				if err := tc.change(dir); err != nil {
					t.Fatal(err)
				}
			}
			if tc.address == "" {
				tc.address = s.Addr
			}
			server, err := redisconn.Parse("rediss://"+tc.address, dir)
			if err != nil {
				t.Fatal(err)
			}
			p := NewRedis(server)
			defer p.Close()
			if err := p.Renew(t.Context(), "node", "owner"); Refused(err) != tc.refused {
				t.Errorf("Refused(%v) = %t, want %t", err, Refused(err), tc.refused)
			}
		})
	}
}

// Calls that no Pool accepts do not reach Redis.
func TestRefusedArguments(t *testing.T) {
	p := newRedis(t, redistest.FreeAddr(t))
	ctx := t.Context()
	_, begin := p.Begin(ctx, "node", Invocation{ID: "1"})
	traced := donor("1")
	traced.Trace = "none"
	_, trace := p.Begin(ctx, "node", traced)
	named := donor("1")
	named.Configuration = strings.Repeat("x", 200<<10)
	_, name := p.Begin(ctx, "node", named)
	_, _, after := p.BeginAfter(ctx, "node", []Ending{{}}, donor("1"))
	_, end := p.End(ctx, "node", Ending{ID: "1", Duration: -1})
	_, heartbeat := p.Heartbeat(ctx, "node", Heartbeat{})
	_, safeguard := p.Safeguard(ctx, "node", "", false)
	for call, err := range map[string]error{
		"Begin": begin, "Begin with a trace": trace, "Begin of a long Configuration": name, "BeginAfter": after, "End": end, "Heartbeat": heartbeat, "Safeguard": safeguard,
		"Renew": p.Renew(ctx, "node", ""), "Renew on no node": p.Renew(ctx, "", "owner"), "Ask": p.Ask(ctx, "node", "pod", -1),
	} {
		if !Refused(err) {
			t.Errorf("Refused(%v) = false after %s, want true", err, call)
		}
	}
	if err := p.Renew(ctx, "node", "owner"); err == nil || Refused(err) {
		t.Errorf("Refused(%v) = true of a Redis that is away", err)
	}
}
