package pool

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"

	"github.com/redis/go-redis/v9"

	"libra.dev/libra/pkg/api"
)

// endedVersion is ENDED_VERSION in lua/1_node.lua.
const endedVersion = 2

// Reader reads what a node's invocations were once they have ended. Not for
// concurrent use.
type Reader struct {
	ended   cursor
	skipped int64
}

// Ended makes a Reader for a node. It holds a connection while it waits.
func (r *Redis) Ended(node string) *Reader {
	return &Reader{ended: cursor{client: r.waits, streams: []string{endedStream(node)}}}
}

// Next waits for invocations that ended since it last returned; the first Next,
// since it was called. When ctx ends, Next returns its error within two seconds.
func (r *Reader) Next(ctx context.Context) ([]api.Ended, error) {
	if _, err := r.ended.seek(ctx); err != nil {
		return nil, err
	}
	for {
		entries, err := r.ended.next(ctx)
		if err != nil {
			return nil, err
		}
		var read []api.Ended
		for _, entry := range entries {
			e, err := readEnded(entry)
			if err != nil {
				r.skipped++
				continue
			}
			read = append(read, e)
		}
		if len(read) > 0 {
			return read, nil
		}
	}
}

func readEnded(entry redis.XMessage) (api.Ended, error) {
	if v := entry.Values["v"]; v != strconv.Itoa(endedVersion) {
		return api.Ended{}, fmt.Errorf("entry %s has version %v: only %d can be read", entry.ID, v, endedVersion)
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

// Skipped is how many entries Next left out, because it does not know their
// version or cannot read them.
func (r *Reader) Skipped() int64 { return r.skipped }
