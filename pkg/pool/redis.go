package pool

import (
	"context"
	"embed"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
	"golang.org/x/sync/singleflight"

	"libra.dev/libra/pkg/api"
)

var _ Pool = (*Redis)(nil)

//go:embed lua/*.lua
var libraryFiles embed.FS

// library is the source of the Redis functions.
var library = joinFiles(libraryFiles)

func joinFiles(files fs.FS) string {
	names, err := fs.Glob(files, "lua/*.lua")
	if err != nil {
		panic(err) // the pattern is well formed
	}
	var joined strings.Builder
	for _, name := range names {
		text, err := fs.ReadFile(files, name)
		if err != nil {
			panic(err) // it is in the binary
		}
		joined.Write(text)
	}
	return joined.String()
}

// libraryVersion is VERSION in lua/1_node.lua.
const libraryVersion = 4

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
	record, err := openObject(begunPart{
		ID: inv.ID, Function: inv.Function, Configuration: inv.Configuration, Pod: inv.Pod,
		Size: inv.Size, Predicted: inv.Predicted,
	}, "{")
	if err != nil {
		return api.Resources{}, fmt.Errorf("begin invocation %q: %w", inv.ID, err)
	}
	reply, err := r.call(ctx, "libra_begin", node, []int64{
		renewEvery.Milliseconds(), SuspendMost.Milliseconds(), wholeMillis(inv.Duration), ceilMillis(inv.MinRemaining),
		inv.Allocation.CPUMilli, inv.Allocation.MemoryBytes, inv.Surplus.CPUMilli, inv.Surplus.MemoryBytes,
		inv.Want.CPUMilli, inv.Want.MemoryBytes,
	}, inv.Owner, inv.ID, inv.Pod, inv.Domain, inv.Function, record).Int64Slice()
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
	ending, err := openObject(endingPart{Duration: e.Duration, Status: e.Status}, "")
	if err != nil {
		return Outcome{}, fmt.Errorf("end invocation %q: %w", e.ID, err)
	}
	reply, err := r.call(ctx, "libra_end", node, []int64{number(e.Late)}, e.ID, ending).Int64Slice()
	if err != nil {
		return Outcome{}, fmt.Errorf("end invocation %q on node %s: %w", e.ID, node, err)
	}
	if len(reply) != 7 {
		return Outcome{}, fmt.Errorf("end invocation %q on node %s: the reply has %d numbers, not 7", e.ID, node, len(reply))
	}
	return Outcome{
		Found: reply[0] == 1, Alone: reply[1] == 1, Safeguarded: reply[2] == 1,
		Lent: resources(reply[3:]), Borrowed: resources(reply[5:]),
	}, nil
}

// Renew implements Pool.
func (r *Redis) Renew(ctx context.Context, node, owner string) error {
	if err := checkName("owner", owner); err != nil {
		return err
	}
	if err := r.call(ctx, "libra_renew", node, nil, owner).Err(); err != nil {
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
	var pods strings.Builder
	for _, pod := range slices.Sorted(maps.Keys(hb.Pods)) {
		fmt.Fprintf(&pods, "%s\n%d\n", pod, hb.Pods[pod])
	}
	reply, err := r.call(ctx, "libra_heartbeat", node,
		[]int64{number(hb.Whole), hb.Lendable.CPUMilli, hb.Lendable.MemoryBytes}, hb.Agent, hb.Epoch, pods.String(),
	).Int64()
	if err != nil {
		return false, fmt.Errorf("heartbeat of node %s: %w", node, err)
	}
	return reply == 1, nil
}

// Safeguard implements Pool.
func (r *Redis) Safeguard(ctx context.Context, node, pod string, cpu, memory bool) (revoked api.Resources, err error) {
	if err := checkName("pod", pod); err != nil {
		return api.Resources{}, err
	}
	reply, err := r.call(ctx, "libra_safeguard", node,
		[]int64{number(cpu), number(memory), SuspendLeast.Milliseconds(), SuspendMost.Milliseconds()}, pod,
	).Int64Slice()
	if err != nil {
		return api.Resources{}, fmt.Errorf("safeguard pod %s on node %s: %w", pod, node, err)
	}
	if len(reply) != 2 {
		return api.Resources{}, fmt.Errorf("safeguard pod %s on node %s: the reply has %d numbers, not 2", pod, node, len(reply))
	}
	return resources(reply), nil
}

// Read implements Pool.
func (r *Redis) Read(ctx context.Context, node string) (State, error) {
	reply, err := r.call(ctx, "libra_read", node, []int64{EntriesMost, SuspendMost.Milliseconds()}).Slice()
	if err != nil {
		return State{}, fmt.Errorf("read the pool of node %s: %w", node, err)
	}
	state, err := parseState(reply)
	if err != nil {
		return State{}, fmt.Errorf("read the pool of node %s: %w", node, err)
	}
	return state, nil
}

// openObject is a JSON object that the function adds to: it begins as it is told, and
// ends in a comma.
func openObject(v any, begin string) ([]byte, error) {
	data, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	data = append([]byte(begin), data[1:]...)
	data[len(data)-1] = ','
	return data, nil
}

// packed is how several numbers travel as one argument, which Redis takes in faster.
// They must be small enough for a float64 to have them exactly.
func packed(numbers ...int64) []byte {
	b := make([]byte, 0, 8*len(numbers))
	for _, n := range numbers {
		b = binary.LittleEndian.AppendUint64(b, math.Float64bits(float64(n)))
	}
	return b
}

func number(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

func resources(cpuMilliMemoryBytes []int64) api.Resources {
	return api.Resources{CPUMilli: cpuMilliMemoryBytes[0], MemoryBytes: cpuMilliMemoryBytes[1]}
}

// nodeKey is the key that the functions are given. All keys of a node begin alike,
// with a hash tag, so that a Redis Cluster keeps them together.
func nodeKey(node string) string { return "libra:{" + node + "}:node" }

func intentsStream(node string) string { return "libra:{" + node + "}:intents" }

func endedStream(node string) string { return "libra:{" + node + "}:ended" }

// call calls a function with numbers, which travel packed, and arguments; when Redis does not have it, it loads the library and
// calls once more.
func (r *Redis) call(ctx context.Context, function, node string, numbers []int64, args ...any) *redis.Cmd {
	if err := checkNode(node); err != nil {
		return failed(ctx, err)
	}
	keys := []string{nodeKey(node)}
	args = append([]any{
		libraryVersion, packed(append([]int64{LeaseTTL.Milliseconds(), r.nowMillis()}, numbers...)...),
	}, args...)

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
