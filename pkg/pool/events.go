package pool

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"libra.dev/libra/pkg/api"
)

// Versions of records, as in lua/1_node.lua.
const (
	rankedVersion = "1"
	endedVersion  = "2"
)

// Watcher follows a node's events, as its agent does. It is not safe for concurrent use.
type Watcher struct {
	streams cursor
	skipped int64
}

// Watch returns a Watcher for a node. It holds a connection while it waits.
func (r *Redis) Watch(node string) *Watcher {
	return &Watcher{streams: cursor{client: r.waits, streams: []string{r.library.key(node, intentsKey), r.library.key(node, eventsKey)}}}
}

// Events are what happened on a node. An invocation that has both begun and ended is in the
// same Events, or has begun in earlier ones.
type Events struct {
	// Changed says that the State may have changed by more than Begun and Ended tell.
	Changed bool
	// Begun are ranked invocations that have begun, except those whose Begin Changed balances.
	Begun []Begun
	Ended []api.Ended // ranked or not
	// Behind says that more may have happened by the time of these Events: the next ones are no newer.
	Behind bool
}

// Begun is a ranked invocation that has begun.
type Begun struct {
	ID, Pod string        // pod by namespace/name
	CPUTime time.Duration // predicted; 0 when there was no prediction
	At      time.Time     // in milliseconds, by the pool's clock
}

// Next waits until something has happened since it last returned. The first Next returns at
// once, as Changed, because what happened before it is unknown. When ctx ends, Next returns
// its error within two seconds.
func (w *Watcher) Next(ctx context.Context) (Events, error) {
	if moved, err := w.streams.seek(ctx); moved {
		return Events{Changed: true}, err
	}
	for {
		entries, err := w.streams.next(ctx)
		if err != nil {
			return Events{}, err
		}
		if entries == nil {
			continue
		}
		events := Events{
			Changed: len(entries[0]) > 0,
			Behind:  slices.ContainsFunc(entries, func(of []redis.XMessage) bool { return len(of) == readCount }),
		}
		for _, entry := range entries[1] {
			if err := events.add(entry); err != nil {
				w.skipped++
				events.Changed = true // the State tells it, too
			}
		}
		return events, nil
	}
}

// add takes in an entry of the stream of events.
func (e *Events) add(entry redis.XMessage) error {
	if entry.Values["ranked"] != nil {
		begun, err := readBegun(entry)
		if err != nil {
			return err
		}
		e.Begun = append(e.Begun, begun)
		return nil
	}
	ended, err := readEnded(entry)
	if err != nil {
		return err
	}
	e.Ended = append(e.Ended, ended)
	return nil
}

// Skipped returns how many entries Next left out because it does not know their version or
// cannot read them.
func (w *Watcher) Skipped() int64 { return w.skipped }

func readBegun(entry redis.XMessage) (Begun, error) {
	if v := entry.Values["ranked"]; v != rankedVersion {
		return Begun{}, fmt.Errorf("entry %s of a ranked Begin has version %v: only %s can be read", entry.ID, v, rankedVersion)
	}
	var fields [3]string
	for i, name := range [...]string{"id", "pod", "cpu_time"} {
		text, ok := entry.Values[name].(string)
		if !ok {
			return Begun{}, fmt.Errorf("entry %s has no field %s", entry.ID, name)
		}
		fields[i] = text
	}
	cpuTime, err := strconv.ParseInt(fields[2], 10, 64)
	if err != nil || cpuTime < 0 {
		return Begun{}, fmt.Errorf("entry %s: cpu_time is %q: it must be milliseconds", entry.ID, fields[2])
	}
	millis, _ := splitID(entry.ID)
	return Begun{
		ID: fields[0], Pod: fields[1],
		CPUTime: time.Duration(cpuTime) * time.Millisecond, At: time.UnixMilli(int64(millis)),
	}, nil
}

func readEnded(entry redis.XMessage) (api.Ended, error) {
	if v := entry.Values["ended"]; v != endedVersion {
		return api.Ended{}, fmt.Errorf("entry %s of an End has version %v: only %s can be read", entry.ID, v, endedVersion)
	}
	var data []byte
	for _, part := range []string{"begun", "ending", "pool"} {
		text, ok := entry.Values[part].(string)
		if !ok {
			return api.Ended{}, fmt.Errorf("entry %s has no field %s", entry.ID, part)
		}
		data = append(data, text...)
	}
	var e api.Ended
	if err := json.Unmarshal(data, &e); err != nil {
		return api.Ended{}, fmt.Errorf("entry %s: fields begun, ending and pool: %w", entry.ID, err)
	}
	return e, nil
}
