package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"time"

	"libra.dev/libra/loadtest/bench/rig"
)

const (
	// otherWorker is the worker that is taken away.
	otherWorker = "w2"
	// workerTimeout is longer than it takes until an empty node is Ready.
	workerTimeout = 90 * time.Second
)

// workerAway takes away, for a while, a worker that no function is on. It therefore excuses
// no failed request.
func (c *cluster) workerAway(ctx context.Context, t target) error {
	away := "link-down"
	if t.action == gone {
		away = "node-stop"
	}
	err := c.boxDoes(ctx, away, otherWorker)
	if err == nil {
		err = rig.Pause(ctx, t.length)
	}
	return errors.Join(err, c.bringWorkerBack(context.WithoutCancel(ctx)))
}

// bringWorkerBack undoes what was done to a worker, if anything was.
func (c *cluster) bringWorkerBack(ctx context.Context) error {
	if c.Home != rig.Worker {
		return nil
	}
	if err := c.boxDoes(ctx, "node-start", otherWorker); err != nil {
		return err
	}
	return c.boxDoes(ctx, "link-up", otherWorker)
}

func (c *cluster) boxDoes(ctx context.Context, args ...string) error {
	ctx, cancel := context.WithTimeout(ctx, workerTimeout)
	defer cancel()
	if said, err := exec.CommandContext(ctx, c.box, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s %v: %w: %s", c.box, args, err, bytes.TrimSpace(said))
	}
	return nil
}
