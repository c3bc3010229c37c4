package cluster

import (
	"context"
	"fmt"
	"os"
	"time"
)

// Down ends the node and removes everything that it made except the logs. It
// works whatever state the node is in, and does nothing if there is none.
func (c Cluster) Down(ctx context.Context) error {
	if p := notRoot(); p != nil {
		return p.orNil()
	}
	if err := c.Layout.CheckState(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, stopTimeout)
	defer cancel()
	// An init may have been killed together with its starter.
	for {
		p, found, err := findInit(c.Layout)
		if err != nil {
			return err
		}
		if !found {
			break
		}
		err = p.kill(ctx)
		p.close()
		if err != nil {
			return err
		}
		c.Log("ended the node's process %d, and all processes below it", p.pid)
	}
	groups, err := readCgroups()
	if err != nil {
		return err
	}
	if err := c.alone(ctx, groups); err != nil {
		return err
	}
	if err := groups.remove(ctx); err != nil {
		return err
	}
	removed, err := disconnectMachine()
	if err != nil {
		return err
	}
	if removed {
		c.Log("removed the link %s and its routes", hostLinkName)
	}
	for _, dir := range []string{c.Layout.Run(), c.Layout.PKI()} {
		if err := os.RemoveAll(dir); err != nil {
			return fmt.Errorf("remove the node's files: %w", err)
		}
	}
	return nil
}

// alone returns an error if another box is on the machine, because the cgroups
// and the link are then that box's. The last of our own processes may take a
// moment to leave their cgroups.
func (c Cluster) alone(ctx context.Context, groups cgroupSystem) error {
	ctx, cancel := context.WithTimeout(ctx, leaveTimeout)
	defer cancel()
	var other string
	err := poll(ctx, 50*time.Millisecond, func() (_ bool, _ string, err error) {
		other, err = otherBox(c.Layout, groups)
		return other == "", other, err
	})
	if other != "" {
		return fmt.Errorf("leaving cgroups and links alone: %s", other)
	}
	return err
}
