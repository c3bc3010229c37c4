package pool

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/redis/go-redis/v9"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/pool/redistest"
)

// A Redis that was emptied while its clock went back numbers entries lower than
// those that were read.
func TestWatcherAfterFlush(t *testing.T) {
	r := newRedis(t, redistest.Start(t))
	ctx := redistest.Context(t)
	add := func(id string) {
		t.Helper()
		if err := r.calls.XAdd(ctx, &redis.XAddArgs{Stream: thisLibrary.key("node", intentsKey), ID: id, Values: []any{"v", 1}}).Err(); err != nil {
			t.Fatal(err)
		}
	}
	add("1000-5")
	w := r.Watch("node")
	if _, err := w.Next(ctx); err != nil {
		t.Fatal(err)
	}
	if err := r.calls.FlushAll(ctx).Err(); err != nil {
		t.Fatal(err)
	}
	add("1000-4")
	if events, err := w.Next(ctx); err != nil || !events.Changed {
		t.Fatalf("%+v, %v", events, err)
	}
}

// A watcher that was away for a while says so with all that it missed.
func TestWatcherBehind(t *testing.T) {
	r := newRedis(t, redistest.Start(t))
	ctx := redistest.Context(t)
	w := r.Watch("node")
	if _, err := w.Next(ctx); err != nil {
		t.Fatal(err)
	}
	pipe := r.calls.Pipeline()
	for range readCount + 44 {
		pipe.XAdd(ctx, &redis.XAddArgs{Stream: thisLibrary.key("node", eventsKey), Values: []any{"ranked", rankedVersion, "id", "1", "pod", "default/a", "cpu_time", 1}})
	}
	if _, err := pipe.Exec(ctx); err != nil {
		t.Fatal(err)
	}
	for _, want := range []Events{{Behind: true, Begun: make([]Begun, readCount)}, {Begun: make([]Begun, 44)}} {
		events, err := w.Next(ctx)
		if err != nil || events.Behind != want.Behind || len(events.Begun) != len(want.Begun) {
			t.Fatalf("%d have begun, behind: %v, %v; want %d, behind: %v", len(events.Begun), events.Behind, err, len(want.Begun), want.Behind)
		}
	}
}

func TestWatcherReadsRecords(t *testing.T) {
	r := newRedis(t, redistest.Start(t))
	ctx := redistest.Context(t)
	lendOnce(t, r, "node")
	if _, err := r.End(ctx, "node", Ending{ID: "unknown"}); err != nil {
		t.Fatal(err)
	}
	if _, err := r.End(ctx, "node", Ending{ID: "borrower"}); err != nil {
		t.Fatal(err)
	}

	w := r.Watch("node")
	if _, err := w.Next(ctx); err != nil { // which returns at once
		t.Fatal(err)
	}
	for _, values := range [][]any{
		{"ended", endedVersion + "1", "begun", "{", "ending", "", "pool", "}"},
		{"ended", endedVersion, "begun", "{", "pool", "}"},
		{"ended", endedVersion, "begun", "{", "ending", "", "pool", ""},
		{"ranked", rankedVersion + "1", "id", "1", "pod", "default/a", "cpu_time", 1},
		{"ranked", rankedVersion, "id", "1", "cpu_time", 1},
		{"ranked", rankedVersion, "id", "1", "pod", "default/a", "cpu_time", "1.5"},
		{"ranked", rankedVersion, "id", "1", "pod", "default/a", "cpu_time", -1},
		{"ranked", rankedVersion, "id", "1", "pod", "default/a", "cpu_time", 1},
		{"another", "1"},
	} {
		if err := r.calls.XAdd(ctx, &redis.XAddArgs{Stream: thisLibrary.key("node", eventsKey), Values: values}).Err(); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := r.End(ctx, "node", Ending{ID: "donor", Duration: 1500 * time.Millisecond, Status: 200}); err != nil {
		t.Fatal(err)
	}

	events, err := w.Next(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if len(events.Begun) != 1 || events.Begun[0].Pod != "default/a" || !events.Changed {
		t.Errorf("%+v, want what has begun that could be read, and that the state is to be", events)
	}
	got := events.Ended
	inv := donor("donor")
	want := []api.Ended{{
		ID: inv.ID, Function: inv.Function, Pod: inv.Pod, Duration: 1500 * time.Millisecond, Status: 200,
		Lent: inv.Surplus, Alone: true,
	}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("records differ (-want +got):\n%s", diff)
	}
	if got := w.Skipped(); got != 8 {
		t.Errorf("skipped %d entries, want 8", got)
	}

	ctx, cancel := context.WithTimeout(ctx, 5*time.Millisecond)
	defer cancel()
	if _, err := w.Next(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("next past its deadline: %v", err)
	}
}

// Without followers, streams do not fill Redis, as those of many busy nodes
// would.
func TestStreamsKeepSeconds(t *testing.T) {
	r := newRedis(t, redistest.Start(t))
	ctx := redistest.Context(t)
	streams := []string{thisLibrary.key("node", intentsKey), thisLibrary.key("node", eventsKey)}
	for _, stream := range streams {
		for i := range 50 {
			old := &redis.XAddArgs{Stream: stream, ID: fmt.Sprintf("1000-%d", i+1), Values: []any{"v", strings.Repeat("x", 500)}}
			if err := r.calls.XAdd(ctx, old).Err(); err != nil {
				t.Fatal(err)
			}
		}
	}
	lendOnce(t, r, "node")
	time.Sleep(LeaseTTL) // after which they are trimmed again
	if _, err := r.End(ctx, "node", Ending{ID: "donor"}); err != nil {
		t.Fatal(err)
	}
	for _, stream := range streams {
		entries, err := r.calls.XRange(ctx, stream, "-", "+").Result()
		if err != nil {
			t.Fatal(err)
		}
		old := 0
		for _, entry := range entries {
			if strings.HasPrefix(entry.ID, "1000-") {
				old++
			}
		}
		if old > 10 || old == len(entries) { // they are removed in whole blocks of about eight
			t.Errorf("stream %s has %d old entries and %d new ones, want new ones and no more old ones than share a block with them", stream, old, len(entries)-old)
		}
	}
}

func TestObserve(t *testing.T) {
	r := newRedis(t, redistest.Start(t))
	ctx := redistest.Context(t)
	want := api.Observation{
		Ended: api.Ended{
			ID: "a", Function: "default/resize-00001", Configuration: "default/resize", Size: 7, Alone: true,
		},
		Peak:           api.Resources{CPUMilli: 900, MemoryBytes: 64 << 20},
		LimitAtPeak:    api.Resources{CPUMilli: 1000},
		ThrottledShare: 0.25,
		First:          true,
	}
	if err := r.Observe(ctx, want); err != nil {
		t.Fatal(err)
	}
	entries, err := r.calls.XRange(ctx, api.ObservationsStream, "-", "+").Result()
	if err != nil || len(entries) != 1 {
		t.Fatalf("%d entries, %v; want 1", len(entries), err)
	}
	wantData := `{"id":"a","function":"default/resize-00001","configuration":"default/resize","pod":"","size":7,"duration_ns":0,` +
		`"predicted":{"cpu_milli":0,"memory_bytes":0},"lent":{"cpu_milli":0,"memory_bytes":0},"borrowed":{"cpu_milli":0,"memory_bytes":0},` +
		`"alone":true,"safeguarded":false,"status":0,"peak":{"cpu_milli":900,"memory_bytes":67108864},"cpu_time_ns":0,"limit":{"cpu_milli":0,"memory_bytes":0},"limit_at_peak":{"cpu_milli":1000,"memory_bytes":0},"throttled_share":0.25,"first":true}`
	if diff := cmp.Diff(map[string]any{"v": "1", "data": wantData}, entries[0].Values); diff != "" {
		t.Errorf("entry differs (-want +got):\n%s", diff)
	}
}

func TestReadObservations(t *testing.T) {
	r := newRedis(t, redistest.Start(t))
	ctx := redistest.Context(t)
	read, err := r.ReadObservations(ctx, "", 2)
	if err != nil || len(read.All) != 0 || read.More || read.Until != "" {
		t.Errorf("of none it reads %+v, %v", read, err)
	}
	observe := func(id string) {
		t.Helper()
		if err := r.Observe(ctx, api.Observation{Ended: api.Ended{ID: id}, Peak: api.Resources{CPUMilli: 7}}); err != nil {
			t.Fatal(err)
		}
	}
	observe("a")
	for _, values := range [][]any{{"v", "0", "data", "{}"}, {"v", "1", "data", "{"}, {"v", "1"}} {
		if err := r.calls.XAdd(ctx, &redis.XAddArgs{Stream: api.ObservationsStream, Values: values}).Err(); err != nil {
			t.Fatal(err)
		}
	}
	observe("b")
	var ids []string
	skipped, calls := 0, 0
	for read.More = true; read.More; calls++ {
		if read, err = r.ReadObservations(ctx, read.Until, 2); err != nil {
			t.Fatal(err)
		}
		skipped += read.Skipped
		for _, o := range read.All {
			if o.Peak.CPUMilli != 7 {
				t.Errorf("it reads %+v", o)
			}
			ids = append(ids, o.ID)
		}
	}
	if !slices.Equal(ids, []string{"a", "b"}) || skipped != 3 || calls != 3 {
		t.Errorf("in %d calls it reads %v and skips %d, want a and b in 3, and 3 skipped", calls, ids, skipped)
	}
	observe("c")
	if read, err = r.ReadObservations(ctx, read.Until, 2); err != nil || len(read.All) != 1 || read.All[0].ID != "c" {
		t.Errorf("later it reads %+v, %v, want c", read, err)
	}
}
