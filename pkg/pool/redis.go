package pool

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
	"golang.org/x/sync/singleflight"

	"libra.dev/libra/pkg/api"
)

var _ Pool = (*Redis)(nil)

//go:embed functions.lua
var library string

// libraryVersion is VERSION in functions.lua.
const libraryVersion = 3

const (
	// callTimeout bounds each step of a call whose context has no nearer deadline.
	callTimeout = time.Second
	// callConnections is the most connections for calls, each of which holds one
	// for a round trip.
	callConnections = 32
	// waitConnections is the most Waiters and Readers that wait at once, each of
	// which holds one connection all the time.
	waitConnections = 1024
)

// Redis is the Pool that all nodes share. It loads its functions into Redis
// when Redis does not have them, or has older ones.
type Redis struct {
	calls   *redis.Client
	waits   *redis.Client
	loading singleflight.Group
	// nowMillis is the time to use instead of the server's; 0 is the server's.
	nowMillis func() int64
}

// NewRedis makes a pool in the Redis at addr: host:port, or the path of a unix
// socket. It connects when it is first used.
func NewRedis(addr string) *Redis {
	return &Redis{
		calls:     redis.NewClient(clientOptions(addr, callConnections)),
		waits:     redis.NewClient(clientOptions(addr, waitConnections)),
		nowMillis: func() int64 { return 0 },
	}
}

func clientOptions(addr string, connections int) *redis.Options {
	return &redis.Options{
		Addr:                  addr,
		PoolSize:              connections,
		PipelinePoolSize:      -1, // nothing is pipelined
		ContextTimeoutEnabled: true,
		DialTimeout:           callTimeout,
		ReadTimeout:           callTimeout,
		WriteTimeout:          callTimeout,
		PoolTimeout:           callTimeout,
		// A call that failed is the caller's to repeat: only it knows whether that
		// still helps.
		MaxRetries:    -1,
		DialerRetries: 1,
		// Both would cost every new connection a round trip.
		DisableIdentity:          true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	}
}

// Close closes all connections. Calls and waits under way fail.
func (r *Redis) Close() error {
	return errors.Join(r.calls.Close(), r.waits.Close())
}

// The parts of an api.Ended that Begin and End know; the function adds the rest.
type (
	begunPart struct {
		ID            string        `json:"id"`
		Function      string        `json:"function"`
		Configuration string        `json:"configuration"`
		Pod           string        `json:"pod"`
		Size          int64         `json:"size"`
		Predicted     api.Resources `json:"predicted"`
	}
	endingPart struct {
		Duration time.Duration `json:"duration_ns"`
		Status   int           `json:"status"`
	}
)

// Begin implements Pool.
func (r *Redis) Begin(ctx context.Context, node string, inv Invocation) (api.Resources, error) {
	if err := inv.check(); err != nil {
		return api.Resources{}, err
	}
	record, err := json.Marshal(begunPart{
		ID: inv.ID, Function: inv.Function, Configuration: inv.Configuration, Pod: inv.Pod,
		Size: inv.Size, Predicted: inv.Predicted,
	})
	if err != nil {
		return api.Resources{}, fmt.Errorf("begin invocation %q: %w", inv.ID, err)
	}
	reply, err := r.call(ctx, "libra_begin", node,
		inv.ID, inv.Pod, inv.Domain, inv.Owner,
		wholeMillis(inv.Duration), ceilMillis(inv.MinRemaining),
		inv.Surplus.CPUMilli, inv.Surplus.MemoryBytes, inv.Want.CPUMilli, inv.Want.MemoryBytes,
		record,
	).Int64Slice()
	if err != nil {
		return api.Resources{}, fmt.Errorf("begin invocation %q on node %s: %w", inv.ID, node, err)
	}
	if len(reply) != 2 {
		return api.Resources{}, fmt.Errorf("begin invocation %q on node %s: the reply has %d numbers, not 2", inv.ID, node, len(reply))
	}
	return resources(reply), nil
}

// End implements Pool.
func (r *Redis) End(ctx context.Context, node string, e Ending) (Outcome, error) {
	if err := e.check(); err != nil {
		return Outcome{}, err
	}
	ending, err := json.Marshal(endingPart{Duration: e.Duration, Status: e.Status})
	if err != nil {
		return Outcome{}, fmt.Errorf("end invocation %q: %w", e.ID, err)
	}
	reply, err := r.call(ctx, "libra_end", node, e.ID, e.Late, ending).Int64Slice()
	if err != nil {
		return Outcome{}, fmt.Errorf("end invocation %q on node %s: %w", e.ID, node, err)
	}
	if len(reply) != 6 {
		return Outcome{}, fmt.Errorf("end invocation %q on node %s: the reply has %d numbers, not 6", e.ID, node, len(reply))
	}
	return Outcome{
		Found: reply[0] == 1, Alone: reply[1] == 1,
		Lent: resources(reply[2:]), Borrowed: resources(reply[4:]),
	}, nil
}

// Renew implements Pool.
func (r *Redis) Renew(ctx context.Context, node, owner string) error {
	if err := checkName("owner", owner); err != nil {
		return err
	}
	if err := r.call(ctx, "libra_renew", node, owner).Err(); err != nil {
		return fmt.Errorf("renew the lease of %q on node %s: %w", owner, node, err)
	}
	return nil
}

// Open implements Pool.
func (r *Redis) Open(context.Context, string) error { return nil }

// Heartbeat implements Pool.
func (r *Redis) Heartbeat(ctx context.Context, node string, hb Heartbeat) (open bool, err error) {
	if err := hb.check(); err != nil {
		return false, err
	}
	if err := r.call(ctx, "libra_open", node).Err(); err != nil {
		return false, fmt.Errorf("heartbeat of node %s: %w", node, err)
	}
	return true, nil
}

// Safeguard implements Pool.
func (r *Redis) Safeguard(_ context.Context, node, _ string, _, _ bool) (revoked api.Resources, err error) {
	return api.Resources{}, fmt.Errorf("safeguard on node %s: not in the Redis functions", node)
}

// Read implements Pool.
func (r *Redis) Read(ctx context.Context, node string) (State, error) {
	reply, err := r.call(ctx, "libra_read", node).Slice()
	if err != nil {
		return State{}, fmt.Errorf("read the pool of node %s: %w", node, err)
	}
	state, err := parseState(reply)
	if err != nil {
		return State{}, fmt.Errorf("read the pool of node %s: %w", node, err)
	}
	return state, nil
}

// parseState reads begun, available CPU and memory, and then for each pod its
// name, borrowed CPU and memory, lent CPU and memory.
func parseState(reply []any) (State, error) {
	const head, perPod = 3, 5
	numbers := make([]int64, len(reply))
	for i, v := range reply {
		n, ok := v.(int64)
		if isName := i >= head && (i-head)%perPod == 0; !ok && !isName {
			return State{}, fmt.Errorf("item %d of the reply is %v, not a number", i, v)
		}
		numbers[i] = n
	}
	if len(reply) < head || (len(reply)-head)%perPod != 0 {
		return State{}, fmt.Errorf("the reply has %d items, not %d and %d for each pod", len(reply), head, perPod)
	}
	s := State{
		Pods:      make(map[string]Balance, (len(reply)-head)/perPod),
		Available: resources(numbers[1:]),
		Begun:     int(numbers[0]),
	}
	for i := head; i < len(reply); i += perPod {
		pod, ok := reply[i].(string)
		if !ok {
			return State{}, fmt.Errorf("item %d of the reply is %v, not a pod", i, reply[i])
		}
		s.Pods[pod] = Balance{Borrowed: resources(numbers[i+1:]), Lent: resources(numbers[i+3:])}
	}
	return s, nil
}

func resources(cpuMilliMemoryBytes []int64) api.Resources {
	return api.Resources{CPUMilli: cpuMilliMemoryBytes[0], MemoryBytes: cpuMilliMemoryBytes[1]}
}

// keysOf are all keys of a node, in the order of open_node in functions.lua. They
// share a hash tag, so that a Redis Cluster keeps them together.
func keysOf(node string) []string {
	prefix := "libra:{" + node + "}:"
	return []string{
		prefix + "invocations",
		prefix + "pods",
		prefix + "surplus:cpu",
		prefix + "surplus:memory",
		prefix + "hungry:cpu",
		prefix + "hungry:memory",
		prefix + "leases",
		prefix + "tombstones",
		prefix + "open",
		intentsStream(node),
		endedStream(node),
	}
}

func intentsStream(node string) string { return "libra:{" + node + "}:intents" }

func endedStream(node string) string { return "libra:{" + node + "}:ended" }

// call calls a function; when Redis does not have it, it loads the library and
// calls once more.
func (r *Redis) call(ctx context.Context, function, node string, args ...any) *redis.Cmd {
	if err := checkNode(node); err != nil {
		return failed(ctx, err)
	}
	keys := keysOf(node)
	args = append([]any{libraryVersion, LeaseTTL.Milliseconds(), r.nowMillis()}, args...)

	cmd := r.calls.FCall(ctx, function, keys, args...)
	missing, err := libraryMissing(cmd.Err())
	if err != nil {
		return failed(ctx, err)
	}
	if !missing {
		return cmd
	}
	if err := r.load(ctx); err != nil {
		return failed(ctx, err)
	}
	return r.calls.FCall(ctx, function, keys, args...)
}

func failed(ctx context.Context, err error) *redis.Cmd {
	cmd := redis.NewCmd(ctx)
	cmd.SetErr(err)
	return cmd
}

// libraryMissing says whether a call failed because Redis has no library, or an
// older one. A newer one is an error: during an upgrade the older binaries must
// not take it away from the newer.
func libraryMissing(err error) (bool, error) {
	if redis.HasErrorPrefix(err, "Function not found") {
		return true, nil
	}
	if !redis.HasErrorPrefix(err, "LIBRAVERSION ") {
		return false, nil
	}
	var loaded int
	if _, scanErr := fmt.Sscanf(err.Error(), "LIBRAVERSION %d", &loaded); scanErr != nil {
		return false, fmt.Errorf("version of the library libra in Redis: %w", err)
	}
	if loaded > libraryVersion {
		return false, fmt.Errorf("the library libra in Redis has version %d, this binary works with version %d only: upgrade it", loaded, libraryVersion)
	}
	return true, nil
}

// load loads the library, once for all who ask at the same time. The loading has
// its own deadline: a caller that can wait only a few milliseconds still
// starts what the next one needs.
func (r *Redis) load(ctx context.Context) error {
	done := r.loading.DoChan("load", func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTimeout)
		defer cancel()
		return nil, r.calls.FunctionLoadReplace(ctx, library).Err()
	})
	select {
	case <-ctx.Done():
		return fmt.Errorf("load the Redis functions: %w", ctx.Err())
	case result := <-done:
		if result.Err != nil {
			return fmt.Errorf("load the Redis functions: %w", result.Err)
		}
		return nil
	}
}
