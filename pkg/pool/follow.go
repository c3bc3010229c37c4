package pool

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/redis/go-redis/v9"

	"libra.dev/libra/pkg/redisconn"
)

// memoryChannel is MEMORY_CHANNEL in lua/1_node.lua.
const memoryChannel = "libra:memory"

// followSlice is how long a follower hears nothing before it checks that its connection is
// alive, and how long it waits for an answer.
const followSlice = time.Second

// MemoryFollower follows on which nodes pods borrow more or less memory than before, or need
// more or less. It is not safe for concurrent use.
type MemoryFollower struct {
	server       redisconn.Server
	client       redis.UniversalClient
	subscription *redis.PubSub // nil while there is none
	asked        bool          // whether a ping is unanswered
}

// FollowMemory returns a MemoryFollower for all nodes. It holds a connection while it follows.
func (r *Redis) FollowMemory() *MemoryFollower {
	return &MemoryFollower{server: r.server, client: r.waits}
}

// Next waits for a change and returns its node. The node is empty when changes on any node may
// have been missed: the first time, and after an error. When ctx ends, Next returns its error
// within three seconds.
func (f *MemoryFollower) Next(ctx context.Context) (node string, err error) {
	for {
		node, told, err := f.receive(context.WithoutCancel(ctx))
		if err == nil && !told && ctx.Err() == nil {
			continue
		}
		if err = errors.Join(ctx.Err(), err); err != nil {
			f.Close() //nolint:errcheck // it is given up
			return "", fmt.Errorf("following %s: %w", memoryChannel, f.server.Explain(err))
		}
		return node, nil
	}
}

// receive waits for one slice, and says whether it was told anything.
func (f *MemoryFollower) receive(ctx context.Context) (node string, told bool, err error) {
	if f.subscription == nil {
		f.subscription, f.asked = f.client.Subscribe(ctx, memoryChannel), false
	}
	message, err := f.subscription.ReceiveTimeout(ctx, followSlice)
	if timedOut(err) && !f.asked {
		f.asked = true
		return "", false, f.subscription.Ping(ctx)
	}
	if err != nil {
		return "", false, err
	}
	f.asked = false
	switch m := message.(type) {
	case *redis.Subscription:
		return "", true, nil
	case *redis.Message:
		return m.Payload, true, nil
	}
	return "", false, nil
}

func timedOut(err error) bool {
	var network net.Error
	return errors.As(err, &network) && network.Timeout()
}

// Close ends the connection. A later Next makes another.
func (f *MemoryFollower) Close() error {
	if f.subscription == nil {
		return nil
	}
	subscription := f.subscription
	f.subscription = nil
	return subscription.Close()
}
