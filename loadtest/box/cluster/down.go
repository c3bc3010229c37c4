package cluster

import (
	"context"
	"fmt"
	"os"
)

// Down ends the node and removes all that it made but the logs. It does so
// whatever state the node is in, and does nothing when there is none.
func (c Cluster) Down(ctx context.Context) error {
	if p := notRoot(); p != nil {
		return p.orNil()
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
		c.Log("ended the node's process %d, and all below it", p.pid)
	}
	groups, err := readCgroups()
	if err != nil {
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
