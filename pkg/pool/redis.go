package pool

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"libra.dev/libra/pkg/api"
)

var _ Pool = (*Redis)(nil)

// The parts of an api.Ended that Begin and End know; the Redis function adds the rest.
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
		Ago      time.Duration `json:"ago_ns"`
		Status   int           `json:"status"`
	}
)

// Begin implements Pool.
func (r *Redis) Begin(ctx context.Context, node string, inv Invocation) (api.Resources, error) {
	call, err := callToBegin(inv)
	if err != nil {
		return api.Resources{}, err
	}
	reply, err := r.numbers(ctx, "begin", node, call, 2)
	if err != nil {
		return api.Resources{}, fmt.Errorf("beginning invocation %q on node %s: %w", inv.ID, node, err)
	}
	return resources(reply), nil
}

// arguments are those of a function of the library.
type arguments struct {
	numbers []int64
	others  []any
}

func callToBegin(inv Invocation) (arguments, error) {
	if err := inv.Validate(); err != nil {
		return arguments{}, err
	}
	record, err := openObject(begunPart{
		ID: inv.ID, Function: inv.Function, Configuration: inv.Configuration, Pod: inv.Pod,
		Size: inv.Size, Predicted: inv.Predicted,
	}, "{")
	if err != nil {
		return arguments{}, fmt.Errorf("beginning invocation %q: %w", inv.ID, err)
	}
	return arguments{
		[]int64{
			renewEvery.Milliseconds(), SuspendMost.Milliseconds(), wholeMillis(inv.Duration), ceilMillis(inv.MinRemaining),
			inv.Allocation.CPUMilli, inv.Allocation.MemoryBytes, inv.Surplus.CPUMilli, inv.Surplus.MemoryBytes,
			inv.Want.CPUMilli, inv.Want.MemoryBytes, int64(inv.Concurrency), inv.Need.CPUMilli, inv.Need.MemoryBytes,
			inv.rank(), int64(inv.Others), inv.Number, inv.IdleCPUMilli,
			max(inv.WantMostMilli, inv.Want.CPUMilli), wholeMillis(max(inv.WithoutLoan, inv.Duration)), inv.rateMilli(),
		},
		[]any{inv.Owner, inv.ID, inv.Pod, inv.Domain, inv.Function, record, inv.Trace},
	}, nil
}

// numbers calls a function whose reply is a list of want numbers.
func (r *Redis) numbers(ctx context.Context, function, node string, call arguments, want int) ([]int64, error) {
	reply, err := r.call(ctx, function, node, call.numbers, call.others...).Int64Slice()
	if err != nil {
		return nil, err
	}
	if len(reply) != want {
		return nil, fmt.Errorf("the reply has %d numbers, want %d", len(reply), want)
	}
	return reply, nil
}

// unranked is UNRANKED in lua/4_calls.lua.
const unranked = -1

func (inv Invocation) rank() int64 {
	if !inv.Ranked {
		return unranked
	}
	return ceilMillis(inv.CPUTime)
}

// rateMilli returns what the invocation is predicted to use on average, in milli CPU: no more than at its peak, although
// its Duration may be that of smaller inputs. It is 0 when that is not known.
func (inv Invocation) rateMilli() int64 {
	millis := wholeMillis(inv.Duration)
	if !inv.Ranked || millis == 0 {
		return 0
	}
	return min(ceilMillis(inv.CPUTime)*1000/millis, inv.Predicted.CPUMilli)
}

// End implements Pool.
func (r *Redis) End(ctx context.Context, node string, e Ending) (Outcome, error) {
	if err := e.Validate(); err != nil {
		return Outcome{}, err
	}
	record, err := e.record()
	if err != nil {
		return Outcome{}, err
	}
	reply, err := r.numbers(ctx, "end", node, arguments{
		[]int64{number(e.Late), number(r.noneArrives(e)), SuspendMost.Milliseconds()}, []any{e.ID, record, e.ComputesIn},
	}, outcomeNumbers)
	if err != nil {
		return Outcome{}, fmt.Errorf("ending invocation %q on node %s: %w", e.ID, node, err)
	}
	return outcome(reply), nil
}

// record is the End's part of the record.
func (e Ending) record() ([]byte, error) {
	record, err := openObject(endingPart{Duration: e.Duration, Ago: e.Ago, Status: e.Status}, "")
	if err != nil {
		return nil, fmt.Errorf("ending invocation %q: %w", e.ID, err)
	}
	return record, nil
}

// noneArrives says whether no Begin of the ended invocation can still arrive. A cluster's
// client resends by itself what a connection lost, even if that was only the reply.
func (r *Redis) noneArrives(e Ending) bool {
	_, repeats := r.calls.(*redis.ClusterClient)
	return e.BeginAnswered && !repeats
}

// outcomeNumbers is how many numbers a reply has for an Outcome.
const outcomeNumbers = 7

func outcome(reply []int64) Outcome {
	return Outcome{
		Found: reply[0] == 1, Alone: reply[1] == 1, Safeguarded: reply[2] == 1,
		Lent: resources(reply[3:]), Borrowed: resources(reply[5:]),
	}
}

// BeginAfter implements Pool.
func (r *Redis) BeginAfter(ctx context.Context, node string, ended []Ending, inv Invocation) ([]Outcome, api.Resources, error) {
	call, err := callToBegin(inv)
	if err != nil {
		return nil, api.Resources{}, err
	}
	for _, e := range ended {
		if err := e.Validate(); err != nil {
			return nil, api.Resources{}, err
		}
		record, err := e.record()
		if err != nil {
			return nil, api.Resources{}, err
		}
		call.others = append(call.others, e.ID, record, fmt.Sprintf("%d%d%s", number(e.Late), number(r.noneArrives(e)), e.ComputesIn))
	}
	reply, err := r.numbers(ctx, "begin_after", node, call, 2+outcomeNumbers*len(ended))
	if err != nil {
		return nil, api.Resources{}, fmt.Errorf("beginning invocation %q after %d ended on node %s: %w", inv.ID, len(ended), node, err)
	}
	outcomes := make([]Outcome, len(ended))
	for i := range outcomes {
		outcomes[i] = outcome(reply[2+outcomeNumbers*i:])
	}
	return outcomes, resources(reply), nil
}

// Renew implements Pool.
func (r *Redis) Renew(ctx context.Context, node, owner string) error {
	if err := ValidateName("owner", owner); err != nil {
		return err
	}
	if err := r.call(ctx, "renew", node, nil, owner).Err(); err != nil {
		return fmt.Errorf("renewing the lease of %q on node %s: %w", owner, node, err)
	}
	return nil
}

// Heartbeat implements Pool.
func (r *Redis) Heartbeat(ctx context.Context, node string, hb Heartbeat) (open bool, err error) {
	if err := hb.Validate(); err != nil {
		return false, err
	}
	reply, err := r.call(ctx, "heartbeat", node,
		[]int64{
			number(hb.Whole), hb.Lendable.CPUMilli, hb.Lendable.MemoryBytes, hb.RestedAt.UnixMilli(),
			hb.Capacity.CPUMilli, hb.Capacity.MemoryBytes, hb.Idle.CPUMilli, hb.Idle.MemoryBytes,
		}, hb.Agent, hb.Epoch, byPod(hb.Pods), byPod(hb.Needs), strings.Join(hb.Rested, "\n"),
	).Int64()
	if err != nil {
		return false, fmt.Errorf("sending the heartbeat of node %s: %w", node, err)
	}
	return reply == 1, nil
}

// byPod returns a line for each pod's name and one for its bytes.
func byPod(bytes map[string]int64) string {
	var lines strings.Builder
	for _, pod := range slices.Sorted(maps.Keys(bytes)) {
		fmt.Fprintf(&lines, "%s\n%d\n", pod, bytes[pod])
	}
	return lines.String()
}

// Safeguard implements Pool.
func (r *Redis) Safeguard(ctx context.Context, node, pod string, idle bool) (revokedMilli int64, err error) {
	if err := ValidateName("pod", pod); err != nil {
		return 0, err
	}
	revokedMilli, err = r.call(ctx, "safeguard", node,
		[]int64{SuspendLeast.Milliseconds(), SuspendMost.Milliseconds(), number(idle)}, pod,
	).Int64()
	if err != nil {
		return 0, fmt.Errorf("reporting the safeguard of pod %s on node %s: %w", pod, node, err)
	}
	return revokedMilli, nil
}

// Ask implements Pool.
func (r *Redis) Ask(ctx context.Context, node, pod string, milli int64) error {
	if err := ValidateAsk(pod, milli); err != nil {
		return err
	}
	if err := r.call(ctx, "ask", node, []int64{milli}, pod).Err(); err != nil {
		return fmt.Errorf("asking for CPU for pod %s on node %s: %w", pod, node, err)
	}
	return nil
}

// Read implements Pool.
func (r *Redis) Read(ctx context.Context, node string) (State, error) {
	reply, err := r.call(ctx, "read", node, []int64{SuspendMost.Milliseconds()}).Slice()
	if err != nil {
		return State{}, fmt.Errorf("reading the pool of node %s: %w", node, err)
	}
	state, err := parseState(reply)
	if err != nil {
		return State{}, fmt.Errorf("reading the pool of node %s: %w", node, err)
	}
	return state, nil
}

// openObject returns v as a JSON object that is to be added to: begin replaces the
// opening brace, and a comma the closing one.
func openObject(v any, begin string) ([]byte, error) {
	data, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	data = append([]byte(begin), data[1:]...)
	data[len(data)-1] = ','
	return data, nil
}

// packed encodes several numbers as one argument, which Redis takes in faster. A float64
// must represent each of them exactly.
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
