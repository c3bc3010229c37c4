package pool

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/redis/go-redis/v9"

	"libra.dev/libra/pkg/api"
)

// observationsLength is about how many observations Redis keeps for the predictor.
const observationsLength = 20_000

// Observe appends an observation for the predictor to learn from.
func (r *Redis) Observe(ctx context.Context, o api.Observation) error {
	data, err := json.Marshal(o)
	if err != nil {
		return fmt.Errorf("observation of invocation %q: %w", o.ID, err)
	}
	err = r.calls.XAdd(ctx, &redis.XAddArgs{
		Stream: api.ObservationsStream,
		MaxLen: observationsLength,
		Approx: true,
		Values: []any{"v", api.RecordVersion, "data", data},
	}).Err()
	if err != nil {
		return fmt.Errorf("append the observation of invocation %q: %w", o.ID, err)
	}
	return nil
}
