package pool

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/singleflight"
	"k8s.io/utils/clock"

	"libra.dev/libra/pkg/redisconn"
)

const (
	// callTimeout bounds each step of a call whose context has no nearer deadline.
	callTimeout = time.Second
	// callConnections is the most connections for calls, each of which holds one
	// for a round trip.
	callConnections = 32
	// idleConnections are kept ready without a call: a call that misses its deadline costs its
	// connection, and the next call's deadline may be too short to make another.
	idleConnections = 4
	// agentIdleMost is how many idle connections an agent keeps. Its deadlines leave time to make
	// another, and there are many agents: Redis limits connections, and each takes 16 KiB there.
	agentIdleMost = 2
	// waitConnections is the most connections for waits, each of which holds one all the time. A
	// part has one at most: an agent waits for its own node, and the controller for all nodes with
	// one subscription.
	waitConnections = 8
)

// Redis is the Pool that all nodes share. It loads its functions into Redis
// when Redis does not have them.
type Redis struct {
	server  redisconn.Server
	library library
	calls   redis.UniversalClient
	waits   redis.UniversalClient
	loading singleflight.Group
	clock   clock.PassiveClock // nil for the server's
}

// NewRedis returns a pool in a Redis. It connects on first use.
func NewRedis(server redisconn.Server) *Redis {
	return newPool(server, redisconn.Options{Connections: callConnections, Idle: idleConnections, Timeout: callTimeout})
}

// NewAgentRedis returns a pool for a node's agent, of which there are many: it keeps fewer
// connections.
func NewAgentRedis(server redisconn.Server) *Redis {
	return newPool(server, redisconn.Options{
		Connections: callConnections, IdleMost: agentIdleMost, Timeout: callTimeout,
	})
}

func newPool(server redisconn.Server, calls redisconn.Options) *Redis {
	return &Redis{
		server:  server,
		library: thisLibrary,
		calls:   server.NewClient(calls),
		waits:   server.NewClient(redisconn.Options{Connections: waitConnections, Timeout: callTimeout}),
	}
}

// UseClock makes the pool tell time by clk instead of the server's clock, so that tests can let
// time pass as they want. No call may be in flight.
func (r *Redis) UseClock(clk clock.PassiveClock) { r.clock = clk }

// nowMillis returns the time, or 0 for the time by the server's clock.
func (r *Redis) nowMillis() int64 {
	if r.clock == nil {
		return 0
	}
	return r.clock.Now().UnixMilli()
}

// Close closes all connections. Calls and waits in flight fail.
func (r *Redis) Close() error {
	return errors.Join(r.calls.Close(), r.waits.Close())
}

// call calls a function with numbers, which travel packed, and args. When Redis does not have the
// function, call loads the library and tries again.
func (r *Redis) call(ctx context.Context, function, node string, numbers []int64, args ...any) *redis.Cmd {
	if err := ValidateNode(node); err != nil {
		return failed(ctx, err)
	}
	function = r.library.function(function)
	keys := []string{r.library.key(node, epochKey)}
	args = append([]any{packed(append([]int64{LeaseTTL.Milliseconds(), r.nowMillis()}, numbers...)...)}, args...)

	cmd := r.calls.FCall(ctx, function, keys, args...)
	if !isMissing(cmd) {
		return cmd
	}
	client, err := r.clientOf(ctx, keys[0])
	if err != nil {
		return failed(ctx, fmt.Errorf("loading the Redis functions: %w", err))
	}
	cmd = r.loadedFor(ctx, client, func() *redis.Cmd { return client.FCall(ctx, function, keys, args...) })
	if cluster, ok := r.calls.(*redis.ClusterClient); ok && isElsewhere(cmd) {
		// The key is moving, maybe to a master that had no node so far.
		if err := cluster.ForEachMaster(ctx, func(ctx context.Context, master *redis.Client) error {
			return r.load(ctx, master, false)
		}); err != nil {
			return failed(ctx, fmt.Errorf("loading the Redis functions: %w", err))
		}
		return r.calls.FCall(ctx, function, keys, args...)
	}
	return cmd
}

// isElsewhere says whether another Redis of the cluster is to be called.
func isElsewhere(cmd *redis.Cmd) bool {
	_, moved := redis.IsMovedError(cmd.Err())
	_, asked := redis.IsAskError(cmd.Err())
	return moved || asked
}

func isMissing(cmd *redis.Cmd) bool { return redis.HasErrorPrefix(cmd.Err(), "Function not found") }

// loadedFor loads the library for a call, and then makes the call. Both are to the client alone: what another Redis of a
// cluster lacks says nothing of this one.
func (r *Redis) loadedFor(ctx context.Context, client redis.UniversalClient, call func() *redis.Cmd) (cmd *redis.Cmd) {
	// Replacing a library begins a new epoch, so it is only done with one that is there and does
	// not have the function.
	for _, replace := range []bool{false, true} {
		if err := r.load(ctx, client, replace); err != nil {
			return failed(ctx, fmt.Errorf("loading the Redis functions: %w", err))
		}
		if cmd = call(); !isMissing(cmd) {
			break
		}
	}
	return cmd
}

func failed(ctx context.Context, err error) *redis.Cmd {
	cmd := redis.NewCmd(ctx)
	cmd.SetErr(err)
	return cmd
}

// load loads the library into a Redis, once for all callers that ask at the same time. Loading has
// its own deadline: a caller that can wait only a few milliseconds still starts what the next one
// needs.
func (r *Redis) load(ctx context.Context, client redis.UniversalClient, replace bool) error {
	done := r.loading.DoChan(fmt.Sprintf("%p %t", client, replace), func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTimeout)
		defer cancel()
		if replace {
			return nil, client.FunctionLoadReplace(ctx, r.library.source()).Err()
		}
		err := client.FunctionLoad(ctx, r.library.source()).Err()
		if redis.HasErrorPrefix(err, "Library '"+r.library.name()+"' already exists") {
			return nil, nil // another process was faster
		}
		if err == nil {
			r.library.deleteOlder(ctx, client)
		}
		return nil, err
	})
	select {
	case <-ctx.Done():
		return ctx.Err()
	case result := <-done:
		return result.Err
	}
}

// clientOf returns a client of the one Redis that has the key.
func (r *Redis) clientOf(ctx context.Context, key string) (redis.UniversalClient, error) {
	if cluster, ok := r.calls.(*redis.ClusterClient); ok {
		return cluster.MasterForKey(ctx, key)
	}
	return r.calls, nil
}
