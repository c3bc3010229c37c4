package pool

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	// waitSlice is how long one read blocks. go-redis does not interrupt a read that
	// blocks, so it is also how late a wait notices that its context has ended.
	waitSlice = time.Second
	readCount = 256

	streamStart = "0-0"
)

// cursor reads streams of one node from where it first looked.
type cursor struct {
	client  redis.UniversalClient
	streams []string
	last    []string // ID of the last entry read from each; empty before the first look
}

// seek puts the cursor at the end of the streams, unless it has a place already.
func (c *cursor) seek(ctx context.Context) (moved bool, err error) {
	if c.last != nil {
		return false, nil
	}
	last := make([]string, len(c.streams))
	for i, stream := range c.streams {
		if last[i], err = c.end(ctx, stream); err != nil {
			return true, err
		}
	}
	c.last = last
	return true, nil
}

// next waits for entries and returns them by stream, or none when none came for a while.
func (c *cursor) next(ctx context.Context) ([][]redis.XMessage, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	readCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), waitSlice+callTimeout)
	defer cancel()
	read, err := c.client.XRead(readCtx, &redis.XReadArgs{
		Streams: slices.Concat(c.streams, c.last),
		Count:   readCount,
		Block:   waitSlice,
	}).Result()
	if ctxErr := ctx.Err(); ctxErr != nil && err != nil {
		return nil, ctxErr
	}
	if errors.Is(err, redis.Nil) {
		return nil, c.rewind(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", strings.Join(c.streams, " and "), err)
	}
	entries := make([][]redis.XMessage, len(c.streams))
	for _, stream := range read {
		if i := slices.Index(c.streams, stream.Stream); i >= 0 && len(stream.Messages) > 0 {
			c.last[i] = stream.Messages[len(stream.Messages)-1].ID
			entries[i] = stream.Messages
		}
	}
	return entries, nil
}

// rewind goes back to the start of a stream that ends before the cursor: Redis lost the
// stream and made it anew while the clock went back.
func (c *cursor) rewind(ctx context.Context) error {
	for i, stream := range c.streams {
		end, err := c.end(ctx, stream)
		if err != nil {
			return err
		}
		if before(end, c.last[i]) {
			c.last[i] = streamStart
		}
	}
	return nil
}

func (c *cursor) end(ctx context.Context, stream string) (string, error) {
	newest, err := c.client.XRevRangeN(ctx, stream, "+", "-", 1).Result()
	if err != nil {
		return "", fmt.Errorf("finding the end of stream %s: %w", stream, err)
	}
	if len(newest) == 0 {
		return streamStart, nil
	}
	return newest[0].ID, nil
}

// before compares two stream ids, which are of the form milliseconds-sequence.
func before(a, b string) bool {
	aMillis, aSeq := splitID(a)
	bMillis, bSeq := splitID(b)
	return aMillis < bMillis || aMillis == bMillis && aSeq < bSeq
}

func splitID(id string) (millis, seq uint64) {
	m, s, _ := strings.Cut(id, "-")
	millis, _ = strconv.ParseUint(m, 10, 64) // ids come from Redis itself
	seq, _ = strconv.ParseUint(s, 10, 64)
	return millis, seq
}
