package pool

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"github.com/redis/go-redis/v9"

	"libra.dev/libra/pkg/api"
)

// observationsLength is about how many observations Redis keeps for the predictor.
const observationsLength = 20_000

// Observe appends an observation for the predictor to learn from.
func (r *Redis) Observe(ctx context.Context, o api.Observation) error {
	data, err := json.Marshal(o)
	if err != nil {
		return fmt.Errorf("encoding the observation of invocation %q: %w", o.ID, err)
	}
	err = r.calls.XAdd(ctx, &redis.XAddArgs{
		Stream: api.ObservationsStream,
		MaxLen: observationsLength,
		Approx: true,
		Values: []any{"v", api.RecordVersion, "data", data},
	}).Err()
	if err != nil {
		return fmt.Errorf("appending the observation of invocation %q: %w", o.ID, err)
	}
	return nil
}

// Observations are some that were appended one after the other.
type Observations struct {
	All []api.Observation
	// Skipped is how many more there were that have an unknown version or cannot be read.
	Skipped int
	// Until is the point to read on from.
	Until string
	More  bool // whether there may be more already
}

// ReadObservations returns at most the given number of observations that were appended after a
// point. The empty point comes before all that Redis still has.
func (r *Redis) ReadObservations(ctx context.Context, after string, most int) (Observations, error) {
	streams, err := r.calls.XRead(ctx, &redis.XReadArgs{
		Streams: []string{api.ObservationsStream, cmp.Or(after, "0")},
		Count:   int64(most),
		Block:   -1, // do not wait
	}).Result()
	read := Observations{Until: after}
	if errors.Is(err, redis.Nil) {
		return read, nil
	}
	if err != nil {
		return read, fmt.Errorf("reading observations: %w", err)
	}
	for _, stream := range streams {
		read.More = len(stream.Messages) == most
		for _, m := range stream.Messages {
			read.Until = m.ID
			data, _ := m.Values["data"].(string)
			var o api.Observation
			if m.Values["v"] != strconv.Itoa(api.RecordVersion) || json.Unmarshal([]byte(data), &o) != nil {
				read.Skipped++
				continue
			}
			read.All = append(read.All, o)
		}
	}
	return read, nil
}
