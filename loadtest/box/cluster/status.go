package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"text/tabwriter"
	"time"
)

// Status prints what runs, what is not ready and where things are.
func (c Cluster) Status(ctx context.Context, w io.Writer) error {
	p, found, err := findInit(c.Layout)
	if err != nil {
		return err
	}
	if !found {
		fmt.Fprintln(w, "The box is not running. Start it with `box up`.")
		return nil
	}
	defer p.close()
	members, err := c.members()
	if err != nil {
		return err
	}
	for _, m := range members {
		if err := c.printComponents(w, p.pid, m); err != nil {
			return err
		}
		fmt.Fprintln(w)
	}
	c.printCluster(ctx, w, members)
	fmt.Fprintf(w, "\nkubeconfig  %s\nlogs        %s\n", c.Layout.Kubeconfig(), c.Layout.Logs())
	return nil
}

// printComponents prints a node's processes, with its name if there are several nodes.
func (c Cluster) printComponents(w io.Writer, initPID int, m member) error {
	if !m.alone() {
		fmt.Fprintf(w, "node %s\n", m.name())
	}
	firstPID, err := c.firstProcess(initPID, m)
	if err != nil {
		fmt.Fprintln(w, err)
		return nil
	}
	states, err := readStates(m.layout)
	if errors.Is(err, fs.ErrNotExist) {
		fmt.Fprintf(w, "node %s has only begun to start\n", m.name())
		return nil
	}
	if err != nil {
		return err
	}
	running, err := children(firstPID)
	if err != nil {
		return err
	}
	table := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	fmt.Fprintln(table, "COMPONENT\tPID\tUP\tSTATE")
	fmt.Fprintf(table, "%s\t%d\t-\trunning\n", m.componentNames()[0], firstPID)
	for _, s := range states {
		if pid, ok := running[s.PID]; ok && s.Exit == "" {
			fmt.Fprintf(table, "%s\t%d\t%s\trunning\n", s.Name, pid, time.Since(s.Started).Round(time.Second))
			continue
		}
		fmt.Fprintf(table, "%s\t-\t-\tended: %s\n", s.Name, s.Exit)
	}
	return table.Flush()
}

func (c Cluster) printCluster(ctx context.Context, w io.Writer, members []member) {
	api, err := newAPI(c.Layout)
	if err != nil {
		fmt.Fprintln(w, err)
		return
	}
	for _, m := range members {
		ready, reason, err := api.nodeReady(ctx, m.name())
		switch {
		case err != nil:
			fmt.Fprintf(w, "The API server does not answer: %v\n", err)
			return
		case ready:
			fmt.Fprintf(w, "node %s is Ready\n", m.name())
		default:
			fmt.Fprintf(w, "node %s is not Ready: %s\n", m.name(), reason)
		}
	}
	pods, err := api.pods(ctx)
	if err != nil {
		fmt.Fprintf(w, "Could not list the pods: %v\n", err)
		return
	}
	troubled := 0
	for _, p := range pods {
		if t := trouble(p); t != "" {
			troubled++
			fmt.Fprintf(w, "pod %s/%s: %s\n", p.Namespace, p.Name, t)
		}
	}
	fmt.Fprintf(w, "%d of %d pods are ready\n", len(pods)-troubled, len(pods))
}
