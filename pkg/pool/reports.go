package pool

import (
	"context"
	"fmt"
	"strconv"

	"github.com/redis/go-redis/v9"

	"libra.dev/libra/pkg/report"
)

// reportsPrefix is the prefix of the hashes that hold, by writer, what was counted in a slot. No
// function of the library looks at them.
const reportsPrefix = "libra:reports:"

func reportsKey(slot report.Slot) string { return reportsPrefix + strconv.FormatInt(int64(slot), 10) }

// PutReports replaces what a writer counted in slots, in one round trip.
func (r *Redis) PutReports(ctx context.Context, writer string, encoded map[report.Slot][]byte) error {
	_, err := r.calls.Pipelined(ctx, func(p redis.Pipeliner) error {
		for slot, record := range encoded {
			p.HSet(ctx, reportsKey(slot), writer, record)
			p.PExpire(ctx, reportsKey(slot), report.Keep)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("writing the function counts of %s: %w", writer, err)
	}
	return nil
}

// ReadReports returns what all writers counted in slots, encoded, in one round trip.
func (r *Redis) ReadReports(ctx context.Context, slots []report.Slot) (map[report.Slot]map[string]string, error) {
	replies := make(map[report.Slot]*redis.MapStringStringCmd, len(slots))
	_, err := r.calls.Pipelined(ctx, func(p redis.Pipeliner) error {
		for _, slot := range slots {
			replies[slot] = p.HGetAll(ctx, reportsKey(slot))
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("reading the function counts: %w", err)
	}
	records := make(map[report.Slot]map[string]string, len(slots))
	for slot, reply := range replies {
		records[slot] = reply.Val()
	}
	return records, nil
}
