package controller

import (
	"context"

	"k8s.io/client-go/util/workqueue"
	logf "sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"libra.dev/libra/resizer/backoff"
)

// Follower reports the nodes on which memory has changed: a *pool.MemoryFollower is one.
type Follower interface {
	// Next waits for the next change and returns its node, or an empty name when it may be any
	// node.
	Next(ctx context.Context) (node string, err error)
}

// awaken requeues a node when the memory that its pods borrow or need has changed, and all nodes
// when the settings have. It is a source of the controller, so that it lives as long as the
// controller's queue.
func (c *Controller) awaken(ctx context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.queue = queue
	go c.followMemory(ctx)
	return nil
}

// wakeAll requeues every known node.
func (c *Controller) wakeAll() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.queue == nil {
		return // the start looks at all nodes
	}
	for node := range c.nodes {
		c.queue.Add(requestOf(node))
	}
}

func (c *Controller) wake(node string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, ok := c.nodes[node]; ok {
		c.queue.Add(requestOf(node))
	}
}

func (c *Controller) followMemory(ctx context.Context) {
	log := logf.FromContext(ctx)
	retry := backoff.Delay{Min: backoff.Min, Max: backOffMax}
	for {
		node, err := c.follower.Next(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			c.metrics.poolFailed(ctx, "follow")
			if retry.Failing() {
				log.V(1).Info("still could not follow changes of borrowed and needed memory", "error", err.Error())
			} else {
				log.Error(err, "could not follow changes of borrowed and needed memory; looking at all nodes meanwhile", "every", tick)
				c.deaf.Store(true)
				c.wakeAll()
			}
			backoff.Pause(ctx, c.clock, retry.Next())
			continue
		case node == "":
			if retry.Failing() {
				log.Info("following changes of borrowed and needed memory again")
			}
			c.wakeAll()
		default:
			c.wake(node)
		}
		retry.Reset()
		c.deaf.Store(false)
	}
}
