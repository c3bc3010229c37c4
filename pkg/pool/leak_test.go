package pool

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"time"

	testingclock "k8s.io/utils/clock/testing"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/pool/redistest"
)

// sizes are how much a node's pool takes up in Redis.
type sizes struct {
	members map[string]int64 // by key
	bytes   int64
	lua     int64 // bytes of all that the functions keep
}

func measureSizes(t *testing.T, r *Redis, node string) sizes {
	t.Helper()
	ctx := redistest.Context(t)
	// Garbage that is not collected yet is no leak. All libraries share the collector.
	collect := "#!lua name=test\nredis.register_function('collect', function() collectgarbage() end)"
	if err := errors.Join(r.calls.FunctionLoadReplace(ctx, collect).Err(), ignoreNil(r.calls.FCall(ctx, "collect", nil).Err())); err != nil {
		t.Fatal(err)
	}
	keys, err := r.calls.Keys(ctx, "libra:{"+node+"}:*").Result()
	if err != nil {
		t.Fatal(err)
	}
	s := sizes{members: map[string]int64{}}
	for _, key := range keys {
		bytes, err := r.calls.MemoryUsage(ctx, key, 0).Result()
		if err != nil {
			t.Fatal(err)
		}
		s.bytes += bytes
		kind, err := r.calls.Type(ctx, key).Result()
		if err != nil {
			t.Fatal(err)
		}
		size := map[string]string{"string": "STRLEN", "zset": "ZCARD", "stream": "XLEN"}[kind]
		if s.members[key], err = r.calls.Do(ctx, size, key).Int64(); err != nil {
			t.Fatalf("%s of %s: %v", size, key, err)
		}
		if left, err := r.calls.PTTL(ctx, key).Result(); err != nil || left <= 0 || left > time.Hour {
			t.Errorf("key %s expires in %v, %v; want at most the hour of retention", key, left, err)
		}
	}
	info, err := r.calls.Info(ctx, "memory").Result()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(info) {
		if value, ok := strings.CutPrefix(strings.TrimSpace(line), "used_memory_vm_functions:"); ok {
			if s.lua, err = strconv.ParseInt(value, 10, 64); err != nil {
				t.Fatal(err)
			}
		}
	}
	return s
}

// lasting is an activator that outlives all pods in which it has counted others.
const lasting = "activator"

// day is six hours on a node in compressed time: pods, functions and activators come
// and go, ends get lost or overtake their begins, and safeguards fire.
type day struct {
	*testing.T
	r      *Redis
	clock  *testingclock.FakePassiveClock
	random *rand.Rand
	n      int
	owner  string
	pods   []string
}

func (d *day) do(err error) {
	d.Helper()
	if err != nil {
		d.Fatal(err)
	}
}

func (d *day) pass(by time.Duration) { d.clock.SetTime(d.clock.Now().Add(by)) }

// step is three seconds.
func (d *day) step(ctx context.Context) {
	const node = "node"
	d.pass(3 * time.Second)
	d.n++
	if d.n%200 == 1 {
		d.owner = fmt.Sprint("activator-", d.n)
		d.pods = nil
		for i := range 5 {
			d.pods = append(d.pods, fmt.Sprintf("default/pod-%d-%d", d.n, i))
		}
	}
	state, err := d.r.Read(ctx, node)
	d.do(err)
	hb := Heartbeat{Agent: "agent", Epoch: state.Epoch, Whole: true, Lendable: unlimited, Pods: map[string]int64{}}
	for _, pod := range d.pods {
		hb.Pods[pod] = 64 << 20
	}
	if d.n == 1 {
		hb.Rested, hb.RestedAt = d.pods, state.Now
	}
	_, err = d.r.Heartbeat(ctx, node, hb)
	d.do(err)
	d.do(d.r.Renew(ctx, node, d.owner))
	d.do(d.r.Renew(ctx, node, lasting))
	for i := range 2 {
		id := fmt.Sprintf("invocation-%d-%d", d.n, i)
		inv := Invocation{
			ID: id, Function: fmt.Sprint("default/f-", d.n/50), Pod: d.pods[d.random.IntN(len(d.pods))], Domain: "default", Owner: d.owner,
			Allocation: allocation, Duration: time.Duration(d.random.IntN(20)) * time.Second, IdleCPUMilli: int64(300 * d.random.IntN(2)),
		}
		if d.random.IntN(2) == 0 {
			inv.Surplus = api.Resources{CPUMilli: 300, MemoryBytes: 64 << 20}
		} else {
			inv.Want = api.Resources{CPUMilli: 500, MemoryBytes: 100 << 20}
		}
		begin := func() { _, err := d.r.Begin(ctx, node, inv); d.do(err) }
		end := func() { _, err := d.r.End(ctx, node, Ending{ID: id, Status: 200}); d.do(err) }
		fate := d.random.IntN(20)
		if fate > 2 && d.random.IntN(2) == 0 {
			inv.Owner, inv.Number, inv.Others = lasting, int64(2*d.n+i), d.random.IntN(2)
		}
		switch fate {
		case 0:
			end()
			begin()
		case 1, 2:
			begin() // its End is lost: it lasts until its activator is lost, too
		case 3:
			begin()
			_, err := d.r.Safeguard(ctx, node, inv.Pod, false)
			d.do(err)
			end()
		default:
			begin()
			end()
		}
	}
}

// settle lets the leases of all activators but the lasting one expire, and the Ends.
func (d *day) settle(ctx context.Context) sizes {
	const step = 3 * time.Second
	for range 2 * SuspendMost / step {
		d.pass(step)
		d.do(d.r.Renew(ctx, "node", lasting))
		_, err := d.r.Read(ctx, "node")
		d.do(err)
	}
	return measureSizes(d.T, d.r, "node")
}

func TestSixHoursLeakNothing(t *testing.T) {
	r := newRedis(t, redistest.Start(t))
	d := &day{T: t, r: r, clock: testingclock.NewFakePassiveClock(epoch), random: rand.New(rand.NewPCG(1, 2))}
	r.UseClock(d.clock)
	ctx := t.Context()

	// After an hour, the streams are as long as they get.
	for d.clock.Since(epoch) < time.Hour {
		d.step(ctx)
	}
	after1 := d.settle(ctx)
	for d.clock.Since(epoch) < 7*time.Hour {
		d.step(ctx)
	}
	after7 := d.settle(ctx)

	for key, members := range after7.members {
		most := after1.members[key]
		if strings.HasSuffix(key, ":intents") || strings.HasSuffix(key, ":events") {
			most = 1200 // its length is kept to about a thousand at most
		}
		if members > most {
			t.Errorf("key %s had %d members after an hour and has %d after seven", key, after1.members[key], members)
		}
	}
	if len(after7.members) != len(after1.members) {
		t.Errorf("the node had %d keys after an hour and has %d after seven", len(after1.members), len(after7.members))
	}
	if after7.bytes > after1.bytes*5/4 {
		t.Errorf("the node took %d bytes after an hour and %d after seven", after1.bytes, after7.bytes)
	}
	if after7.lua > after1.lua*5/4 {
		t.Errorf("the functions took %d bytes after an hour and %d after seven", after1.lua, after7.lua)
	}
	if size, err := r.calls.DBSize(ctx).Result(); err != nil || size != int64(len(after7.members)) {
		t.Errorf("Redis has %d keys, %v; want the %d of the node", size, err, len(after7.members))
	}
	t.Logf("after an hour %d bytes and %d of Lua, after seven %d and %d", after1.bytes, after1.lua, after7.bytes, after7.lua)
}
